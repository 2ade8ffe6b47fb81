"""Two variants on one metric: their paired difference with the variance to judge it by, or why there is none."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from anyformer.lab.results import Results, VariantResult
from anyformer.lab.statistics.estimates import (
    Interval,
    Paired,
    Values,
    mean,
    paired,
    pool,
    residual,
    same_but_rounding,
    smallest_effect,
    variance,
)

POOL_BELOW = 5
"""Common seeds from which on a comparison is judged by its own variance."""
LOST = {"diverged": "diverged", "failed": "failed", "out of memory": "ran out of memory"}


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Differences are `first - second`, in the units of the metric; of a speed, of its logarithm."""

    first: VariantResult
    second: VariantResult
    speed: bool
    """Measured in rounds on the device; the difference is relative."""
    n: int
    """Seeds, or rounds, that both have."""
    reason: str = ""
    """Why there is no test."""
    mean: float | None = None
    tested: Paired | None = None
    identical: bool = False
    pooled_over: int = 0
    """Variants that the variance is pooled over; 0: the difference's own."""
    between: float = 0.0
    """Standard deviation between the seeds of one variant."""
    base_mean: float | None = None
    """Of the second; of a speed, geometric."""

    def readable(self, difference: float) -> float:
        """A difference as people read it: of a speed, as a share of the second's (0.08: 8% faster)."""
        return math.expm1(difference) if self.speed else difference

    @property
    def difference(self) -> float | None:
        return None if self.mean is None else self.readable(self.mean)

    @property
    def sds(self) -> float | None:
        """The difference in standard deviations between seeds."""
        return self.mean / self.between if self.mean is not None and self.between else None

    @property
    def share(self) -> float | None:
        """The difference as a share of the second's mean."""
        if self.difference is None or self.speed:
            return self.difference
        return self.difference / abs(self.base_mean) if self.base_mean else None

    def interval(self, alpha: float, *, marked: bool = False) -> Interval | None:
        """With coverage 1 - alpha; that of a marked difference ends at zero at the latest."""
        if self.tested is None:
            return None
        low, high = self.tested.interval(alpha)
        if marked and self.tested.mean > 0:
            low = max(low, 0.0)
        elif marked:
            high = min(high, 0.0)
        return self.readable(low), self.readable(high)

    def smallest(self, comparisons: int, alpha: float) -> float | None:
        """The smallest difference that would be marked with a power of 80%."""
        if self.tested is None:
            return None
        sd, n, df = self.tested.sd, self.tested.n, self.tested.df
        return self.readable(smallest_effect(sd=sd, n=n, df=df, comparisons=comparisons, alpha=alpha))

    @property
    def unit(self) -> str:
        """What the values are of."""
        return "round" if self.speed else "seed"


def pair_of(
    results: Results, first: VariantResult, second: VariantResult, metric: str, pool_below: int = POOL_BELOW
) -> Pair:
    """Two variants on a metric, paired by seed. Unpaired seeds are ignored."""
    speed = is_speed(results, metric)
    values, base = samples(first, metric), samples(second, metric)
    seeds = sorted(values.keys() & base.keys())
    pair = Pair(first=first, second=second, speed=speed, n=len(seeds))
    reason = _why_not(first, second, metric, speed)
    if reason or not seeds:
        return replace(pair, reason=reason or f"{first.name} and {second.name} have no {pair.unit} in common")
    middle, level = mean([values[seed] - base[seed] for seed in seeds]), mean([base[seed] for seed in seeds])
    between = _between([{seed: each[seed] for seed in seeds} for each in (values, base)])
    pair = replace(pair, mean=middle, base_mean=math.exp(level) if speed else level, between=between)
    own = paired(values, base)
    if own is None:
        return replace(pair, reason=f"one {pair.unit} shows no spread to judge a difference by")
    if own.mean == own.sd == 0:
        return replace(pair, mean=0.0, identical=True)
    if own.n < pool_below:
        layout = _layout(results, metric, sorted(base))
        left = residual(layout)
        if left is not None:
            own = pool(own, left)
            pair = replace(pair, pooled_over=left.variants, between=_between(layout))
    if own.sd == 0:
        return replace(pair, reason=f"the difference is the same in all {own.n} {pair.unit}s: no spread to judge it by")
    return replace(pair, tested=own)


def is_speed(results: Results, metric: str) -> bool:
    """Whether a metric is measured in rounds on the device."""
    return any(metric in each.speeds for each in results.variants)


def samples(variant: VariantResult, metric: str) -> dict[int, float]:
    """A metric by seed, of finished runs; of a measured speed, its logarithm by round."""
    if metric in variant.speeds:
        speeds: dict[int, float | None] = {**variant.values(metric)}
        # A round without a measurement is null in results.json.
        return {i: math.log(speed) for i, speed in speeds.items() if speed is not None and 0 < speed < math.inf}
    found = {run.seed: run.value(metric) for run in variant.runs if run.status == "finished"}
    return {seed: value for seed, value in found.items() if value is not None}


def lost_words(variant: VariantResult) -> str:
    """How many runs were lost, and how: `diverged in 2 of 5 seeds`; empty where all finished."""
    total = len(variant.runs)
    counts = {words: count_runs(variant, status) for status, words in LOST.items()}
    return ", ".join(f"{words} in {n} of {total} seeds" for words, n in counts.items() if n)


def count_runs(variant: VariantResult, status: str) -> int:
    """Runs that ended so."""
    return sum(run.status == status for run in variant.runs)


def _why_not(first: VariantResult, second: VariantResult, metric: str, speed: bool) -> str:
    """Why a difference can't be tested. The runs that are left of some that were lost are no random choice."""
    if not speed and (first.lost or second.lost):
        told = [each for each in (first, second) if each.lost or each is second]
        return ", ".join(f"{each.name} {lost_words(each) or 'lost no run'}" for each in told)
    for each in (first, second):
        have, of = len(samples(each, metric)), len(each.speeds.get(metric, [])) if speed else len(each.runs)
        if have == 0:
            return f"{each.name} has no {metric}"
        # A run that never reached a loss has no number of steps to it, which is no chance either.
        if have < of and not speed:
            return f"{each.name} has no {metric} in {of - have} of {of} seeds"
    return ""


def _layout(results: Results, metric: str, seeds: Sequence[int]) -> list[Values]:
    """The variants that can be tested and have all of these seeds."""
    layout: list[Values] = []
    speed = is_speed(results, metric)
    for each in results.variants:
        found = samples(each, metric)
        if (each.lost and not speed) or not found.keys() >= set(seeds):
            continue
        values = {seed: found[seed] for seed in seeds}
        # A change that does nothing has the runs of another variant once more, which say nothing new about the spread.
        if not any(same_but_rounding(values, other) for other in layout):
            layout.append(values)
    return layout


def _between(variants: Sequence[Values]) -> float:
    return math.sqrt(mean([variance(list(each.values())) for each in variants]))
