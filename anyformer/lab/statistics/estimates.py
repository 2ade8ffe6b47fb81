"""The statistics of a study: intervals over seeds, paired differences, Holm's correction, equivalence, power.

All of it works on plain floats. Quantiles and the noncentral t distribution come from scipy.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyformer.errors import CapabilityError, InputError

ALPHA = 0.05
POWER = 0.8
ROUNDING = 1e-12
"""A spread below this share of the values themselves comes from the rounding of their differences."""
Values = Mapping[int, float]
"""A metric by seed."""
Interval = tuple[float, float]


def special() -> Any:
    """The distribution functions of scipy; an error that says what to install if they are not there."""
    try:
        # scipy.stats wraps the same functions, and takes several times as long to import.
        from scipy import special
    except ImportError as error:
        raise CapabilityError("the lab's statistics need scipy: pip install 'anyformer[lab]'") from error
    return special


def t_quantile(share: float, df: int) -> float:
    """The value below which a t distributed variable lies with this probability."""
    return float(special().stdtrit(df, share))


def t_below(value: float, df: int) -> float:
    """The probability that a t distributed variable lies below a value."""
    return float(special().stdtr(df, value))


def mean(values: Sequence[float]) -> float:
    """The arithmetic mean."""
    return math.fsum(values) / len(values)


def variance(values: Sequence[float]) -> float:
    """The unbiased sample variance; of one value, 0."""
    if len(values) < 2:
        return 0.0
    middle = mean(values)
    return math.fsum((value - middle) ** 2 for value in values) / (len(values) - 1)


@dataclass(frozen=True, kw_only=True)
class Estimate:
    """A mean over seeds."""

    mean: float
    sd: float
    n: int
    low: float | None
    """The two-sided t interval; None for a single value."""
    high: float | None


def estimate(values: Sequence[float], alpha: float = ALPHA) -> Estimate | None:
    """The mean with its two-sided t interval; None of no values."""
    if not values:
        return None
    middle, sd, n = mean(values), math.sqrt(variance(values)), len(values)
    if n < 2:
        return Estimate(mean=middle, sd=sd, n=n, low=None, high=None)
    half = t_quantile(1 - alpha / 2, n - 1) * sd / math.sqrt(n)
    return Estimate(mean=middle, sd=sd, n=n, low=middle - half, high=middle + half)


@dataclass(frozen=True, kw_only=True)
class Paired:
    """The mean difference of two variants over their common seeds, with the spread that it is judged by."""

    mean: float
    sd: float
    """Standard deviation of the difference at one seed; 0 where the differences are all equal."""
    n: int
    """Common seeds."""
    df: int
    """Degrees of freedom of `sd`."""

    @property
    def error(self) -> float:
        """The standard error of the mean difference."""
        return self.sd / math.sqrt(self.n)

    @property
    def p(self) -> float:
        """Two-sided, of no difference. Needs a spread."""
        return 2 * t_below(-abs(self.mean) / self.error, self.df)

    def interval(self, alpha: float = ALPHA) -> Interval:
        """Two-sided, with coverage 1 - alpha."""
        half = t_quantile(1 - alpha / 2, self.df) * self.error
        return self.mean - half, self.mean + half

    def p_inside(self, low: float, high: float) -> float:
        """Of the difference being outside of low..high: the larger of the two one-sided p values (TOST)."""
        below, above = (self.mean - high) / self.error, (low - self.mean) / self.error
        return max(t_below(below, self.df), t_below(above, self.df))

    def p_outside(self, low: float, high: float) -> float:
        """Of the difference being inside of low..high: the smaller of the two one-sided p values."""
        above, below = (high - self.mean) / self.error, (self.mean - low) / self.error
        return min(t_below(above, self.df), t_below(below, self.df))


def paired(values: Values, base: Values) -> Paired | None:
    """The paired difference `values - base` with its own variance; None with fewer than two common seeds."""
    seeds = sorted(values.keys() & base.keys())
    if len(seeds) < 2:
        return None
    differences = [values[seed] - base[seed] for seed in seeds]
    rounding = ROUNDING * max(max(abs(values[seed]), abs(base[seed])) for seed in seeds)
    middle, sd = mean(differences), math.sqrt(variance(differences))
    # Equal differences of rounded numbers are not quite equal, and dividing by that would make anything significant.
    middle, sd = (value if abs(value) > rounding else 0.0 for value in (middle, sd))
    return Paired(mean=middle, sd=sd, n=len(seeds), df=len(seeds) - 1)


def same_but_rounding(values: Values, base: Values) -> bool:
    """Whether two variants have the same values at the same seeds."""
    found = paired(values, base)
    return values.keys() == base.keys() and found is not None and found.mean == found.sd == 0


@dataclass(frozen=True, kw_only=True)
class Residual:
    """The variance that is left at one run after variant and seed effects."""

    variance: float
    df: int
    variants: int


def residual(variants: Sequence[Values]) -> Residual | None:
    """The residual variance of a two-way layout (variant + seed effects) with (k - 1)(n - 1) degrees of freedom.

    All of the variants need the same seeds. None where no degree of freedom is left.
    """
    seeds = sorted(variants[0]) if variants else []
    if any(sorted(each) != seeds for each in variants):
        raise InputError("a two-way layout needs the same seeds of every variant")
    k, n = len(variants), len(seeds)
    if k < 2 or n < 2:
        return None
    df = (k - 1) * (n - 1)
    rows = [mean(list(each.values())) for each in variants]
    columns = [mean([each[seed] for each in variants]) for seed in seeds]
    middle = mean(rows)
    squares = math.fsum(
        (each[seed] - row - column + middle) ** 2
        for each, row in zip(variants, rows, strict=True)
        for seed, column in zip(seeds, columns, strict=True)
    )
    rounding = ROUNDING * max(abs(value) for each in variants for value in each.values())
    return Residual(variance=squares / df if math.sqrt(squares / df) > rounding else 0.0, df=df, variants=k)


def pool(own: Paired, residual: Residual) -> Paired:
    """A paired difference judged by the variance of all variants, or by its own where that is larger.

    The pooled variance takes every variant to spread alike. One that spreads ten times as much, as an unstable one
    does, would be called different in a fifth of studies where it is not; its own variance, where it is the larger,
    keeps that below a tenth with three seeds or four, for a power of 96% instead of 99.5% at five standard deviations.
    """
    return replace(own, sd=max(own.sd, math.sqrt(2 * residual.variance)), df=residual.df)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given. Marking those up to alpha keeps the family-wise error below it."""
    adjusted, largest = [0.0] * len(p), 0.0
    for rank, i in enumerate(sorted(range(len(p)), key=p.__getitem__)):
        largest = max(largest, min(1.0, (len(p) - rank) * p[i]))
        adjusted[i] = largest
    return adjusted


def smallest_effect(
    *, sd: float, n: int, df: int, comparisons: int = 1, alpha: float = ALPHA, power: float = POWER
) -> float:
    """The smallest difference that a design marks with this power.

    `sd` is that of paired differences. The level is Bonferroni's, which Holm's correction never falls below.
    """
    critical = t_quantile(1 - alpha / comparisons / 2, df)
    return float(special().nctdtrinc(df, 1 - power, critical)) * sd / math.sqrt(n)


def power(
    shift_sds: float, *, seeds: int, comparisons: int = 1, alpha: float = ALPHA, pooled_over: int | None = None
) -> float:
    """The probability that a difference, given in standard deviations between seeds, is marked with its right sign.

    Runs of two variants with the same seed are taken to be independent: a difference has twice the variance of a run.
    `pooled_over`: the number of variants that the variance is pooled over; None: each comparison has its own.
    """
    if seeds < 2:
        return 0.0
    df = (seeds - 1) * (1 if pooled_over is None else pooled_over - 1)
    critical = t_quantile(1 - alpha / comparisons / 2, df)
    return 1 - float(special().nctdtr(df, abs(shift_sds) * math.sqrt(seeds / 2), critical))
