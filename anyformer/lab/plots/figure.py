"""What all plots of a study share: figures without pyplot, axes, captions, names that fit, files written at once."""

from __future__ import annotations

import math
import re
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.files import replace_file
from anyformer.lab.plots.palette import GRID, INK, PAPER, SOFT
from anyformer.specs.number_format import short
from anyformer.train.report.chart import brief

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

NAME = 40
"""Letters of a name in a plot."""
PLACES = (
    (6, 9, "left"), (6, -9, "left"), (-6, 9, "right"), (-6, -9, "right"), (9, 0, "left"), (-9, 0, "right"),
    (0, 13, "center"), (0, -13, "center"),
)  # fmt: skip
"""Where a point's name may stand, in points from it, the best first: beside its intervals rather than on them."""


def save_figure(figure: Figure, folder: Path, name: str, form: str) -> Path:
    """Write a figure as PNG or SVG; where it is, with signs replaced that a file name can't have."""
    from matplotlib import rc_context

    place = folder / f"{re.sub(r'[^A-Za-z0-9._=+-]', '_', name)[:120]}.{form}"

    def write(beside: Path) -> None:
        # Without a salt of their own, the ids in an SVG would differ each time that it is drawn.
        with rc_context({"svg.hashsalt": "anyformer"}):
            figure.savefig(beside, format=form, dpi=150, metadata={"Date": None} if form == "svg" else None)

    replace_file(place, write)
    return place


def robust_span(means: Sequence[float], values: Sequence[float]) -> tuple[float, float]:
    """A span that shows nearly all, but does not let one value that is far off press the others together."""
    middle, every = sorted(means)[len(means) // 2], (*means, *values)
    usual = sorted(abs(value - middle) for value in every)[math.ceil(0.6 * (len(every) - 1))]
    near = [value for value in every if abs(value - middle) <= 6 * usual]
    air = 0.07 * (max(near) - min(near)) or 0.02 * abs(middle) or 1.0
    return min(near) - air, max(near) + air


def label_points(figure: Figure, axes: Axes, labels: Sequence[tuple[float, float, str, str]], *, first: str) -> None:
    """Write names beside points where they cover neither each other nor a point; one that has no room is left out."""
    from matplotlib.transforms import Bbox

    figure.draw_without_rendering()
    frame, taken, scale = axes.get_window_extent(), [], figure.dpi / 72
    for x, y, _, _ in labels:
        at = axes.transData.transform((x, y))
        taken.append(Bbox.from_extents(at[0] - 5 * scale, at[1] - 5 * scale, at[0] + 5 * scale, at[1] + 5 * scale))
    for x, y, name, ink in sorted(labels, key=lambda label: label[2] != first):
        text, at = fit_name(name), axes.transData.transform((x, y))
        # Of the usual font, a letter is about 0.56 of its height wide.
        wide, tall = 8.5 * 0.56 * len(text) * scale, 10 * scale
        for dx, dy, align in PLACES:
            left = at[0] + dx * scale - {"left": 0, "center": wide / 2, "right": wide}[align]
            box = Bbox.from_extents(left, at[1] + dy * scale - tall / 2, left + wide, at[1] + dy * scale + tall / 2)
            if box.x0 >= frame.x0 and box.x1 <= frame.x1 and not any(box.overlaps(other) for other in taken):
                taken.append(box)
                given: dict[str, Any] = {"textcoords": "offset points", "va": "center", "fontsize": 8.5, "zorder": 4}
                verbatim(axes.annotate(text, (x, y), xytext=(dx, dy), ha=align, color=ink, **given))
                break


def set_ticks(axes: Axes, places: Sequence[float], labels: Sequence[str]) -> None:
    """Ticks of the x axis at these places only."""
    from matplotlib.ticker import NullLocator

    axes.set_xticks(list(places), list(labels))
    axes.xaxis.set_minor_locator(NullLocator())


def new_figure(width: float, height: float) -> Figure:
    """A figure of so many inches, made without pyplot."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), facecolor=PAPER, layout="constrained")


def style_axes(axes: Axes) -> None:
    """A faint grid behind, no frame at the top and right."""
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(SOFT)
    axes.tick_params(labelsize=9, labelcolor=INK, color=SOFT)
    for label in (axes.xaxis.label, axes.yaxis.label):
        label.set(size=9.5, color=INK)


def count_ticks(axis: Any) -> None:
    """Ticks as 5 M, 10 M."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axis.set_major_locator(MaxNLocator(6))
    axis.set_major_formatter(FuncFormatter(lambda x, _: brief(short(x))))


def caption(figure: Figure, title: str, note: str, *, letters: int = 62) -> None:
    """Above: as wide as leaves room for a legend at the right. Below: what the marks mean."""
    lines = "\n".join(textwrap.wrap(title, letters)[:3]) or "Study"
    verbatim(figure.suptitle(lines, x=0.01, ha="left", fontsize=12, color=INK))
    verbatim(figure.supxlabel(note, x=0.01, ha="left", fontsize=8, color=SOFT))


def fit_name(name: str, most: int = NAME) -> str:
    """A variant's name on one line, cut in the middle where it is too long: its ends are what differs."""
    flat = " ".join(name.split())
    half = (most - 3) // 2
    return flat if len(flat) <= most else f"{flat[:half]}...{flat[-half:]}"


def verbatim(*texts: Any) -> None:
    """Texts of the user are no formulas: a dollar sign stays one."""
    for text in texts:
        text.set_parse_math(False)
