"""The program in which grammars are tried out: a process of its own, with little memory, a small stack and a time limit.

It is started by `fence.py`, imports nothing of ours, and speaks JSON, one line for a question and one for an answer. A
grammar may take for ever, or overflow the stack, in code that nothing can interrupt; then this process dies of it.
"""

import json
import sys
import threading
from typing import Any

STACK = 2**19
"""Bytes of the stack on which a grammar is compiled: no more than any thread has that compiles it later."""
SPACE = r" |\n[ \t]{0,40}"
"""What may stand between the parts of JSON: a blank, or a new line and its indentation, but no endless space."""
ASCII = "d"
"""Classes of a regex that hold ASCII only: a number in the digits of another script would surprise whoever reads it."""
OPTIONS = '%llguidance {"no_forcing": true}'
"""How a text is spelled in tokens is left to the model. The last line of such options counts."""


class Words:
    """A vocabulary as large as a model's, of its special tokens and single bytes."""

    is_tokenizer_wrapper = True
    bos_token_id = None

    def __init__(self, size: int, specials: dict[str, int]) -> None:
        self.tokens = [b""] * size + [bytes([byte]) for byte in range(256)] + [b"end"]
        for name, token in specials.items():
            self.tokens[token] = name.encode()
        self.eos_token_id = len(self.tokens) - 1
        self.special_token_ids = [*specials.values(), self.eos_token_id]

    def __call__(self, text: str) -> list[int]:
        raise NotImplementedError("how a text is spelled is left to the model")


class Timer:
    """Ends this process when it has computed for too long. Where the system can't see to that, whoever asked does."""

    def __init__(self, memory: int) -> None:
        try:
            import resource
            import signal
        except ImportError:
            self.signal: Any = None
            return
        self.signal = signal
        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))

    def start(self, seconds: float) -> None:
        """Count processor time from now on; 0 stops it."""
        if self.signal is not None:
            # Nobody handles this signal, so the system ends the process.
            self.signal.setitimer(self.signal.ITIMER_PROF, seconds)


def as_lark(package: Any, kind: str, source: str) -> str:
    """A grammar of any kind in the package's own language."""
    if kind == "gbnf":
        lark = package.gbnf_to_lark.gbnf_to_lark(source)
    elif kind == "regex":
        lark = f"start: /{package.regex_to_lark(source, ASCII)}/"
    elif kind in ("json_object", "json_schema"):
        schema: Any = {"type": "object"} if kind == "json_object" else json.loads(source)
        if isinstance(schema, dict):
            own = schema.get("x-guidance")
            schema["x-guidance"] = {"whitespace_pattern": SPACE} | (own if isinstance(own, dict) else {})
        lark = f"start: %json {json.dumps(schema)}"
    else:
        lark = source
    return f"{lark}\n{OPTIONS}\n"


def answer(package: Any, known: dict[str, Any], asked: dict[str, Any]) -> dict[str, str]:
    """The grammar in the package's language, or what is wrong with it."""
    try:
        lark = as_lark(package, asked["kind"], asked["source"])
    except RecursionError:
        return {"wrong": "is nested too deeply"}
    except Exception as error:
        return {"wrong": str(error)}
    name = json.dumps([asked["size"], asked["specials"]])
    if name not in known:
        known.clear()
        known[name] = package.LLTokenizer(Words(asked["size"], asked["specials"]))
    limits = package.LLParserLimits(**asked["limits"])
    matcher = package.LLMatcher(known[name], lark, log_level=0, limits=limits)
    if matcher.is_error():
        return {"wrong": matcher.get_error()}
    # Whether anything is allowed depends on the model's own tokens; here it is about the time.
    matcher.compute_bitmask()
    return {"lark": lark}


def serve(package: Any, timer: Timer) -> None:
    """Answer until nobody asks any more."""
    known: dict[str, Any] = {}
    for line in sys.stdin.buffer:
        asked = json.loads(line)
        timer.start(asked["seconds"])
        said = answer(package, known, asked)
        timer.start(0)
        sys.stdout.buffer.write(json.dumps(said).encode() + b"\n")
        sys.stdout.buffer.flush()


def main() -> None:
    """Serve, on a stack of a known size."""
    import llguidance
    import llguidance.gbnf_to_lark

    timer = Timer(int(sys.argv[1]))
    threading.stack_size(STACK)
    thread = threading.Thread(target=serve, args=(llguidance, timer))
    thread.start()
    thread.join()


if __name__ == "__main__":
    main()
