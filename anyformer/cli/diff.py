"""`anyformer diff`: what differs between two models, and what that does to their costs."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, add_ignore_keys, add_set, together, whole
from anyformer.cli.terminal import console, print_all, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from anyformer.explain.axes import Axis
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
    parser.add_argument(
        "--all", action="store_true", help="also what is the same: every axis, and every field with its default"
    )
    parser.add_argument("--json", action="store_true", help="everything as one JSON document")


def run(given: argparse.Namespace) -> int:
    """Compare two specs."""
    import anyformer
    from anyformer.explain.difference import difference, without_effect

    if given.second is None and not given.changes:
        raise InputError("diff compares two specs; name a second one, or change the first by --set NAME=VALUE")
    names = given.first, given.second or given.first
    ignored = _ignored(names, given.ignore_keys)
    distinct = dict.fromkeys(names)
    specs = together(*(partial(anyformer.spec, name, ignore_keys=ignored[name]) for name in distinct))
    first, unchanged = specs[0], specs[-1]
    changes = dict(given.changes)
    second = unchanged.vary(changes) if changes else unchanged
    varied = " ".join(f"{name}={value}" for name, value in given.changes)
    titles = given.first, " ".join(filter(None, (given.second or given.first, varied and f"with {varied}")))
    found = difference(first, second, titles, given.context)
    idle = without_effect(unchanged, changes)
    if given.json:
        print_json(found.data() | {"without_effect": idle})
        return 0
    print_all(console(), _page(found, idle, changes, everything=given.all))
    return 0


def _ignored(names: Sequence[str], keys: Sequence[str]) -> dict[str, Sequence[str]]:
    """The keys to ignore of each folder: those that its config has. One that none has is refused."""
    from anyformer.families.config_values import has
    from anyformer.families.io import is_published
    from anyformer.families.shards import CONFIG, CONFIG_BYTES, read_json

    files = {name: Path(name) / CONFIG for name in names if is_published(Path(name))}
    if not files or not keys:
        # Where no config is read, that is refused with the keys.
        return dict.fromkeys(names, keys)
    configs = {name: read_json(file, CONFIG_BYTES) for name, file in files.items()}
    if lost := [key for key in keys if not any(has(config, key) for config in configs.values())]:
        where = " nor ".join(str(file) for file in files.values())
        raise InputError(
            f"ignore_keys: {'neither ' if len(files) > 1 else ''}{where} has {'' if len(files) > 1 else 'no '}"
            f"key {', '.join(map(repr, lost))}"
        )
    return {name: [key for key in keys if has(configs.get(name, {}), key)] for name in names}


def _page(found: Difference, idle: list[str], changes: dict[str, Any], *, everything: bool) -> Iterator[RenderableType]:
    from rich.text import Text

    from anyformer.explain.words import some

    yield Text(found.headline, style="bold")
    if found.axes:
        yield _axes(found.names, found.axes)
    for name in idle:
        yield Text(f"{name}={changes[name]} changes nothing: it is so already")
    same = f"{some(len(found.same), 'axis', 'axes')} {'is' if len(found.same) == 1 else 'are'} the same"
    if everything:
        yield Text(f"\n{same}", style="bold")
        yield _axes(found.names, found.same)
        equal = sum(field.same for field in found.fields)
        told = (
            f"\n{some(len(found.fields), 'field')}, {equal} of them the same (none: unset, and derived if it is a size)"
        )
        yield Text(told, style="bold")
        yield _fields(found)
    elif found.same:
        yield Text(f"\n{same}: {', '.join(a.name for a, _ in found.same)} (--all shows them)", style="dim")
    tokens = " and ".join(f"{n:,}" for n in dict.fromkeys(found.contexts))
    yield Text(f"\nAt {tokens} tokens", style="bold")
    yield _costs(found)


def _fields(found: Difference) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    for ratio in (2, 2, 2):
        table.add_column(ratio=ratio, overflow="fold")
    table.add_column(no_wrap=True)
    for field in found.fields:
        values = (Text("-" if value is None else str(value)) for value in (field.before, field.after))
        table.add_row(field.name, *values, "same" if field.same else "")
    return table


def _axes(names: tuple[str, str], pairs: Sequence[tuple[Axis, Axis]]) -> RenderableType:
    from rich.table import Table
    from rich.text import Text

    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    table.add_column(ratio=1)
    table.add_row("", *(Text(name, style="bold") for name in names))
    for a, b in pairs:
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
    from anyformer.specs import number_format

    show = {"parameters": number_format.params, "FLOP": number_format.flops, "bytes": number_format.data}[change.unit]
    gap = change.after - change.before
    sign = "+" if gap > 0 else ""
    moved = f"{sign}{show(int(gap) if change.unit == 'parameters' else gap)}" if gap else ""
    before, after = (show(int(n) if change.unit == "parameters" else n) for n in (change.before, change.after))
    return before, after, moved, number_format.ratio(change.before, change.after)


COMMAND = Command(
    name="diff",
    summary="what differs between two models",
    example="""
anyformer diff llama-7b llama-3-8b
anyformer diff llama-3-8b --set attention.kv_heads=1 --set position.kind=alibi
anyformer diff gpt2-small model.toml --context 512
anyformer diff llama-3-8b qwen3-8b --all
""",
    arguments=arguments,
    run=run,
)
