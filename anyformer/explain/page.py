"""A report for the terminal: words, tables and drawings that fit the width they are given."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator
from itertools import zip_longest
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from anyformer.explain.axes import Placed
from anyformer.explain.costs import DTYPE, Cost
from anyformer.explain.drawing import PLAIN, TOKENS, draw, draw_picture, picture_of, sketch
from anyformer.explain.groups import Group
from anyformer.explain.report import Report
from anyformer.explain.words import join, some
from anyformer.specs import number_format

if TYPE_CHECKING:
    from anyformer.explain.kernels import KernelTable

Part = Padding | Table | Text
WIDE = 110
"""From here on files stand in a column of their own."""
DRAWN = 6
"""Kinds of layers that are drawn; the others on request."""
BAR = 24
"""Length of the longest bar, where there is room."""
CELL = 18
"""Room for a number and what it means."""
LABEL = 20


def page(report: Report, width: int, *, ascii_only: bool = False) -> Iterator[Part]:
    """The parts of the page, in order."""
    yield Text(report.title, style="bold")
    yield Text(report.summary)
    yield Text(report.counted())
    for origin in ("published", "evidence", "note") if report.preset is not None else ():
        if words := getattr(report.preset, origin):
            yield Text(f"{origin.capitalize()}: {words}.")
    yield _heading("Axes")
    yield _axes(report, width)
    yield _heading("Parameters")
    yield _parameters(report, min(BAR, width - 48), ascii_only=ascii_only)
    stored = [f"{number_format.data(n)} in {dtype}" for dtype, n in report.weights_bytes.items()]
    yield Text(f"The weights take {join(stored)}.")
    yield _heading("Costs")
    yield from _costs(report, width)
    yield _heading("Blocks and patterns")
    for group in report.groups[:DRAWN]:
        yield Text(group.where(), style="underline")
        lines = "\n".join(_side_by_side(group, width))
        yield Text(lines.translate(PLAIN) if ascii_only else lines, no_wrap=True, overflow="crop")
    if (left := len(report.groups) - DRAWN) > 0:
        numbers = ", ".join(str(group.indices[0]) for group in report.groups[DRAWN:][:DRAWN])
        yield Text(f"{some(left, 'more kind')} of layers: add --layer N, e.g. {numbers}.")
    yield _heading("Promises")
    if not report.exemptions:
        yield Text("All: exact mixers, and no position scheme that depends on the length of the text.")
    yield from (Text(f"- {text}") for text in report.exemptions)


def _heading(text: str) -> Text:
    return Text(f"\n{text}", style="bold")


def _axes(report: Report, width: int) -> Table:
    table = Table.grid(padding=(0, 2), expand=True)
    table.add_column(no_wrap=True)
    table.add_column(ratio=1)
    if width >= WIDE:
        table.add_column(no_wrap=True, style="dim")
    used = [axis for axis in report.axes if axis.value != "none"]
    for axis in used:
        for i, placed in enumerate(axis.placed):
            words = _choice(placed, file=width < WIDE)
            name = Text(axis.name if i == 0 else "")
            table.add_row(name, words, *([placed.choice.file] if width >= WIDE else []))
    unused = [axis.name for axis in report.axes if axis not in used]
    if unused:
        table.add_row(Text("unused"), Text(", ".join(unused), style="dim"))
    return table


def _choice(placed: Placed, *, file: bool) -> Text:
    choice, text = placed.choice, Text()
    if placed.where:
        text.append(f"{placed.where}: ", style="dim")
    text.append(choice.value, style="bold")
    if choice.words and choice.words.rstrip(".") != choice.value:
        text.append(f"\n{choice.words}")
    if choice.equation:
        text.append(f"\n{choice.equation}", style="cyan")
        if file:
            text.append(f"\n{choice.file}", style="dim")
    return text


def _numbers(*columns: str) -> Table:
    table = Table.grid(padding=(0, 2))
    table.add_column(no_wrap=True)
    for _ in columns[1:]:
        table.add_column(no_wrap=True, justify="right")
    if any(columns):
        table.add_row(*(Text(column, style="dim") for column in columns))
    return table


def _parameters(report: Report, bars: int, *, ascii_only: bool) -> Table:
    table = _numbers("", "", "")
    table.add_column(no_wrap=True, style="cyan")
    largest = max(report.by_part.values(), default=1)
    for part, n in report.by_part.items():
        bar = ("#" if ascii_only else "\u2588") * round(bars * n / largest)
        table.add_row(part, f"{n:,}", number_format.percent(n, report.params), bar)
    table.add_row(Text("all", style="bold"), Text(f"{report.params:,}", style="bold"), "", "")
    return table


def _costs(report: Report, width: int) -> Iterator[Part]:
    machine, each = report.machine, max(1, (width - LABEL) // (CELL + 2))
    for first in range(0, len(report.costs), each):
        yield _cost_table(report, report.costs[first : first + each])
    reads = "" if len(report.spec.stacks) == 1 else ", with as many source tokens"
    rates = f"{number_format.short(machine.flops, 'FLOP/s')} and {number_format.short(machine.bandwidth, 'B/s')}"
    yield Text(
        f"One document of so many tokens{reads}; FLOPs of the forward pass (training: 3 times); bytes in {DTYPE}. "
        f"Bound on {machine.name} ({machine.source}): {rates}, a balance of {machine.balance:.0f} FLOP/byte.",
        style="dim",
    )


def _cost_table(report: Report, costs: tuple[Cost, ...]) -> Table:
    table = _numbers("tokens", *(f"{cost.context:,}" for cost in costs))
    table.columns[0].min_width = LABEL - 2
    # The name of a pattern may be longer than any number.
    table.columns[0].overflow, table.columns[0].no_wrap = "fold", False
    table.add_row("FLOPs per token", *(Text(number_format.flops(cost.flops_per_token), style="bold") for cost in costs))
    for part in dict.fromkeys(name for cost in costs for name in cost.by_part):
        table.add_row(f"  {part}", *(number_format.flops(cost.by_part.get(part, 0)) for cost in costs))
    if costs[0].kv_bytes is not None:
        table.add_row("KV cache", *(Text(number_format.data(cost.kv_bytes or 0), style="bold") for cost in costs))
        parts = list(costs[0].kv_bytes_by_part)
        for part in parts if len(parts) > 1 else ():
            table.add_row(Text(f"  {part}"), *(number_format.data(cost.kv_bytes_by_part[part]) for cost in costs))
        table.add_row("  per token", *(number_format.data(cost.kv_bytes_per_token or 0) for cost in costs))
    for phase in costs[0].phases:
        # An encoder reads a text in the same way, only not into a cache.
        name = "forward" if phase == "prefill" and costs[0].kv_bytes is None else phase
        table.add_row(name, *("" for _ in costs))
        table.add_row("  bytes moved", *(number_format.data(cost.phases[phase].bytes) for cost in costs))
        rates = [(cost.phases[phase].intensity, cost.phases[phase].bound) for cost in costs]
        shown = [f"{n:,.{0 if n >= 100 else 1 if n >= 10 else 2}f} {bound}" for n, bound in rates]
        table.add_row("  FLOP/byte", *shown)
    return table


def _side_by_side(group: Group, width: int) -> list[str]:
    """The block, and the pattern beside it or below."""
    drawn, side = picture_of(group), TOKENS + 2
    right = ["keys across, queries down", *draw_picture(drawn), *textwrap.wrap(drawn.caption, side)]
    left = draw(sketch(group), width)
    room = max(map(len, left))
    if room + 4 + side <= width:
        return [f"{a.ljust(room)}    {b}".rstrip() for a, b in zip_longest(left, right, fillvalue="")]
    return [*left, "", *("    " + line for line in right)]


def kernel_page(table: KernelTable) -> Iterator[Part]:
    """The attention kernels: which one serves where, and below it why each of the others does not."""
    yield _heading(f"Attention kernels on {table.device}, {table.dtype}")
    for where, use in table.uses:
        what = "cross-attention, " if use.attention == "cross" else ""
        yield Text.assemble(f"{where}, {what}{use.phase}: ", (use.kernel or "none: its mixer weighs no scores", "bold"))
        for why in dict.fromkeys(why for _, why in use.others):
            names = ", ".join(name for name, reason in use.others if reason == why)
            yield Padding(Text(f"{names}: {why}", style="dim"), (0, 0, 0, 4))
