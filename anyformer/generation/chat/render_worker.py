"""The program in which chat templates are rendered: a process of its own, with little memory and a limit on work.

It is started by `sandbox.py`, imports nothing of ours, and speaks JSON, one line for a question and one for an answer.
"""

import json
import re
import sys
from datetime import datetime
from typing import Any

FUEL = 2_000_000
"""Instructions of a template: a hundred times what a long chat takes, and a fraction of a second."""
MEMORY = 256 * 2**20
"""Bytes of this process. Fuel does not count them: a text that is doubled thirty times takes few instructions."""
LONGEST = 2**22
"""Characters of a rendered chat."""
GENERATION = re.compile(r"\{%(-|\+)?\s*(end)?generation\s*(-|\+)?%\}")
"""Marks of what the model itself has said, which a trainer reads; the text is the same without them."""


class Refused(Exception):
    """The template itself objects to the messages."""


def limit() -> None:
    """Take no more memory than MEMORY, where the system can see to that."""
    try:
        import resource
    except ImportError:
        return
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def environment(minijinja: Any) -> Any:
    """What templates may use: the language, Python's methods of texts and tables, and three functions."""

    def raise_exception(message: object) -> None:
        raise Refused(str(message))

    def strftime_now(form: str) -> str:
        return datetime.now().strftime(form)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators and tuple(separators), sort_keys=sort_keys
        )  # fmt: skip

    return minijinja.Environment(
        fuel=FUEL, trim_blocks=True, lstrip_blocks=True, pycompat=True, debug=False,
        globals={"raise_exception": raise_exception, "strftime_now": strftime_now}, filters={"tojson": tojson},
        # A chat is no page: nothing is escaped.
        auto_escape_callback=lambda name: False,
    )  # fmt: skip


def answer(made: Any, asked: dict[str, Any]) -> dict[str, str]:
    """The rendered text, or what went wrong."""
    template = GENERATION.sub(
        lambda m: f"{{%{m[1] or ''} {'endif' if m[2] else 'if true'} {m[3] or ''}%}}", asked["template"]
    )
    try:
        text = made.render_str(template, **asked["names"])
    except Refused as error:
        return {"refused": str(error)}
    except Exception as error:
        kind = getattr(error, "kind", type(error).__name__)
        return {"failed": str(error).splitlines()[0], "kind": str(kind)}
    if len(text) > LONGEST:
        return {"failed": f"it wrote {len(text):,} characters; {LONGEST:,} are allowed", "kind": "TooLong"}
    return {"text": text}


def main() -> None:
    """Answer until nobody asks any more."""
    try:
        import minijinja
    except ImportError:
        made = None
    else:
        made = environment(minijinja)
    limit()
    for line in sys.stdin.buffer:
        said = {"missing": "minijinja"} if made is None else answer(made, json.loads(line))
        sys.stdout.buffer.write(json.dumps(said).encode() + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
