"""The picture of a run: loss over tokens, with the yardsticks that it has to beat."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from anyformer.errors import naming
from anyformer.train.report import running_mean

Point = tuple[float, float]

INK, FAINT, ACCENT = "#1f2430", "#b9c3d6", "#2b6cb0"


def draw_curve(
    path: Path,
    *,
    title: str,
    train: Sequence[Point],
    held_out: Sequence[Point],
    final: Sequence[Point] = (),
    yardsticks: Mapping[str, float],
    unit: str = "bits per byte",
) -> None:
    """Write a PNG of points (tokens, value) and level lines; `held_out` is of a sample, `final` of the whole part."""
    # The figure is made without pyplot: no window system is asked, and nothing is left behind in global state.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter

    figure = Figure(figsize=(8, 4.5), dpi=150, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    smooth: list[float] = running_mean([y for _, y in train], share=0.04).tolist()
    if train:
        axes.plot(*zip(*train, strict=True), color=FAINT, linewidth=0.8, label="training rows")
        axes.plot([x for x, _ in train], smooth, color=ACCENT, linewidth=1.8, label="training rows, smoothed")
    if held_out:
        axes.plot(*zip(*held_out, strict=True), "o-", color=INK, markersize=4, linewidth=1.2, label="held out")
    if final:
        axes.plot(
            *zip(*final, strict=True), "D", color="#c05621", markersize=7, label="held out, all of it", clip_on=False
        )
    right = max((x for x, _ in (*train, *held_out, *final)), default=1.0)
    values = [*smooth, *(y for _, y in (*held_out, *final)), *yardsticks.values()]
    # All that was reached, with some air, but not a whole first spike.
    sound = [value for value in values if math.isfinite(value)]
    low, high = (min(sound), max(sound)) if sound else (0.0, 1.0)
    low, high = max(0.0, low - 0.08 * (high - low) - 0.05), high + 0.1 * (high - low) + 0.05
    for name, value in yardsticks.items():
        if low <= value <= high:
            axes.axhline(value, color="#c05621", linewidth=1, linestyle=(0, (4, 3)))
            axes.annotate(
                f"{name} {value:.2f}", (right, value), xytext=(0, 3), textcoords="offset points", ha="right",
                color="#c05621", fontsize=9,
            )  # fmt: skip
    axes.set(xlim=(0, right), ylim=(low, high), xlabel="tokens learned from", ylabel=unit)
    axes.set_title(title, loc="left", fontsize=11, color=INK)
    axes.xaxis.set_major_formatter(
        FuncFormatter(lambda x, _: f"{x / 1e6:g}M" if x >= 1e6 else f"{x / 1e3:g}k" if x else "0")
    )
    axes.grid(color="#e6eaf2", linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right", ncols=2)
    with naming(path):
        figure.savefig(path, format="png")
