"""Measurements of generation as a picture: the time of a step over the number of tokens before it."""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.errors import naming
from anyformer.evals.plot import COLOURS, FAINT, INK, MARKS, PAPER, check_path, shown_seconds

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anyformer.evals.generation import Table


def save(table: Table, path: str | Path) -> None:
    """Draw a table into a file; its ending says the format."""
    check_path(path)
    with naming(path):
        make(table).savefig(path, dpi=150, facecolor=PAPER)


def make(table: Table) -> Figure:
    """The figure: a line for each way and batch, and a faint one for what memory allows."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    figure = Figure(figsize=(7.2, 5.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots()
    axes.set_yscale("log")
    for i, (way, batch) in enumerate(dict.fromkeys((row.way, row.batch) for row in table.rows)):
        rows = [row for row in table.rows if (row.way, row.batch) == (way, batch)]
        colour = COLOURS[i % len(COLOURS)]
        label = f"{way}, {batch} row{'s' if batch > 1 else ''}"
        for row in rows:
            places = range(row.prompt + 1, row.prompt + 1 + len(row.steps))
            axes.plot(list(places), row.steps, color=colour, linewidth=0.7, alpha=0.45)
        middle = [row.prompt + len(row.steps) // 2 for row in rows]
        axes.plot(middle, [row.step for row in rows], color=colour, marker=MARKS[i % len(MARKS)], markersize=5, linewidth=1.6, label=label)  # fmt: skip
        limits = [row.limit for row in rows if row.limit is not None]
        if limits:
            axes.plot(middle, limits, color=colour, linestyle=":", linewidth=1.2)
    axes.set_xlabel("tokens before the step", color=INK)
    axes.set_ylabel("time of a step (dotted: reading its bytes once)", color=INK)
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(shown_seconds))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=9, labelcolor=INK)
    axes.grid(which="major", color=FAINT, linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(frameon=False, fontsize=9)
    every = statistics.median(len(row.steps) for row in table.rows)
    axes.set_title(
        f"Generating {every + 1:.0f} tokens, {table.params / 1e6:.3g} M parameters, {table.dtype}, {table.machine}",
        fontsize=11, color=INK,
    )  # fmt: skip
    return figure
