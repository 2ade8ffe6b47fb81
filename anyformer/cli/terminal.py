"""Where commands print: rich text on a terminal, plain text in a pipe, JSON on request."""

from __future__ import annotations

import json
import sys
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any

from anyformer.errors import naming
from anyformer.files import finite

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from rich.console import Console, RenderableType
    from rich.progress import Progress
    from rich.table import Table
    from rich.text import Text

    Rows = Iterable[Iterable[RenderableType]]

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


def errors() -> Console:
    """Standard error."""
    from rich.console import Console

    return Console(stderr=True, highlight=False)


def text(value: str, style: str = "") -> Text:
    """A text as it is, without markup."""
    from rich.text import Text

    return Text(value, style=style)


def verdict(*, same: bool, otherwise: str = "differs") -> Text:
    """`same` in green, or what is wrong in red."""
    return text("same", "green") if same else text(otherwise, "red")


def grid(names: Sequence[str], align: str, rows: Rows = (), *, gap: int = 2) -> Table:
    """A table without lines below faint names; `align` has an l, an r or a w (left, and may wrap) for each column."""
    from rich.table import Table

    table = Table.grid(padding=(0, gap, 0, 0))
    for side in align:
        table.add_column(justify="right" if side == "r" else "left", no_wrap=side != "w")
    for row in ([text(name, "dim") for name in names], *rows):
        table.add_row(*row)
    return table


def ruled(columns: Sequence[str], rows: Rows) -> Table:
    """A table with a line below its names; the first column is of words, as is one without a name."""
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for i, column in enumerate(columns):
        table.add_column(column, justify="right" if i and column else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def live_bar(screen: Console) -> Progress:
    """A bar between what a task is at and the time that is left (`description` and the field `left`)."""
    from rich.progress import BarColumn, Progress, TextColumn

    columns = TextColumn("{task.description}"), BarColumn(bar_width=None), TextColumn("{task.fields[left]}")
    return Progress(*columns, console=screen)


def print_all(out: Console, parts: Iterable[RenderableType]) -> None:
    """Print parts one below the other; in a pipe without the blanks that fill up lines."""
    with nullcontext() if out.is_terminal else out.capture() as caught:
        for part in parts:
            out.print(part)
    if caught is not None:
        with naming(STDOUT):
            sys.stdout.write("".join(f"{line.rstrip()}\n" for line in caught.get().splitlines()))


def print_json(answer: Any) -> None:
    """One JSON document."""
    with naming(STDOUT):
        sys.stdout.write(json.dumps(finite(answer), indent=2, allow_nan=False) + "\n")


def show(as_json: bool, data: Callable[[], Any], page: Iterable[RenderableType]) -> None:
    """An answer as JSON, or as a page."""
    if as_json:
        print_json(data())
    else:
        print_all(console(), page)


def say(text: str) -> None:
    """A piece of a model's text, at once and as it is: no markup, no wrapping."""
    if sys.stdout.isatty():
        text = text.translate(CONTROLS)
    encoding = sys.stdout.encoding or "utf-8"
    with naming(STDOUT):
        sys.stdout.write(text.encode(encoding, "replace").decode(encoding))
        sys.stdout.flush()
