"""What the page's script draws, as plain data: each list of numbers once, curves thinned, values rounded."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from anyformer.files import finite
from anyformer.lab.plots import palette
from anyformer.lab.results import Results, higher_is_better
from anyformer.lab.statistics import curves, series
from anyformer.lab.statistics.curves import Axis, Band
from anyformer.lab.statistics.estimates import Estimate
from anyformer.lab.statistics.table import difference_words, estimate_words
from anyformer.lab.statistics.verdict import metric_words

POINTS = 120
"""Of a curve, at most."""
APART_POINTS = 60
"""Of a curve of differences, which there is one of for each axis."""
SHOWN = 9
"""Variants that are shown at first; of more, the base, the best and the worst."""
METRICS = 16
"""Metrics that final values can be shown of."""


@dataclass(frozen=True)
class Grids:
    """Lists of numbers that many curves share, each stored once."""

    lists: list[list[float]] = field(default_factory=list)
    places: dict[tuple[float, ...], int] = field(default_factory=dict)

    def place(self, values: Iterable[float]) -> int:
        """The number of a list; equal lists have one."""
        rounded = tuple(float(f"{value:.6g}") for value in values)
        if rounded not in self.places:
            self.places[rounded] = len(self.lists)
            self.lists.append([int(value) if value.is_integer() and abs(value) < 1e9 else value for value in rounded])
        return self.places[rounded]


def plot_data(results: Results) -> dict[str, Any]:
    """Everything that is drawn, ready for JSON."""
    grids, axes, ranked = Grids(), curves.axes(results), _ranked(results)
    number = {variant.name: place for place, variant in enumerate(results.variants)}
    apart = {axis: _apart(results, axis, grids, number) for axis in axes}
    return finite({
        "variants": _variants(results, ranked),
        "base": number.get(results.base),
        "dashes": [" ".join(f"{2 * length:g}" for length in dash) for dash in palette.DASHES],
        "axes": {axis: curves.WORDS[axis] for axis in axes},
        "bands": _bands(results, axes, grids, number),
        "apart": apart if any(apart.values()) else {},
        "runs": _runs(results, axes, grids, number),
        "finals": _finals(results, number),
        "costs": _costs(results, number),
        "lengths": [_line(line, number[line.label]) for line in series.by_length(results)],
        "sweeps": [_sweep(sweep) for sweep in series.sweeps(results)],
        "metric": series.words(results.metric),
        "higher": higher_is_better(results.metric),
        # Filled by what comes before it.
        "grids": grids.lists,
    })  # fmt: skip


def _ranked(results: Results) -> list[str]:
    """Names, the best first, and those without a value last."""
    found = [each.name for each in series.finals(results)]
    return found + [variant.name for variant in results.variants if variant.name not in found]


def shown_first(results: Results) -> set[str]:
    """The variants whose curves a page shows at first."""
    ranked = _ranked(results)
    if len(ranked) <= SHOWN:
        return set(ranked)
    others = [name for name in ranked if name != results.base]
    return {results.base, *others[: SHOWN - 4], *others[-2:]}


def _variants(results: Results, ranked: Sequence[str]) -> list[dict[str, Any]]:
    shown = shown_first(results)
    looks = palette.styles(results, shown)
    return [
        {
            "name": each.name, "colour": looks[each.name].colour, "dash": looks[each.name].dash,
            "mark": looks[each.name].mark, "shown": each.name in shown, "rank": ranked.index(each.name),
        }
        for each in results.variants
    ]  # fmt: skip


def _bands(results: Results, axes: Sequence[Axis], grids: Grids, number: Mapping[str, int]) -> list[dict[str, Any]]:
    found = []
    for variant in results.variants:
        by_axis = {axis: band for axis in axes if (band := curves.band(variant, axis)) is not None}
        if not by_axis:
            continue
        first = next(iter(by_axis.values()))
        kept = curves.thin(len(first.x), POINTS)
        x = {axis: grids.place(band.x[kept].tolist()) for axis, band in by_axis.items()}
        found.append({"v": number[variant.name], "x": x, "seeds": first.seeds, **_spread(first, kept)})
    return found


def _spread(band: Band, kept: Sequence[int]) -> dict[str, list[float]]:
    rows = {"y": band.mean} | ({"low": band.low, "high": band.high} if band.seeds > 1 else {})
    return {name: [round(float(values[i]), 4) for i in kept] for name, values in rows.items()}


def _apart(results: Results, axis: Axis, grids: Grids, number: Mapping[str, int]) -> list[dict[str, Any]]:
    base = next((variant for variant in results.variants if variant.name == results.base), None)
    found = []
    for variant in results.variants if base is not None else ():
        if variant is base or base is None or (band := curves.difference(variant, base, axis)) is None:
            continue
        kept = curves.thin(len(band.x), APART_POINTS)
        x = grids.place(band.x[kept].tolist())
        found.append({"v": number[variant.name], "x": x, "seeds": band.seeds, **_spread(band, kept)})
    return found


def _runs(results: Results, axes: Sequence[Axis], grids: Grids, number: Mapping[str, int]) -> list[dict[str, Any]]:
    found = []
    for variant in results.variants:
        for run in variant.runs:
            by_axis = {axis: each for axis in axes if (each := curves.curve(variant, run, axis)) is not None}
            if not by_axis:
                continue
            first = next(iter(by_axis.values()))
            kept = curves.thin(len(first.x), POINTS)
            one: dict[str, Any] = {"v": number[variant.name], "seed": run.seed}
            if run.status != "finished":
                one["lost"] = run.status
            # What is proportional to the steps needs no list of its own.
            one["step"] = grids.place(first.steps[kept].tolist())
            one["x"] = {axis: _along(each, kept, grids) for axis, each in by_axis.items()}
            found.append(one | {"y": [round(float(first.y[i]), 4) for i in kept]})
    return found


def _along(curve: curves.Curve, kept: Sequence[int], grids: Grids) -> dict[str, float] | int:
    """Either how much each step adds, or the number of a list."""
    each = curve.x[-1] / curve.steps[-1] if curve.steps[-1] else 0.0
    if abs(curve.x - each * curve.steps).max() <= 1e-9 * abs(curve.x).max():
        return {"each": float(f"{each:.6g}")}
    return grids.place(curve.x[kept].tolist())


def metrics(results: Results) -> list[str]:
    """What final values can be shown of: the metric of the study first, then others, then speeds."""
    names = dict.fromkeys([results.metric])
    names |= dict.fromkeys(name for variant in results.variants for run in variant.runs for name in run.metrics)
    names |= dict.fromkeys(name for variant in results.variants for name in variant.speeds)
    return [name for name in names if series.finals(results, name)][:METRICS]


def _finals(results: Results, number: Mapping[str, int]) -> list[dict[str, Any]]:
    found = []
    for metric in metrics(results):
        rows = series.finals(results, metric)
        base = next((row.estimate.mean for row in rows if row.name == results.base), None)
        points = [_final(row, base) | {"v": number[row.name]} for row in rows]
        lacking = [{"v": number[name], "words": words} for name, words in series.missing(results, metric).items()]
        title = {"metric": metric, "name": metric_words(metric), "words": series.words(metric)}
        found.append(title | {"higher": higher_is_better(metric), "base": base, "rows": points, "missing": lacking})
    return found


def _final(row: series.Final, base: float | None) -> dict[str, Any]:
    said = row.comparison
    return _point(row.estimate) | {
        "values": [[seed, _round(value)] for seed, value in row.values.items()],
        "ends": series.around_base(row, base),
        "words": estimate_words(row.estimate),
        "difference": difference_words(said),
        "outcome": "base" if said is None else said.outcome,
        "reason": "" if said is None else said.reason,
        "lost": row.lost,
    }


def _point(found: Estimate) -> dict[str, float | None]:
    return {"y": _round(found.mean), "low": _round(found.low), "high": _round(found.high)}


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.7g}")


def _costs(results: Results, number: Mapping[str, int]) -> list[dict[str, Any]]:
    rows = {row.name: row.estimate for row in series.finals(results)}
    found = []
    for cost in series.costs(results):
        front = series.front(results, cost)
        points = [
            {"v": number[name], "x": [_round(each) for each in spread], "front": name in front, **_point(rows[name])}
            for name, spread in cost.points.items()
        ]
        found.append({"key": cost.key, "words": series.words(cost.key), "points": points})
    return found


def _line(line: series.Line, v: int | None = None) -> dict[str, Any]:
    points = [_point(estimate) for estimate in line.y]
    numbers = {name: [point[name] for point in points] for name in ("y", "low", "high")}
    return {
        "v": v,
        "label": line.label,
        "x": [_round(x) for x in line.x],
        **numbers,
    }


def _sweep(sweep: series.Sweep) -> dict[str, Any]:
    lines = [
        _line(line) | {"colour": look.colour, "dash": look.dash, "mark": look.mark}
        for line, look in zip(sweep.lines, map(palette.style, range(len(sweep.lines))), strict=True)
    ]
    base = None if sweep.base is None else _point(sweep.base)
    return {"key": sweep.key, "log": sweep.log, "base": base, "lines": lines}
