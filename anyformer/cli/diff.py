"""`anyformer diff`: what differs between two models, and what that does to their costs.

anyformer diff llama-7b llama-3-8b
anyformer diff llama-3-8b --set attention.kv_heads=1 --set position.kind=alibi
anyformer diff gpt2-small model.toml --context 512
anyformer diff llama-3-8b qwen3-8b --all
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, add_ignore_keys, add_set, flag, option, together, whole
from anyformer.cli.terminal import grid, show, text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table

    from anyformer.explain.axes import Axis
    from anyformer.explain.difference import Change, Difference


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "first", "the name of a preset, a .toml file or a directory", "SPEC")
    option(parser, "second", "what to compare it with (default: itself, changed by --set)", "SPEC", nargs="?")
    add_set(parser)
    add_ignore_keys(parser)
    option(parser, "--context", "tokens to count at (default: the shorter context of the two)", whole(1))
    flag(parser, "--all", "also what is the same: every axis, and every field with its default")
    flag(parser, "--json", "everything as one JSON document")


def _run(given: argparse.Namespace) -> int:
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
    page = _page(found, idle, changes, everything=given.all)
    show(given.json, lambda: found.data() | {"without_effect": idle}, page)
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
        where, what = " nor ".join(map(str, files.values())), f"key {', '.join(map(repr, lost))}"
        raise InputError(
            f"ignore_keys: neither {where} has {what}" if len(files) > 1 else f"ignore_keys: {where} has no {what}"
        )
    return {name: [key for key in keys if has(configs.get(name, {}), key)] for name in names}


def _page(found: Difference, idle: list[str], changes: dict[str, Any], *, everything: bool) -> Iterator[RenderableType]:
    from anyformer.explain.words import some

    yield text(found.headline, "bold")
    if found.axes:
        yield _axes(found.names, found.axes)
    for name in idle:
        yield text(f"{name}={changes[name]} changes nothing: it is so already")
    same = f"{some(len(found.same), 'axis', 'axes')} {'is' if len(found.same) == 1 else 'are'} the same"
    if everything:
        yield text(f"\n{same}", "bold")
        yield _axes(found.names, found.same)
        fields, equal = some(len(found.fields), "field"), sum(field.same for field in found.fields)
        yield text(f"\n{fields}, {equal} of them the same (none: unset, and derived if it is a size)", "bold")
        shown = [["-" if value is None else str(value) for value in (f.before, f.after)] for f in found.fields]
        pairs = zip(found.fields, shown, strict=True)
        yield _wide((2, 2, 2, 0), ((f.name, *map(text, values), "same" if f.same else "") for f, values in pairs))
    elif found.same:
        yield text(f"\n{same}: {', '.join(a.name for a, _ in found.same)} (--all shows them)", "dim")
    tokens = " and ".join(f"{n:,}" for n in dict.fromkeys(found.contexts))
    yield text(f"\nAt {tokens} tokens", "bold")
    table = grid(("", "first", "second", "change", "ratio"), "lrrrr")
    for change in found.changes:
        style, name = ("", f"  {change.name}") if change.part else ("bold", change.name)
        table.add_row(*(text(cell, style) for cell in (name, *_cells(change))))
    yield table


def _wide(ratios: Sequence[int], rows: Iterable[Iterable[RenderableType]]) -> Table:
    """A table without lines as wide as the terminal; a column without a ratio takes what it needs."""
    from rich.table import Table

    table = Table.grid(padding=(0, 2), expand=True)
    for ratio in ratios:
        table.add_column(ratio=ratio or None, no_wrap=not ratio, overflow="fold")
    for row in rows:
        table.add_row(*row)
    return table


def _axes(names: tuple[str, str], pairs: Sequence[tuple[Axis, Axis]]) -> Table:
    # Layers that differ stand below each other.
    rows = ((pair[0].name, *(text(axis.value.replace("; ", "\n")) for axis in pair)) for pair in pairs)
    return _wide((0, 1, 1), [("", *(text(name, "bold") for name in names)), *rows])


def _cells(change: Change) -> tuple[str, str, str, str]:
    from anyformer.specs import number_format

    whole = change.unit == "parameters"
    shown = {"parameters": number_format.params, "FLOP": number_format.flops, "bytes": number_format.data}[change.unit]
    gap = change.after - change.before
    before, after, moved = (shown(int(n) if whole else n) for n in (change.before, change.after, gap))
    return before, after, f"{'+' * (gap > 0)}{moved}" if gap else "", number_format.ratio(change.before, change.after)


COMMAND = Command("diff", "what differs between two models", __doc__, _arguments, _run)
