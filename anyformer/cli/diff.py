"""`anyformer diff`: what differs between two models, and what that does to their costs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.cli.parser import Command, add_ignore_keys, add_set, whole
from anyformer.cli.terminal import console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anyformer.explain.difference import Change, Difference


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("first", metavar="SPEC", help="the name of a preset, a .toml file or a directory")
    parser.add_argument(
        "second", metavar="SPEC", nargs="?", help="what to compare it with (default: itself, changed by --set)"
    )
    add_set(parser)
    add_ignore_keys(parser)
    parser.add_argument(
        "--context", type=whole(1), metavar="N", help="tokens to count at (default: the shorter context of the two)"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Compare two specs."""
    import anyformer
    from anyformer.explain.difference import difference

    if given.second is None and not given.changes:
        raise InputError("diff compares two specs; name a second one, or change the first by --set NAME=VALUE")
    # Of a preset beside a folder, the folder has the keys.
    alone = [Path(name).is_dir() for name in (given.first, given.second or given.first)]
    ignored = [given.ignore_keys if folder or not any(alone) else () for folder in alone]
    first = anyformer.spec(given.first, ignore_keys=ignored[0])
    second = anyformer.spec(given.second or given.first, dict(given.changes), ignore_keys=ignored[1])
    varied = " ".join(f"{name}={value}" for name, value in given.changes)
    names = given.first, " ".join(filter(None, (given.second or given.first, varied and f"with {varied}")))
    found = difference(first, second, names, given.context)
    if given.json:
        print_json(found.data())
        return 0
    print_all(console(), _page(found))
    return 0


def _page(found: Difference) -> Iterator[RenderableType]:
    from rich.text import Text

    yield Text(found.headline, style="bold")
    if found.axes:
        yield _axes(found)
    tokens = " and ".join(f"{n:,}" for n in dict.fromkeys(found.contexts))
    yield Text(f"\nAt {tokens} tokens", style="bold")
    yield _costs(found)


def _axes(found: Difference) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row("", *(Text(name, style="bold") for name in found.names))
    for a, b in found.axes:
        table.add_row(a.name, *(Text("\n".join(_lines(axis.value))) for axis in (a, b)))
    return table


def _lines(value: str) -> list[str]:
    """Layers that differ stand below each other."""
    return value.split("; ")


def _costs(found: Difference) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in range(4):
        table.add_column(no_wrap=True, justify="right")
    table.add_row("", *(Text(text, style="dim") for text in ("first", "second", "change", "ratio")))
    for change in found.changes:
        style = "" if change.part else "bold"
        name = f"  {change.name}" if change.part else change.name
        table.add_row(Text(name, style=style), *(Text(cell, style=style) for cell in _cells(change)))
    return table


def _cells(change: Change) -> tuple[str, str, str, str]:
    from anyformer.specs import units

    show = {"parameters": units.params, "FLOP": units.flops, "bytes": units.data}[change.unit]
    gap = change.after - change.before
    sign = "+" if gap > 0 else ""
    moved = f"{sign}{show(int(gap) if change.unit == 'parameters' else gap)}" if gap else ""
    before, after = (show(int(n) if change.unit == "parameters" else n) for n in (change.before, change.after))
    return before, after, moved, units.ratio(change.before, change.after)


COMMAND = Command(
    name="diff",
    summary="what differs between two models",
    example="""
anyformer diff llama-7b llama-3-8b
anyformer diff llama-3-8b --set attention.kv_heads=1 --set position.kind=alibi
anyformer diff gpt2-small model.toml --context 512
""",
    arguments=arguments,
    run=run,
)
