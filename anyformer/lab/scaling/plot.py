"""The picture of a study of scale: losses over compute with their laws, extended; and losses over learning rates."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.lab.plots import palette
from anyformer.lab.plots.draw import FORMATS
from anyformer.lab.plots.figure import caption, fit_name, new_figure, save_figure, style_axes, verbatim
from anyformer.lab.plots.palette import SOFT, Style
from anyformer.lab.results import BASE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from anyformer.lab.scaling.scale_study import Ladder, Scaling

NAME = "scaling"
PLACES = 80
"""Points of a drawn law."""


def draw_scaling(found: Scaling, title: str, folder: Path) -> list[Path]:
    """Write scaling.png and scaling.svg; the files that were written."""
    folder.mkdir(parents=True, exist_ok=True)
    figure = scaling_figure(found, title)
    return [save_figure(figure, folder, NAME, form) for form in FORMATS]


def scaling_figure(found: Scaling, title: str) -> Figure:
    """Every run as a dot, the law of each choice with its 95% interval, dashed beyond the sizes that were trained."""
    figure = new_figure(10.5, 5.4)
    axes = figure.subplots()
    style_axes(axes)
    axes.set(xscale="log", yscale="log", xlabel="training compute (FLOPs)", ylabel="held-out loss (nats per token)")
    handles = [_ladder(axes, ladder, _style(i), found.at) for i, ladder in enumerate(found.ladders)]
    _loss_axis(axes, found)
    if any(ladder.fit is not None for ladder in found.ladders):
        axes.axvline(found.at, color=SOFT, linewidth=1, dashes=(2, 3), zorder=1.5)
    if handles:
        place: dict[str, Any] = {"loc": "outside right upper", "frameon": False, "fontsize": 8.5}
        verbatim(*figure.legend(handles=handles, **place).get_texts())
    note = "dots: runs; lines: fitted laws, dashed beyond the largest size; bands: 95% intervals of the mean"
    caption(figure, title, note)
    return figure


def _style(place: int) -> Style:
    return Style(colour=-1, dash=0, mark=-1) if place == 0 else palette.style(place - 1)


def _ladder(axes: Axes, ladder: Ladder, look: Style, at: float) -> Any:
    """The runs and the law of a choice; what a legend shows of it."""
    name = fit_name(ladder.choice or BASE)
    points = ladder.points
    dots: dict[str, Any] = {"color": look.ink, "alpha": 0.75, "zorder": 3, "markersize": 8 if look.mark < 0 else 5}
    axes.plot([each.compute for each in points], [each.loss for each in points], look.marker, **dots)
    law, label = ladder.fit, name
    if law is not None:
        first, last = law.rungs[0].compute, max(at, law.largest)
        ends = math.log(first), math.log(last)
        places = [math.exp(ends[0] + (ends[1] - ends[0]) * i / (PLACES - 1)) for i in range(PLACES)]
        means, lows, highs = zip(*map(law.predict, places), strict=True)
        axes.fill_between(places, lows, highs, color=look.ink, alpha=0.10, linewidth=0, zorder=1.8)
        inside = [i for i, place in enumerate(places) if place <= law.largest * (1 + 1e-9)]
        beyond = range(inside[-1], PLACES)
        axes.plot([places[i] for i in inside], [means[i] for i in inside], color=look.ink, linewidth=1.8, zorder=2.5)
        axes.plot(
            [places[i] for i in beyond], [means[i] for i in beyond], color=look.ink, linewidth=1.4, dashes=(4, 3), zorder=2.5
        )  # fmt: skip
        low, high = law.intervals["exponent"]
        label = f"{name}\nexponent {law.exponent:.3g} ({low:.2g} to {high:.2g})"
    from matplotlib.lines import Line2D

    return Line2D([], [], color=look.ink, marker=look.marker, linewidth=1.8 if law else 0, label=label)


def _loss_axis(axes: Axes, found: Scaling) -> None:
    """Room for runs and laws, not for all that a law may be off by; and plain numbers, as there is hardly a decade."""
    from matplotlib.ticker import FuncFormatter, MaxNLocator, NullFormatter, NullLocator

    laws = [law for ladder in found.ladders if (law := ladder.fit) is not None]
    losses = [point.loss for ladder in found.ladders for point in ladder.points]
    losses += [law.predict(at)[0] for law in laws for at in (law.rungs[0].compute, found.at)]
    if losses:
        air = (max(losses) / min(losses)) ** 0.15 * 1.01
        axes.set_ylim(min(losses) / air, max(losses) * air)
        if max(losses) < 10 * min(losses):
            axes.yaxis.set_major_locator(MaxNLocator(6))
            axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:.3g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
