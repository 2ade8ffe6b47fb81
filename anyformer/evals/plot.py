"""Measurements as pictures: attention by kernel and length, and the time of a decode step over the tokens before it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.explain.figure import BARS, INK, save_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from anyformer.evals import attention, generation

FAINT = "#c9d0d6"
MARKS = "osD^vP"


def _style(axes: Axes, unit: str, subs: tuple[float, ...]) -> None:
    """A logarithmic axis of values that people can read, and a faint grid."""
    from matplotlib.ticker import EngFormatter, LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axes.yaxis.set_major_formatter(EngFormatter(unit))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=9, labelcolor=INK)
    axes.grid(which="major", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)


def save_attention(table: attention.Table, path: str | Path) -> None:
    """Draw a column for each number of kv heads, time above bytes, into a file; its ending says the format."""
    from matplotlib.figure import Figure

    setting = table.setting
    attentions, names = setting.attentions(), list(dict.fromkeys(row.kernel for row in table.rows))
    figure = Figure(figsize=(1.2 + 3.6 * len(attentions), 7.2), layout="constrained")
    axes = figure.subplots(2, len(attentions), sharex=True, sharey="row", squeeze=False)
    for column, (attention, kv_heads) in enumerate(attentions.items()):
        rows = [row for row in table.rows if row.attention == attention and row.seconds is not None]
        _panel(axes[0][column], rows, names, setting.lengths, seconds=True)
        _panel(axes[1][column], rows, names, setting.lengths, seconds=False)
        axes[0][column].set_title(f"{attention}: {setting.heads} heads, {kv_heads} of keys", fontsize=11, color=INK)
        axes[1][column].set_xlabel("tokens", color=INK)
    axes[0][0].set_ylabel("time", color=INK)
    axes[1][0].set_ylabel("peak bytes", color=INK)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(names), 4), frameon=False)
    what = "forward and backward" if setting.backward else "forward"
    dtype = str(setting.dtype).removeprefix("torch.")
    figure.suptitle(f"Attention step, {what}, {dtype}, head dimension {setting.head_dim}, {table.machine}", color=INK)
    save_figure(figure, path)


def _panel(axes: Axes, rows: list[attention.Row], names: list[str], lengths: tuple[int, ...], *, seconds: bool) -> None:
    from matplotlib.ticker import NullLocator

    axes.set_xscale("log", base=2)
    for i, name in enumerate(names):
        found = [(row.tokens, row.seconds if seconds else row.peak_bytes) for row in rows if row.kernel == name]
        axes.plot(
            [length for length, _ in found], [value or float("nan") for _, value in found], label=name,
            color=BARS[i % len(BARS)], marker=MARKS[i % len(MARKS)], markersize=5, linewidth=1.6,
        )  # fmt: skip
    axes.set_xticks(list(lengths), [f"{length:,}" for length in lengths], fontsize=9, color=INK)
    axes.xaxis.set_minor_locator(NullLocator())
    _style(axes, "s" if seconds else "B", (1.0, 3.0))


def save_generation(table: generation.Table, path: str | Path) -> None:
    """Draw a line for each mode and batch, and a faint one for what memory allows, into a file."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    axes = figure.subplots()
    for i, (mode, batch) in enumerate(dict.fromkeys((row.mode, row.batch) for row in table.rows)):
        rows = [row for row in table.rows if (row.mode, row.batch) == (mode, batch)]
        colour, label = BARS[i % len(BARS)], f"{mode}, {batch} row{'s' if batch > 1 else ''}"
        for row in rows:
            places = range(row.prompt + 1, row.prompt + 1 + len(row.steps))
            axes.plot(list(places), row.steps, color=colour, linewidth=0.7, alpha=0.45)
        middle = [row.prompt + len(row.steps) // 2 for row in rows]
        mark = {"color": colour, "marker": MARKS[i % len(MARKS)], "markersize": 5, "linewidth": 1.6}
        axes.plot(middle, [row.step for row in rows], label=label, **mark)
        limits = [row.limit for row in rows if row.limit is not None]
        if limits:
            axes.plot(middle, limits, color=colour, linestyle=":", linewidth=1.2)
    _style(axes, "s", (1.0, 2.0, 5.0))
    axes.set_xlabel("tokens before the step", color=INK)
    axes.set_ylabel("time of a step (dotted: reading its bytes once)", color=INK)
    axes.legend(frameon=False, fontsize=9)
    every = statistics.median(len(row.steps) for row in table.rows)
    size = f"{table.params / 1e6:.3g} M parameters, {table.dtype}, {table.machine}"
    axes.set_title(f"Generating {every + 1:.0f} tokens, {size}", fontsize=11, color=INK)
    save_figure(figure, path)
