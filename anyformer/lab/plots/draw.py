"""Plots of a study as PNG and SVG files: learning curves, final values, decode costs, evaluation lengths, sweeps.

Each figure is made without pyplot: no window system is asked, and nothing is left behind in global state.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.lab.plots import palette
from anyformer.lab.plots.figure import (
    caption,
    count_ticks,
    fit_name,
    label_points,
    new_figure,
    robust_span,
    save_figure,
    set_ticks,
    style_axes,
    verbatim,
)  # fmt: skip
from anyformer.lab.plots.palette import BETTER, INK, PAPER, SOFT, WORSE, Style
from anyformer.lab.results import Results, VariantResult, higher_is_better
from anyformer.lab.statistics import curves, series
from anyformer.lab.statistics.curves import Axis, Band
from anyformer.lab.statistics.pairing import is_speed
from anyformer.lab.statistics.verdict import amount, half
from anyformer.train.report.chart import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

FORMATS = ("png", "svg")
MOST_LINES = 9
"""Lines that can be told apart in one plot; of more, the best and the worst are shown and the others are faint."""
FAINT = "#c3c9d4"
OUTCOMES = {"better": BETTER, "worse": WORSE}


def draw_all(results: Results, folder: Path) -> list[Path]:
    """Write every plot that the data allow into a folder, each as PNG and SVG; the files that were written."""
    written: list[Path] = []
    folder.mkdir(parents=True, exist_ok=True)
    for name, figure in figures(results):
        written += [save_figure(figure, folder, name, form) for form in FORMATS]
    return written


def figures(results: Results) -> Iterator[tuple[str, Figure]]:
    """The figures that the data allow, with the names of their files."""
    for axis in curves.axes(results):
        yield f"loss-by-{axis}", curves_figure(results, axis)
    if series.finals(results):
        yield "final", finals_figure(results)
    if series.costs(results):
        yield "quality-by-decode-cost", costs_figure(results)
    if series.by_length(results):
        yield "loss-by-length", lengths_figure(results)
    for sweep in series.sweeps(results):
        yield f"sweep-{sweep.key}", sweep_figure(results, sweep)


def curves_figure(results: Results, axis: Axis) -> Figure:
    """Held-out loss over an axis, and below it the difference from the base; bands are from lowest to highest seed."""
    bands = {each.name: found for each in results.variants if (found := curves.band(each, axis)) is not None}
    base = next((each for each in results.variants if each.name == results.base and each.name in bands), None)
    apart: dict[str, Band] = {}
    for each in results.variants if base is not None else ():
        found = curves.difference(each, base, axis) if each is not base and base is not None else None
        if found is not None and len(found.x) > 1:
            apart[each.name] = found
    shown = _shown(results, bands)
    unfinished = [each.name for each in results.variants if each.name not in bands and _has_curve(each, axis)]
    looks = palette.styles(results, [*shown, *unfinished])
    figure = new_figure(10.5, 6.6 if apart else 4.4)
    heights = [3, 2] if apart else [1]
    grid: Any = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)[:, 0]
    for axes, drawn in zip(grid, (bands, apart), strict=False):
        style_axes(axes)
        _lines(axes, drawn, looks, shown)
    _lost_runs(grid[0], results, axis, {name: looks[name].ink for name in (*shown, *unfinished)})
    grid[0].set_ylabel("held-out loss (nats per token)")
    if (limits := curves.span(list(bands.values()))) is not None:
        grid[0].set_ylim(*limits)
    if apart:
        grid[1].axhline(0, color=INK, linewidth=1.4, zorder=2.5)
        grid[1].set_ylabel("difference from the base")
        if (limits := curves.close_span(list(apart.values()))) is not None:
            grid[1].set_ylim(*limits)
    right = max((float(each.x[-1]) for each in bands.values()), default=None)
    grid[-1].set(xlabel=curves.WORDS[axis], xlim=(0, right))
    count_ticks(grid[-1].xaxis)
    _legend(figure, results, axis, bands, apart, shown, unfinished)
    seeds = max((each.seeds for each in bands.values()), default=0)
    note = f"mean of up to {seeds} seeds; bands: lowest to highest seed" if seeds > 1 else "one seed"
    caption(figure, results.title, note)
    return figure


def _has_curve(variant: VariantResult, axis: Axis) -> bool:
    return any(curves.curve(variant, run, axis) is not None for run in variant.runs)


def _shown(results: Results, bands: dict[str, Band]) -> list[str]:
    """Names of the variants that are drawn in colour, the best first: all, or base, best and worst of very many."""
    ranked = [each.name for each in series.finals(results, "loss") if each.name in bands]
    ranked += sorted((name for name in bands if name not in ranked), key=lambda name: float(bands[name].mean[-1]))
    if len(ranked) <= MOST_LINES:
        return ranked
    others = [name for name in ranked if name != results.base]
    kept = {results.base, *others[: MOST_LINES - 4], *others[-2:]}
    return [name for name in ranked if name in kept]


def _lines(axes: Axes, bands: dict[str, Band], looks: Mapping[str, Style], shown: Sequence[str]) -> None:
    for name, each in bands.items():
        if name not in shown:
            axes.plot(each.x, each.mean, color=FAINT, linewidth=0.9, zorder=1.5)
            continue
        look = looks[name]
        if each.seeds > 1:
            axes.fill_between(each.x, each.low, each.high, color=look.ink, alpha=0.10, linewidth=0, zorder=1.8)
        axes.plot(each.x, each.mean, color=look.ink, linewidth=1.7, dashes=look.dashes or (None, None), zorder=3)


def _lost_runs(axes: Axes, results: Results, axis: Axis, inks: Mapping[str, str]) -> None:
    """Runs that did not finish, up to where they came."""
    for variant in results.variants:
        for run in variant.lost:
            found = curves.curve(variant, run, axis)
            if found is not None:
                ink = inks.get(variant.name, FAINT)
                axes.plot(found.x, found.y, color=ink, linewidth=0.8, alpha=0.7, zorder=2)
                axes.plot(found.x[-1:], found.y[-1:], "x", color=ink, markersize=6, zorder=3)


def _legend(
    figure: Figure,
    results: Results,
    axis: Axis,
    bands: Mapping[str, Band],
    apart: Mapping[str, Band],
    shown: Sequence[str],
    unfinished: Sequence[str],
) -> None:
    """Beside the plots, so that it covers nothing, in the order of the final values."""
    from matplotlib.lines import Line2D

    looks, handles = palette.styles(results, [*shown, *unfinished]), []
    for name in shown:
        ends = "" if name not in apart else f" ({apart[name].mean[-1]:+.3f})"
        lost = len(results.variant(name).lost)
        label = f"{fit_name(name)}\n{bands[name].mean[-1]:.3f}{ends}{f', {lost} lost' if lost else ''}"
        look: dict[str, Any] = {"color": looks[name].ink, "dashes": looks[name].dashes or (None, None)}
        handles.append(Line2D([], [], linewidth=1.9, label=label, **look))
    run: dict[str, Any] = {"linewidth": 0.8, "marker": "x"}
    handles += [
        Line2D([], [], color=looks[name].ink, label=f"{fit_name(name)}\nno run finished", **run) for name in unfinished
    ]
    if len(bands) > len(shown):
        handles.append(Line2D([], [], color=FAINT, linewidth=1.2, label=f"{len(bands) - len(shown)} others"))
    if any(results.variant(name).lost for name in shown):
        handles.append(Line2D([], [], color=SOFT, label="run that did not finish", **run))
    # Runs of other lengths end elsewhere: the two numbers of a line are then not at the same place.
    title = "at the end" + (f" (minus base at equal {axis})" if apart else "")
    legend = figure.legend(
        handles=handles, loc="outside right upper", frameon=False, fontsize=8.5, labelspacing=0.7, handlelength=3.4,
        alignment="left", title=title, title_fontsize=8.5,
    )  # fmt: skip
    verbatim(*legend.get_texts())


def finals_figure(results: Results, metric: str | None = None) -> Figure:
    """The final metric of each variant with its 95% interval, its seeds as small dots, and what the test says of it."""
    metric = metric or results.metric
    rows, lacking = series.finals(results, metric), series.missing(results, metric)
    figure = new_figure(10.5, 1.5 + 0.34 * max(3, len(rows) + len(lacking)))
    axes = figure.subplots()
    style_axes(axes)
    axes.grid(visible=False, axis="y")
    low, high = robust_span([each.estimate.mean for each in rows], [v for each in rows for v in _extent(each)])
    base = next((row.estimate.mean for row in rows if row.name == results.base), None)
    if base is not None:
        axes.axvline(base, color=INK, linewidth=1, dashes=(4, 3), zorder=1.5)
    for place, row in enumerate(rows):
        said, mean = row.comparison, row.estimate.mean
        ink = INK if said is None else OUTCOMES.get(said.outcome, SOFT)
        if row.estimate.low is not None and row.estimate.high is not None:
            axes.plot((row.estimate.low, row.estimate.high), (place, place), color=ink, linewidth=1, zorder=2)
        if (ends := series.around_base(row, base)) is not None:
            axes.plot(ends, (place, place), color=ink, linewidth=4.5, alpha=0.45, solid_capstyle="butt", zorder=2)
        dots: dict[str, Any] = {"color": ink, "markersize": 2.8, "alpha": 0.75, "zorder": 2.5}
        axes.plot(list(row.values.values()), [place + 0.27] * len(row.values), "o", **dots)
        inside = min(max(mean, low), high)
        mark = ("D" if said is None else "o") if inside == mean else ">" if mean > high else "<"
        filled = ink if said is None or said.marked else PAPER
        axes.plot(
            [inside], [place], mark, color=ink, markersize=7, markerfacecolor=filled, markeredgewidth=1.6, zorder=3,
            clip_on=False,
        )  # fmt: skip
        _beside(axes, place, row, beyond=inside != mean)
    for place, words in enumerate(lacking.values(), len(rows)):
        _words(axes, place, words, SOFT)
    names = [*(row.name for row in rows), *lacking]
    axes.set_yticks(range(len(names)))
    verbatim(*axes.set_yticklabels([fit_name(name) for name in names]))
    axes.set(xlim=(low, high), ylim=(len(names) - 0.5, -0.5), xlabel=series.words(metric))
    axes.tick_params(axis="y", length=0, labelcolor=INK)
    better = "higher is better" if higher_is_better(metric) else "lower is better"
    note = (
        f"{better}; thin: 95% interval of the mean, dots: {'rounds' if is_speed(results, metric) else 'seeds'}; thick: "
        + (
            "corrected interval of the paired difference from the base; filled, and clear of the dashed line: it differs"
        )
    )
    caption(figure, results.title, note)
    return figure


def _extent(row: series.Final) -> list[float]:
    ends = (row.estimate.low, row.estimate.high, *row.values.values())
    return [value for value in ends if value is not None]


def _beside(axes: Axes, place: int, row: series.Final, *, beyond: bool) -> None:
    """Right of a row: the difference from the base, and in words what may be said of it."""
    said = row.comparison
    if said is None:
        text = "base"
    else:
        size, step = said.difference, half(said.simultaneous)
        shown = "" if size is None else amount(size, step or size, speed=said.speed, sign=True)
        text = f"{shown}  {row.lost or said.outcome}".strip()
    if beyond:
        text = f"{plain(row.estimate.mean)}  {text}"
    ink = INK if said is None else OUTCOMES.get(said.outcome, SOFT)
    _words(axes, place, text, ink, bold=said is not None and said.marked)


def _words(axes: Axes, place: int, text: str, ink: str, *, bold: bool = False) -> None:
    axes.annotate(
        text, (1.01, place), xycoords=("axes fraction", "data"), va="center", fontsize=8.5, color=ink,
        fontweight="bold" if bold else "normal", annotation_clip=False,
    )  # fmt: skip


def costs_figure(results: Results) -> Figure:
    """Quality against what decoding costs: tokens per second, and bytes of the KV cache."""
    found = series.costs(results)
    rows = {each.name: each for each in series.finals(results)}
    figure = new_figure(6.2 * len(found) if len(found) > 1 else 8.0, 5.0)
    for axes, cost in zip(figure.subplots(1, len(found), sharey=True, squeeze=False)[0], found, strict=True):
        style_axes(axes)
        shown = set(cost.points)
        if len(shown) > MOST_LINES:
            shown = {*series.front(results, cost), results.base}
        labels, looks = [], palette.styles(results, shown)
        for name, (middle, low, high) in cost.points.items():
            look, mean, faint = looks[name], rows[name].estimate, name not in shown
            ink = FAINT if faint else look.ink
            given: dict[str, Any] = {"color": ink, "linewidth": 1, "alpha": 0.6, "zorder": 2}
            axes.plot((low, high), (mean.mean, mean.mean), **given)
            if mean.low is not None and mean.high is not None:
                axes.plot((middle, middle), (mean.low, mean.high), **given)
            size = 5 if faint else 11 if look.mark < 0 else 7
            axes.plot([middle], [mean.mean], "o" if faint else look.marker, color=ink, markersize=size, zorder=3)
            labels += [] if faint else [(middle, mean.mean, name, ink)]
        low, high = robust_span(
            [rows[name].estimate.mean for name in cost.points], [v for row in rows.values() for v in _extent(row)]
        )
        axes.set(ylim=(low, high), xlabel=series.words(cost.key))
        axes.margins(x=0.14)
        count_ticks(axes.xaxis)
        label_points(figure, axes, labels, first=results.base)
    figure.axes[0].set_ylabel(series.words(results.metric))
    better = "upper" if higher_is_better(results.metric) else "lower"
    note = f"{better} is better; more tokens per second and fewer bytes are better; bars: 95% interval, range of rounds"
    if any(len(cost.points) > MOST_LINES for cost in found):
        note += "; named: base and those that no other one beats in both"
    caption(figure, results.title, note, letters=62 * len(found))
    return figure


def lengths_figure(results: Results) -> Figure:
    """Held-out loss over the length of the evaluated rows, one line for each variant."""
    lines = series.by_length(results)
    figure = new_figure(10.5, 4.8)
    axes = figure.subplots()
    style_axes(axes)
    axes.set_xscale("log", base=2)
    ranked = sorted(lines, key=lambda line: line.y[-1].mean)
    kept = ranked if len(ranked) <= MOST_LINES else [*ranked[: MOST_LINES - 3], *ranked[-2:]]
    kept += [line for line in ranked if line.label == results.base and line not in kept]
    looks = palette.styles(results, [line.label for line in kept])
    handles = [_points(axes, line, looks[line.label]) for line in kept]
    for line in ranked:
        if line not in kept:
            axes.plot(line.x, [point.mean for point in line.y], color=FAINT, linewidth=0.9, zorder=1.5)
    every = sorted({x for line in lines for x in line.x})
    ticks = every[:: math.ceil(len(every) / 8)]
    set_ticks(axes, ticks, [f"{x:,.0f}" for x in ticks])
    # Beyond the length of training a loss may explode: what stays low is what is asked about.
    axes.set_ylim(*robust_span([point.mean for line in lines for point in line.y], _ends(lines)))
    axes.set(xlabel="length of evaluated rows (tokens)", ylabel="held-out loss (nats per token)")
    _key(figure, handles, f"{len(ranked) - len(kept)} others" if len(ranked) > len(kept) else "")
    caption(figure, results.title, "order of the legend: by the loss at the longest; bars: 95% intervals of the mean")
    return figure


def sweep_figure(results: Results, sweep: series.Sweep) -> Figure:
    """The metric over a number that was varied, one line for each combination of the other changes."""
    figure = new_figure(10.5, 4.8)
    axes = figure.subplots()
    style_axes(axes)
    if sweep.log:
        axes.set_xscale("log")
    lines = sweep.lines[:MOST_LINES]
    handles = [_points(axes, line, palette.style(place)) for place, line in enumerate(lines)]
    ticks = sorted({x for line in sweep.lines for x in line.x})
    if len(ticks) <= 12:
        set_ticks(axes, ticks, [plain(x) for x in ticks])
    values = [point.mean for line in lines for point in line.y]
    if sweep.base is not None:
        values.append(sweep.base.mean)
        axes.axhline(sweep.base.mean, color=INK, linewidth=1.2, dashes=(4, 3))
        verbatim(
            axes.annotate(
                fit_name(results.base, 20), (1, sweep.base.mean), xycoords=("axes fraction", "data"), xytext=(4, 0),
                textcoords="offset points", fontsize=8.5, color=INK, va="center", annotation_clip=True,
            )
        )  # fmt: skip
    axes.set_ylim(*robust_span(values, _ends(lines)))
    axes.set_ylabel(series.words(results.metric))
    verbatim(axes.set_xlabel(f"{sweep.key}{', log scale' if sweep.log else ''}"))
    left = len(sweep.lines) - len(lines)
    if len(sweep.lines) > 1 or sweep.lines[0].label:
        _key(figure, handles, f"{left} more, not drawn" if left else "")
    caption(figure, results.title, "bars: 95% intervals of the mean over seeds")
    return figure


def _ends(lines: Sequence[series.Line]) -> list[float]:
    return [end for line in lines for point in line.y for end in (point.low, point.high) if end is not None]


def _points(axes: Axes, line: series.Line, look: Style) -> Any:
    """A line with markers and intervals; what a legend shows of it."""
    for x, point in zip(line.x, line.y, strict=True):
        if point.low is not None and point.high is not None:
            axes.plot((x, x), (point.low, point.high), color=look.ink, linewidth=1, alpha=0.6, zorder=2)
    return axes.plot(
        line.x, [point.mean for point in line.y], color=look.ink, marker=look.marker, linewidth=1.6, zorder=3,
        markersize=9 if look.mark < 0 else 5.5, dashes=look.dashes or (None, None),
        label=fit_name(line.label or "no other change"),
    )[0]  # fmt: skip


def _key(figure: Figure, handles: Sequence[Any], others: str) -> None:
    """A legend of lines with markers, beside the plot."""
    from matplotlib.lines import Line2D

    more = [Line2D([], [], color=FAINT, label=others)] if others else []
    place: dict[str, Any] = {"loc": "outside right upper", "frameon": False, "fontsize": 8.5, "handlelength": 3.4}
    verbatim(*figure.legend(handles=[*handles, *more], **place).get_texts())
