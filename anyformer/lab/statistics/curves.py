"""Learning curves over tokens, FLOPs or time: means over seeds, and paired differences from the base."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from anyformer.lab.results import Results, RunResult, VariantResult

Axis = Literal["tokens", "flops", "time"]
AXES: tuple[Axis, ...] = ("tokens", "flops", "time")
WORDS = {"tokens": "training tokens", "flops": "training FLOPs", "time": "seconds in training steps"}
SETTLED = 0.1
"""The share of a curve after which its values say where to look: before it every loss falls from the same height."""


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Losses of one run, at steps that grow."""

    steps: NDArray[np.float64]
    x: NDArray[np.float64]
    y: NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Band:
    """The mean over seeds, and the lowest and the highest of them."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    seeds: int

    def settled(self) -> NDArray[np.bool_]:
        """Which points come after the first steep fall."""
        return self.x >= SETTLED * self.x[-1]


def curve(variant: VariantResult, run: RunResult, axis: Axis) -> Curve | None:
    """A run's held-out loss over an axis; None where it has no points, or no such axis."""
    along = _along(variant, run, axis)
    points = {step: (along(step, tokens), loss) for step, tokens, loss in run.curve if _sound(loss)} if along else {}
    if not points:
        return None
    steps = sorted(points)
    x, y = zip(*(points[step] for step in steps), strict=True)
    return Curve(steps=np.array(steps, float), x=np.array(x, float), y=np.array(y, float))


def _sound(loss: float | None) -> bool:
    # A loss that was not finite is stored as None.
    return loss is not None and math.isfinite(loss)


def _along(variant: VariantResult, run: RunResult, axis: Axis) -> Callable[[int, int], float] | None:
    """How far a step is along an axis."""
    if axis == "tokens":
        return lambda _, tokens: float(tokens)
    # A run that stopped early spent its seconds on the steps that it did; FLOPs are those of a whole run.
    whole, steps = (run.seconds, run.steps) if axis == "time" else (variant.train_flops, variant.steps)
    each = whole / steps if steps > 0 else 0.0
    return (lambda step, _: step * each) if each > 0 else None


def finished(variant: VariantResult, axis: Axis) -> dict[int, Curve]:
    """Curves by seed, of the runs that finished."""
    found = ((run.seed, curve(variant, run, axis)) for run in variant.runs if run.status == "finished")
    return {seed: each for seed, each in found if each is not None}


def axes(results: Results) -> list[Axis]:
    """The axes that any two points can be drawn over."""

    def drawn(axis: Axis) -> bool:
        runs = ((variant, run) for variant in results.variants for run in variant.runs)
        return any(len(found.x) > 1 for each in runs if (found := curve(*each, axis)) is not None)

    return [axis for axis in AXES if drawn(axis)]


def band(variant: VariantResult, axis: Axis) -> Band | None:
    """A variant's mean curve, over the runs that finished; None where none has a curve."""
    curves = list(finished(variant, axis).values())
    if not curves:
        return None
    # Seeds are averaged at equal steps; the time at which they get there differs, and is averaged too.
    steps = _common([each.steps for each in curves])
    rows = np.stack([np.interp(steps, each.steps, each.y) for each in curves])
    x = np.stack([np.interp(steps, each.steps, each.x) for each in curves]).mean(0)
    return _band(x, rows)


def difference(variant: VariantResult, base: VariantResult, axis: Axis) -> Band | None:
    """How far a variant's loss is above the base's at the same x, seed by seed; None where no seed has both."""
    ours, theirs = finished(variant, axis), finished(base, axis)
    pairs = [(ours[seed], theirs[seed]) for seed in ours if seed in theirs]
    if not pairs:
        return None
    x = _common([each.x for pair in pairs for each in pair])
    if len(x) == 0:
        return None
    rows = np.stack([np.interp(x, a.x, a.y) - np.interp(x, b.x, b.y) for a, b in pairs])
    return _band(x, rows)


def _common(grids: Sequence[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Points of the first grid at which all of them have values, without going beyond anyone's ends."""
    first = grids[0]
    low, high = max(grid[0] for grid in grids), min(grid[-1] for grid in grids)
    # Where ends differ, what all have still reaches to the very ends.
    inner = first[(first > low) & (first < high)]
    return np.concatenate([[low], inner, [high]]) if low < high else np.array([low] if low == high else [])


def _band(x: NDArray[np.float64], rows: NDArray[np.float64]) -> Band:
    return Band(x=x, mean=rows.mean(0), low=rows.min(0), high=rows.max(0), seeds=len(rows))


def thin(count: int, most: int) -> list[int]:
    """At most so many places out of a number of them, the first and the last included."""
    if count <= most:
        return list(range(count))
    return sorted({round(i * (count - 1) / (most - 1)) for i in range(most)})


def span(bands: Sequence[Band]) -> tuple[float, float] | None:
    """From the lowest to the highest mean after the first steep fall, with some air; None of nothing."""
    values = np.concatenate([each.mean[each.settled()] for each in bands]) if bands else np.array([])
    if len(values) == 0:
        return None
    low, high = float(values.min()), float(values.max())
    air = 0.06 * (high - low) or 0.05 * abs(high) or 1.0
    return low - air, high + air


def close_span(bands: Sequence[Band]) -> tuple[float, float] | None:
    """A span around zero of differences that does not follow those that are far beyond the usual one."""
    ends = sorted(abs(float(each.mean[-1])) for each in bands)
    usual = ends[len(ends) // 2] if ends else 0.0
    near = [each for each in bands if abs(float(each.mean[-1])) <= 6 * usual]
    found = span(near)
    if found is None:
        return None
    low, high = min(found[0], 0.0), max(found[1], 0.0)
    air = 0.06 * (high - low) or 1e-3
    return low - air, high + air
