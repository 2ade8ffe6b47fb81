"""Where commands print: rich text on a terminal, plain text in a pipe, JSON when asked."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from anyformer.errors import naming

if TYPE_CHECKING:
    from collections.abc import Iterable

    from rich.console import Console, RenderableType

STDOUT = "standard output"
PIPE_WIDTH = 100
CONTROLS = {code: "\N{REPLACEMENT CHARACTER}" for code in (*range(32), *range(127, 160)) if chr(code) not in "\n\t"}
"""What a model writes must not command the terminal."""


def console() -> Console:
    """Standard output. In a pipe: no colour codes, and lines of a fixed width."""
    from rich.console import Console

    # Nothing is guessed about what a text means: numbers and paths keep the colour that we give them.
    width = None if sys.stdout.isatty() else PIPE_WIDTH
    return Console(highlight=False, width=width)


def print_all(out: Console, parts: Iterable[RenderableType]) -> None:
    """Print parts one below the other; in a pipe without the blanks that fill up lines."""
    if out.is_terminal:
        for part in parts:
            out.print(part)
        return
    with out.capture() as caught:
        for part in parts:
            out.print(part)
    with naming(STDOUT):
        sys.stdout.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()))


def print_json(answer: Any) -> None:
    """One JSON document."""
    with naming(STDOUT):
        sys.stdout.write(json.dumps(answer, indent=2, allow_nan=False) + "\n")


def finite(value: float) -> float | None:
    """A number as JSON can hold it."""
    return value if value < float("inf") else None


def say(text: str) -> None:
    """A piece of a model's text, at once and as it is: no markup, no wrapping."""
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    encoding = sys.stdout.encoding or "utf-8"
    with naming(STDOUT):
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
