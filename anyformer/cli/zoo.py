"""`anyformer zoo`: the published models that are known by name."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import TYPE_CHECKING

from anyformer.cli.parser import Command
from anyformer.cli.terminal import console, print_all, print_json

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anyformer.explain.zoo_table import Entry

SHORT = {"decoder": "dec", "encoder": "enc", "encoder-decoder": "enc-dec"}
LAYOUTS = (
    ("name", "params", "topology", "attention", "positions", "ffn", "norm", "context", "also"),
    ("name", "params", "topology", "attention", "positions", "ffn", "norm", "context"),
    ("name", "params", "attention", "positions", "ffn", "norm", "context"),
    ("name", "params", "attention", "positions", "ffn", "norm"),
    ("name", "params", "attention", "positions", "ffn"),
    ("name", "params", "attention"),
)
"""The columns, from the widest terminal to the narrowest. Without a column of topologies each has a heading."""


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument(
        "filter", metavar="FILTER", nargs="?", default="", help="only what has this in a name or a column, e.g. alibi"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON document")


def run(given: argparse.Namespace) -> int:
    """List the presets."""
    from anyformer.explain.zoo_table import catalogue, undisclosed

    entries, missing = catalogue(given.filter), undisclosed(given.filter)
    if given.json:
        print_json({"presets": [entry.data() for entry in entries], "undisclosed": missing})
        return 0
    out = console()
    print_all(out, _page(entries, missing, out.width))
    return 0


def _page(entries: list[Entry], missing: dict[str, str], width: int) -> Iterator[RenderableType]:
    from rich.text import Text

    if entries:
        rows = [_cells(entry) for entry in entries]
        layout, gap = _layout(rows, width)
        yield _table(entries, rows, layout, gap)
        others = [f"{name} is {entry.name}" for entry in entries for name in entry.also]
        if others and "also" not in layout:
            yield Text(f"\nOther names: {', '.join(others)}.")
    for name, why in missing.items():
        yield Text(f"\n{name} has no preset: {why}.")
    if entries:
        first = entries[0].name
        other = f"{first} {entries[1].name}" if len(entries) > 1 else f"{first} --set attention.kv_heads=1"
        yield Text(f"\nNext: anyformer explain {first}, or anyformer diff {other}", style="dim")


def _cells(entry: Entry) -> dict[str, str]:
    from anyformer.specs import number_format

    return {
        "name": entry.name,
        "params": number_format.params(entry.params),
        "topology": SHORT[entry.topology],
        "attention": entry.attention,
        "positions": entry.position,
        "ffn": entry.ffn,
        "norm": f"{entry.norm} {entry.placement}",
        "context": number_format.tokens(entry.context),
        "also": ", ".join(entry.also),
    }


def _layout(rows: list[dict[str, str]], width: int) -> tuple[tuple[str, ...], int]:
    """The first choice of columns that fits without breaking a cell, with the blanks between columns."""
    for layout in LAYOUTS:
        needed = sum(max(len(name), *(len(row[name]) for row in rows)) for name in layout)
        for gap in (2, 1):
            if needed + gap * (len(layout) - 1) <= width:
                return layout, gap
    return LAYOUTS[-1], 1


def _table(entries: list[Entry], rows: list[dict[str, str]], layout: tuple[str, ...], gap: int) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, gap, 0, 0))
    for name in layout:
        table.add_column(no_wrap=True, justify="right" if name in ("params", "context") else "left")
    table.add_row(*(Text(name, style="dim") for name in layout))
    topology = ""
    for entry, row in zip(entries, rows, strict=True):
        if "topology" not in layout and entry.topology != topology:
            topology = entry.topology
            table.add_row(Text(f"{topology}s", style="underline"))
        table.add_row(*(Text(row[name], style="bold" if name == "name" else "") for name in layout))
    return table


COMMAND = Command(
    name="zoo",
    summary="list the published models that are known by name",
    example="""
anyformer zoo
anyformer zoo alibi
anyformer zoo --json
""",
    arguments=arguments,
    run=run,
)
