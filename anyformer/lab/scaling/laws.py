"""Scaling laws: loss = E + A compute^-alpha fitted to a ladder of sizes, and whether a choice that wins small wins larger.

All on plain numbers. Everything is least squares in the logarithm of the loss (to first order: of relative errors), and
nothing is drawn that a second call would not draw again. An interval says how far the law may be off, if there is such a
law: a ladder can't show that its curve goes on.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from anyformer.errors import InputError

Interval = tuple[float, float]
Estimate = tuple[float, float, float]
"""A value, and the ends of its interval."""
LEAST_SIZES = 4
LEAST_RANGE = 4.0
"""A ladder of fewer sizes, or of less compute between its ends, is refused: three numbers are fitted to it."""
LEVEL = 0.95
DRAWS = 1000
"""Ladders of the bootstrap."""
STEEPEST = 1.5
"""Exponents are looked for between 0 and this."""
EVIDENT = 4.0
"""How many times as large as by chance a square must be: two standard deviations."""
MISFIT = 2.0
"""How many times as large as that of seeds the variance of sizes around the law must be to be taken for the noise."""
OUTLIER = 4.0
"""Standard deviations beyond which a run counts no further (Huber)."""
LARGEST_SPREAD = 30.0
"""How many times as large as it seems the noise may be in a drawn ladder, where few runs tell of it."""


@dataclass(frozen=True, kw_only=True)
class Point:
    """A finished run: its training compute (FLOPs) and its loss."""

    compute: float
    loss: float
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class Rung:
    """All runs of one compute."""

    compute: float
    logs: dict[int, float]
    """Logarithm of the loss by seed; that of a run far from the others is as far as `OUTLIER` and no further."""

    @property
    def mean(self) -> float:
        return math.fsum(self.logs.values()) / len(self.logs)

    @property
    def loss(self) -> float:
        return math.exp(self.mean)


@dataclass(frozen=True, kw_only=True)
class Fit:
    """A law fitted to a ladder: loss = irreducible + coefficient * compute^-exponent."""

    irreducible: float
    """E, at least 0: what no compute takes away. 0 where it can't be told from 0: the law is then a plain power law."""
    coefficient: float
    exponent: float
    told: bool
    """Whether the ladder bends enough to tell E from 0."""
    intervals: dict[str, Interval]
    """Of each of the three, at 95%; always with E free, so they are wide where it can't be told."""
    rungs: tuple[Rung, ...]
    scatter: float
    """Standard deviation of a run around the law, in its logarithm."""
    warnings: tuple[str, ...] = ()
    free: tuple[float, float, float] = field(repr=False)
    """The law with E free, and below one with E = 0: as E, log A at the largest compute of the ladder, alpha."""
    plain: tuple[float, float, float] = field(repr=False)
    draws: Any = field(repr=False, compare=False)
    """Laws of the bootstrap: the same in each row."""

    @property
    def largest(self) -> float:
        """The most compute of the ladder."""
        return self.rungs[-1].compute

    def predict(self, compute: float) -> Estimate:
        """The mean loss of runs with so much compute, with a 95% interval of that mean (not of one run)."""
        if not (math.isfinite(compute) and compute > 0):
            raise InputError(f"compute {compute!r} is not above 0")
        mean = float(self.law(compute, self.free if self.told else self.plain))
        low, high = percentiles(self.law(compute, self.draws))
        # The plain law may lie outside of what laws with E free say; its own doubt is then part of the interval.
        return mean, min(low, mean), max(high, mean)

    def law(self, compute: float, numbers: Any) -> Any:
        """The loss by given laws."""
        e, log_a, alpha = np.moveaxis(np.asarray(numbers, float), -1, 0)
        return e + np.exp(log_a - alpha * math.log(compute / self.largest))

    @property
    def words(self) -> str:
        """The law with its numbers, and what is to be said against it."""
        low, high = self.intervals["exponent"]
        share = f"alpha = {self.exponent:.3g} ({low:.3g} to {high:.3g})"
        if self.told:
            floor = "E = {:.4g} ({:.4g} to {:.4g})".format(self.irreducible, *self.intervals["irreducible"])
            law = f"loss = E + {self.coefficient:.3g} C^-alpha with {floor}, {share}"
        else:
            law = f"loss = {self.coefficient:.3g} C^-alpha with {share}; no irreducible loss can be told from 0"
        return "; ".join([law, *self.warnings])


def fit(points: Sequence[Point]) -> Fit:
    """Fit a law to the runs of a ladder; refused with InputError where the ladder supports no extrapolation.

    It needs 4 sizes or more, the largest of at least 4 times the compute of the smallest. E is given only where the fit
    without it is worse than by chance; else the law is a plain power law. Intervals come from a parametric bootstrap:
    ladders around the fitted law, with the scatter that seeds have within a rung and rungs have around the law, and as
    uncertain about it as the number of runs (a t distribution). Where rungs are further off than seeds explain, their own
    distance from the law is taken for the noise, and the fit says so.
    """
    rungs = rungs_of(points)
    if problem := unsupported(rungs):
        raise InputError(f"no law can be fitted: {problem}")
    return _fit(rungs, *_noise(len(rungs)))


def unsupported(rungs: Sequence[Rung]) -> str:
    """Why a ladder supports no extrapolation; empty if it does."""
    losses = [rung.loss for rung in rungs]
    if len(rungs) < LEAST_SIZES:
        return f"there are {len(rungs)} sizes, and it takes {LEAST_SIZES} to tell a law from a line; add smaller ones"
    ratio = rungs[-1].compute / rungs[0].compute
    if ratio < LEAST_RANGE:
        words = (
            f"the largest size has {ratio:.3g} times the compute of the smallest, and it takes {LEAST_RANGE:g} times"
        )
        return f"{words}; add smaller sizes"
    if _plain(rungs)[2] <= 0:
        words = f"the loss does not fall with compute ({losses[0]:.4g} at the smallest size, {losses[-1]:.4g} at the largest)"
        return f"{words}; train larger sizes longer, or look at their learning rates"
    return ""


def rungs_of(points: Sequence[Point]) -> tuple[Rung, ...]:
    """The runs by compute, from the least to the most."""
    found: dict[float, dict[int, float]] = {}
    for point in points:
        for name, value in (("compute", point.compute), ("loss", point.loss)):
            if not (math.isfinite(value) and value > 0):
                raise InputError(f"{point}: {name} is not above 0 and finite; leave out runs that diverged")
        seeds = found.setdefault(point.compute, {})
        if point.seed in seeds:
            raise InputError(f"{point}: there is another run of seed {point.seed} with the same compute")
        seeds[point.seed] = math.log(point.loss)
    logs = {compute: np.array([*found[compute].values()]) for compute in sorted(found)}
    off = [abs(each - np.median(each)) for each in logs.values() if len(each) > 2]
    # From the median absolute deviation, as that of a normal distribution would be; of few runs it is too small.
    spread = 1.4826 * float(np.median(np.concatenate(off))) * math.sqrt(1.5) if off else 0.0
    # Where there is no spread, nothing says what is far.
    limit = OUTLIER * spread or math.inf
    return tuple(
        Rung(compute=compute, logs=dict(zip(found[compute], _near(each, limit).tolist(), strict=True)))
        for compute, each in logs.items()
    )


def _near(logs: Any, limit: float) -> Any:
    return np.clip(logs, np.median(logs) - limit, np.median(logs) + limit)


@dataclass(frozen=True, kw_only=True)
class RungAdvantage:
    """By how much the other choice is ahead at one size: the base's loss minus its own."""

    compute: float
    """Of the base."""
    measured: float
    """The difference of runs of the same seed, the mean over seeds; of all runs where no seed is common."""
    fitted: Estimate | None
    """The difference of the two laws at this compute; None where the ladders support no law."""


@dataclass(frozen=True, kw_only=True)
class Advantage:
    """By how much one choice is ahead of another, over a ladder and beyond it."""

    rungs: list[RungAdvantage]
    at: float
    at_end: Estimate | None
    """At compute `at`, by the two laws; None where the ladders support none."""
    crossing: float | None
    """Where the two laws cross between the smallest size and `at`; None: nowhere."""
    words: str


def still_wins(base: Sequence[Point], other: Sequence[Point], at: float, *, name: str = "the other") -> Advantage:
    """Whether a choice that wins at small sizes is expected to win with compute `at`, where both have the same compute.

    Two ladders of the same sizes, from the smallest to the largest. Both laws are bootstrapped together: what runs of
    the same seed have in common is drawn for both, and cancels in the difference. Both laws have an E, or none has.
    """
    if not (math.isfinite(at) and at > 0):
        raise InputError(f"at: compute {at!r} is not above 0")
    ladders = rungs_of(base), rungs_of(other)
    if len(ladders[0]) != len(ladders[1]) or not ladders[0]:
        counts = " and ".join(str(len(rungs)) for rungs in ladders)
        raise InputError(f"the ladders have {counts} sizes; compare ladders of the same sizes, one by one")
    measured = [_measured(*pair) for pair in zip(*ladders, strict=True)]
    problems = [problem for problem in map(unsupported, ladders) if problem]
    if problems:
        rungs = [
            RungAdvantage(compute=rung.compute, measured=gain, fitted=None)
            for rung, gain in zip(ladders[0], measured, strict=True)
        ]
        words = f"{_counted(name, rungs)}; nothing can be said about {at:.2g} FLOPs: {problems[0]}"
        return Advantage(rungs=rungs, at=at, at_end=None, crossing=None, words=words)
    fits = _fit_both(*ladders)
    rungs = [
        RungAdvantage(compute=rung.compute, measured=gain, fitted=_ahead(*fits, rung.compute))
        for rung, gain in zip(ladders[0], measured, strict=True)
    ]
    end, where = _ahead(*fits, at), crossing(*fits, at)
    words = f"{_counted(name, rungs)}; {_expected(end, at, ladders[0])}"
    if where is not None and where > fits[0].largest:
        words += f"; the two laws cross at about {where:.2g} FLOPs"
    return Advantage(rungs=rungs, at=at, at_end=end, crossing=where, words=words)


def crossing(base: Fit, other: Fit, at: float) -> float | None:
    """The compute between the smallest size and `at` from which on another of two laws is ahead, the last if there are
    several; None if one is ahead all the way.
    """
    places = np.geomspace(min(base.rungs[0].compute, at), max(base.rungs[0].compute, at), 2000)
    form = _form(base, other)
    gains = np.array([base.law(c, getattr(base, form)) - other.law(c, getattr(other, form)) for c in places])
    turns = np.flatnonzero(np.sign(gains[:-1]) * np.sign(gains[1:]) < 0)
    return float(math.sqrt(places[turns[-1]] * places[turns[-1] + 1])) if len(turns) else None


def _form(base: Fit, other: Fit) -> str:
    """Which law both are taken as: an E in one alone would make a difference that grows without bounds."""
    return "free" if base.told or other.told else "plain"


def _measured(base: Rung, other: Rung) -> float:
    seeds = base.logs.keys() & other.logs.keys()
    pairs = [(base.logs[seed], other.logs[seed]) for seed in sorted(seeds)] or [(base.mean, other.mean)]
    return float(np.mean([math.exp(a) - math.exp(b) for a, b in pairs]))


def _ahead(base: Fit, other: Fit, compute: float) -> Estimate:
    form = _form(base, other)
    mean = float(base.law(compute, getattr(base, form)) - other.law(compute, getattr(other, form)))
    low, high = percentiles(base.law(compute, base.draws) - other.law(compute, other.draws))
    return mean, min(low, mean), max(high, mean)


def _fit_both(base: Sequence[Rung], other: Sequence[Rung]) -> tuple[Fit, Fit]:
    """Two laws with draws that belong together, as correlated as the runs of a seed are around their laws."""
    (normal, chi2), (more, _) = _noise(len(base)), _noise(len(base), second=True)
    left, right = _residuals(base), _residuals(other)
    pairs = [(left[run], right[run]) for run in sorted(left.keys() & right.keys())]
    common = 0.0
    if len(pairs) > 4:
        x, y = np.array(pairs).T
        squares = float((x**2).sum() * (y**2).sum())
        found = min(float((x * y).sum()) / math.sqrt(squares), 0.999) if squares else 0.0
        # One standard error less (Fisher): taking runs for more alike than they are would make the interval too small.
        common = math.tanh(max(0.0, math.atanh(max(found, 0.0)) - 1 / math.sqrt(len(pairs) - 3)))
    return _fit(base, normal, chi2), _fit(other, common * normal + math.sqrt(1 - common**2) * more, chi2)


def _residuals(rungs: Sequence[Rung]) -> dict[tuple[int, int], float]:
    """How far each run lies from the law, by size and seed."""
    where, loss, weights, _ = _columns(rungs)
    fitted = np.log(_law(where, _free(where, loss[None], weights)[0]))
    return {(i, seed): log - fitted[i] for i, rung in enumerate(rungs) for seed, log in rung.logs.items()}


def _columns(rungs: Sequence[Rung]) -> tuple[Any, Any, Any, Any]:
    """Of each size: logarithm of the compute relative to the largest, loss, weight in a fit, number of runs."""
    where = np.log([rung.compute / rungs[-1].compute for rung in rungs])
    loss, runs = np.array([rung.loss for rung in rungs]), np.array([len(rung.logs) for rung in rungs])
    return where, loss, runs / loss**2, runs


def _counted(name: str, rungs: Sequence[RungAdvantage]) -> str:
    """What was measured, in words."""
    wins, all_of = sum(rung.measured > 0 for rung in rungs), len(rungs)
    sizes = "all" if wins == all_of else "none" if not wins else str(wins)
    words = f"{name} has the lower loss at {sizes} of {all_of} sizes"
    fitted = [rung.fitted for rung in rungs if rung.fitted is not None]
    if fitted:
        ahead, behind = sum(low > 0 for _, low, _ in fitted), sum(high < 0 for _, _, high in fitted)
        words += f" (by the two laws, beyond chance ahead at {ahead} and behind at {behind})"
    return words


def _expected(end: Estimate, at: float, rungs: Sequence[Rung]) -> str:
    """What the laws say of one place, and no more."""
    mean, low, high = end
    times, length = at / rungs[-1].compute, rungs[-1].compute / rungs[0].compute
    where = (
        f"{at:.2g} FLOPs ({times:.3g} times the largest size)" if times > 1 else f"{at:.2g} FLOPs (within the ladder)"
    )
    side = f"ahead by {mean:.4f}" if mean >= 0 else f"behind by {-mean:.4f}"
    verdict = "whether it wins there can't be told"
    if low > 0 or high < 0:
        verdict = f"it is expected to {'win' if low > 0 else 'lose'} there, if both laws hold that far"
    words = f"at {where} the laws have it {side} in loss (95% interval {low:.4f} to {high:.4f}): {verdict}"
    far = "that is further beyond the ladder than the ladder is long, and no more than a guess"
    return f"{words}; {far}" if times > length else words


def _fit(rungs: Sequence[Rung], normal: Any, chi2: Any) -> Fit:
    """As `fit`, with given random numbers: `normal` (draws, sizes), and by degrees of freedom the `chi2` (draws)."""
    where, loss, weights, runs = _columns(rungs)
    (free,) = _free(where, loss[None], weights)
    plain = _plain(rungs)
    misfits = [np.log(_law(where, numbers)) - np.log(loss) for numbers in (free, plain)]
    ours, theirs = (float((runs * off**2).sum()) for off in misfits)
    variance, freedom, warnings = _variance(rungs, ours)
    told = free[0] > 0 and theirs - ours > EVIDENT * variance
    spread = np.minimum(np.sqrt(freedom / chi2(freedom)), LARGEST_SPREAD)
    noise = normal * spread[:, None] * math.sqrt(variance) / np.sqrt(runs)
    drawn = np.exp(np.log(_law(where, free)) + np.clip(noise, -5, 5))
    draws = _free(where, drawn, weights)
    chosen, largest = free if told else plain, math.log(rungs[-1].compute)
    coefficients = np.exp(draws[:, 1] + draws[:, 2] * largest)
    named = {"irreducible": draws[:, 0], "coefficient": coefficients, "exponent": draws[:, 2]}
    return Fit(
        irreducible=float(chosen[0]), coefficient=math.exp(chosen[1] + chosen[2] * largest), exponent=float(chosen[2]),
        told=bool(told), intervals={name: percentiles(some) for name, some in named.items()}, rungs=tuple(rungs),
        scatter=math.sqrt(variance), warnings=warnings, free=tuple(free.tolist()), plain=plain, draws=draws,
    )  # fmt: skip


def _variance(rungs: Sequence[Rung], misfit: float) -> tuple[float, int, tuple[str, ...]]:
    """The variance of a run around the law, its degrees of freedom, and what is to be said about it."""
    between = len(rungs) - 3
    within = sum(len(rung.logs) - 1 for rung in rungs)
    squares = sum((log - rung.mean) ** 2 for rung in rungs for log in rung.logs.values())
    if not within:
        words = "each size has one run, so that chance is known from the distance to the law alone"
        return misfit / between, between, (words,)
    if misfit / between > MISFIT * squares / within:
        words = "sizes are further from the law than seeds are from each other; the intervals count that"
        return misfit / between, between, (words,)
    return (misfit + squares) / (between + within), between + within, ()


def _plain(rungs: Sequence[Rung]) -> tuple[float, float, float]:
    """The power law without E: a straight line in logarithms."""
    where, loss, _, runs = _columns(rungs)
    logs = np.log(loss)
    middle, mean = np.average(where, weights=runs), np.average(logs, weights=runs)
    slope = float((runs * (where - middle) * (logs - mean)).sum() / (runs * (where - middle) ** 2).sum())
    return 0.0, float(mean - slope * middle), min(-slope, STEEPEST)


def _law(where: Any, numbers: Any) -> Any:
    """Losses at logarithms of compute, relative to the largest."""
    return numbers[0] + np.exp(numbers[1] - numbers[2] * where)


def _free(where: Any, loss: Any, weights: Any) -> Any:
    """The best E >= 0, log A and alpha for each row of losses: for a given alpha the rest is linear, so alphas are searched."""
    step, finest = 0.025, 1e-4
    alphas = np.arange(step, STEEPEST, step)[None]
    while True:
        e, a, left = _linear(where, loss, weights, alphas)
        best = left.argmin(1)[:, None]
        e, a, alpha = (np.take_along_axis(np.broadcast_to(some, left.shape), best, 1) for some in (e, a, alphas))
        if step < finest:
            return np.concatenate([e, np.log(a), alpha], 1)
        alphas = np.clip(alpha + np.linspace(-step, step, 11), 1e-3, STEEPEST)
        step /= 5


def _linear(where: Any, loss: Any, weights: Any, alphas: Any) -> tuple[Any, Any, Any]:
    """For each row of losses and each of its alphas: E, A and the squares that are left."""
    x = np.exp(-alphas[:, :, None] * where)
    y, total = loss[:, None, :], weights.sum()
    mean_x, mean_y = (weights * x).sum(2) / total, (weights * y).sum(2) / total
    off_x, off_y = x - mean_x[:, :, None], y - mean_y[:, :, None]
    a = (weights * off_x * off_y).sum(2) / (weights * off_x**2).sum(2)
    e = mean_y - a * mean_x
    # E below 0 can't be, so it is 0; and where a drawn ladder rises, the law is flat.
    a = np.where(e < 0, (weights * x * y).sum(2) / (weights * x**2).sum(2), a)
    e = np.where(e < 0, 0.0, e)
    e, a = np.where(a <= 0, mean_y, e), np.where(a <= 0, 1e-12, a)
    left = (weights * (e[:, :, None] + a[:, :, None] * x - y) ** 2).sum(2)
    return e, a, left


def _noise(sizes: int, *, second: bool = False) -> tuple[Any, Any]:
    """The same random numbers each time: for a ladder of so many sizes, or for another one beside it."""
    normal = np.random.default_rng([sizes, int(second)]).standard_normal((DRAWS, sizes))
    return normal, lambda freedom: np.random.default_rng(freedom).chisquare(freedom, DRAWS)


def percentiles(values: Any) -> Interval:
    """The ends of the middle 95% of drawn values."""
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(values, [tail, 100 - tail])
    return float(low), float(high)
