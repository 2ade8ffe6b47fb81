"""`anyformer zoo`: the published models that are known by name, and the types of checkpoints that can be read.

anyformer zoo
anyformer zoo alibi
anyformer zoo --json
anyformer zoo --families
anyformer zoo --families moe
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING

from anyformer.cli.parser import Command, flag, option
from anyformer.cli.terminal import console, grid, show, text

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anyformer.explain.family_table import PublishedType
    from anyformer.explain.zoo_table import Entry

SHORT = {"decoder": "dec", "encoder": "enc", "encoder-decoder": "enc-dec"}
COLUMNS = ("name", "params", "topology", "attention", "positions", "ffn", "norm", "context", "also")
LAYOUTS = tuple(
    tuple(name for name in COLUMNS if name not in left_out)
    for left_out in (
        (), ("also",), ("also", "topology"), ("also", "topology", "context"), ("also", "topology", "context", "norm"),
        COLUMNS[2:3] + COLUMNS[4:],
    )
)  # fmt: skip
"""The columns, from the widest terminal to the narrowest. Without a column of topologies each has a heading."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "filter", "only what has this in a name or a column, e.g. alibi", "FILTER", nargs="?", default="")
    flag(parser, "--families", "every published type of text model and whether its checkpoints can be read")
    flag(parser, "--json", "everything as one JSON document")


def _run(given: argparse.Namespace) -> int:
    """List the presets, or the types."""
    if given.families:
        from anyformer.explain.family_table import family_table

        types = family_table(given.filter)
        show(given.json, lambda: {"types": [asdict(each) for each in types]}, _types_page(types))
        return 0
    from anyformer.explain.zoo_table import undisclosed, zoo_table

    entries, missing = zoo_table(given.filter), undisclosed(given.filter)
    data = {"presets": [asdict(entry) for entry in entries], "undisclosed": missing}
    show(given.json, lambda: data, _page(entries, missing, console().width))
    return 0


def _page(entries: list[Entry], missing: dict[str, str], width: int) -> Iterator[RenderableType]:
    if entries:
        rows = [_cells(entry) for entry in entries]
        layout, gap = _layout(rows, width)
        table = grid(layout, "".join("r" if name in ("params", "context") else "l" for name in layout), gap=gap)
        topology = ""
        for entry, row in zip(entries, rows, strict=True):
            if "topology" not in layout and entry.topology != topology:
                topology = entry.topology
                table.add_row(text(f"{topology}s", "underline"))
            table.add_row(*(text(row[name], "bold" if name == "name" else "") for name in layout))
        yield table
        others = [f"{name} is {entry.name}" for entry in entries for name in entry.also]
        if others and "also" not in layout:
            yield text(f"\nOther names: {', '.join(others)}.")
    for name, why in missing.items():
        yield text(f"\n{name} has no preset: {why}.")
    if entries:
        first = entries[0].name
        other = f"{first} {entries[1].name}" if len(entries) > 1 else f"{first} --set attention.kv_heads=1"
        yield text(f"\nNext: anyformer explain {first}, or anyformer diff {other}", "dim")


def _types_page(types: list[PublishedType]) -> Iterator[RenderableType]:
    read = [each for each in types if each.family is not None]
    table, topology = grid(("type", "class", "state"), "llw"), ""
    for each in read:
        if each.topology != topology:
            topology = each.topology
            table.add_row(text(f"{topology}s", "underline"))
        table.add_row(text(each.model_type, "bold"), text(each.architecture), text(each.said))
    if read:
        yield table
    needs: dict[str, list[str]] = {}
    for each in types:
        if each.family is None:
            needs.setdefault(each.why, []).append(each.model_type)
    if needs:
        yield text("\nnot supported, by what they need" if read else "not supported, by what they need", "underline")
        yield grid(("", ""), "ww", ([text(need), text(", ".join(names), "bold")] for need, names in needs.items()))
    count = {state: sum(each.state == state for each in types) for state in dict.fromkeys(each.state for each in types)}
    yield text(f"\n{'; '.join(f'{number} {state}' for state, number in count.items())}.")
    yield text("Next: docs/parity.md has the figures; anyformer verify parity FOLDER compares a checkpoint.", "dim")


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


COMMAND = Command("zoo", "list the published models that are known by name", __doc__, _arguments, _run)
