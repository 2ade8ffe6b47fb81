"""Variants compared with the base, and claims of the literature judged, by differences that are paired by seed.

Which variance a difference is judged by depends on the number of common seeds (of a measured speed: rounds):

- five or more: its own, that of its paired differences;
- two to four, too few for that: the residual variance pooled over all variants (variant + seed effects), or its own
  where that is larger;
- one: nothing is judged.

Differences of speeds are those of their logarithms, and so relative. A variant that lost a run is not tested: the runs
that are left are no random choice.
"""

import math
from dataclasses import dataclass
from typing import Literal

from anyformer.errors import InputError, nearest
from anyformer.lab.results import Claim, Results, VariantResult, higher_is_better
from anyformer.lab.statistics.estimates import ALPHA, Interval, Paired, holm
from anyformer.lab.statistics.pairing import POOL_BELOW, Pair, count_runs, pair_of

Outcome = Literal["better", "worse", "can't tell", "identical", "not judged"]
Verdict = Literal["agrees", "differs", "can't tell"]


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A variant beside the base. Differences are `variant - base`; of a speed, relative (0.08: 8% faster)."""

    name: str
    base: str
    metric: str
    outcome: Outcome
    """What the corrected test says. Better and worse respect which way the metric improves."""
    reason: str = ""
    """Why it is not judged."""
    speed: bool = False
    n: int = 0
    """Common seeds, or rounds of a speed."""
    difference: float | None = None
    interval: Interval | None = None
    """The t interval with coverage 1 - alpha, of this comparison alone."""
    simultaneous: Interval | None = None
    """Bonferroni's: all of a study's together have coverage 1 - alpha. It excludes zero exactly if the difference is
    marked: Holm's procedure marks a little more, and where only it excludes zero, the interval ends there."""
    p: float | None = None
    adjusted_p: float | None = None
    """Holm's, over the comparisons of the study."""
    comparisons: int = 0
    """How many were corrected for."""
    alpha: float = ALPHA
    sd: float | None = None
    """Of the difference at one seed, by which it is judged; of a speed, that of its logarithm."""
    df: int = 0
    pooled_over: int = 0
    """Variants that the variance is pooled over; 0: the comparison's own variance."""
    smallest: float | None = None
    """The smallest difference that would be marked with a power of 80%, by the estimated spread."""
    sds: float | None = None
    """The difference in standard deviations between seeds of one variant."""
    share: float | None = None
    """The difference as a share of the base's mean."""
    between: float = 0.0
    """Standard deviation between the seeds of one variant; of a speed, of its logarithm."""
    base_mean: float | None = None
    """Over the common seeds; of a speed, geometric."""

    @property
    def marked(self) -> bool:
        """Whether a difference is claimed."""
        return self.outcome in ("better", "worse")


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """What a study says about a claim. The difference is `better - than`; of a speed, relative."""

    claim: Claim
    verdict: Verdict
    reason: str = ""
    """What decided it, or why nothing could, where there was no test."""
    metric: str
    speed: bool = False
    n: int = 0
    difference: float | None = None
    interval: Interval | None = None
    """Of a claim that one is better: Bonferroni's with coverage 1 - alpha / claims, and like a comparison's it excludes
    zero exactly if the difference is marked. Of equality: that of two one-sided tests, 1 - 2 alpha / claims."""
    adjusted_p: float | None = None
    """Holm's; of equality Bonferroni's, for the likelier of `agrees` and `differs`."""
    claims: int = 0
    """How many were corrected for."""
    alpha: float = ALPHA
    pooled_over: int = 0
    smallest: float | None = None
    """The smallest difference that would be marked with a power of 80%, by the estimated spread."""


def compare(
    results: Results, metric: str | None = None, alpha: float = ALPHA, *, pool_below: int = POOL_BELOW
) -> list[Comparison]:
    """Every variant beside the base of a study, with Holm's correction over all that could be tested.

    With at least `pool_below` (five) common seeds, each comparison is judged by its own paired variance; with fewer, by
    the variance pooled over variants (its own where that is larger), and `pooled_over` says so; with one, nothing is.
    """
    metric = metric or results.metric
    base = results.variant(results.base)
    _check_metric(results, metric)
    pairs = [pair_of(results, each, base, metric, pool_below) for each in results.variants if each.name != base.name]
    adjusted = holm([pair.tested.p for pair in pairs if pair.tested is not None])
    by_name = dict(zip((pair.first.name for pair in pairs if pair.tested is not None), adjusted, strict=True))
    return [_comparison(pair, metric, by_name.get(pair.first.name), len(adjusted), alpha) for pair in pairs]


def _comparison(pair: Pair, metric: str, adjusted: float | None, tests: int, alpha: float) -> Comparison:
    outcome: Outcome = "identical" if pair.identical else "not judged"
    tested = pair.tested
    marked = adjusted is not None and adjusted <= alpha
    if tested is not None:
        outcome = "can't tell" if not marked else "better" if _improves(tested.mean, metric) else "worse"
    return Comparison(
        name=pair.first.name, base=pair.second.name, metric=metric, outcome=outcome, reason=pair.reason,
        speed=pair.speed, n=pair.n, difference=pair.difference, interval=pair.interval(alpha),
        simultaneous=pair.interval(alpha / max(tests, 1), marked=marked), p=None if tested is None else tested.p,
        adjusted_p=adjusted, comparisons=tests, alpha=alpha, sd=None if tested is None else tested.sd,
        df=0 if tested is None else tested.df, pooled_over=pair.pooled_over, smallest=pair.smallest(tests, alpha),
        sds=pair.sds, share=pair.share, between=pair.between, base_mean=pair.base_mean,
    )  # fmt: skip


def _improves(difference: float, metric: str) -> bool:
    return (difference > 0) == higher_is_better(metric)


def _check_metric(results: Results, metric: str) -> None:
    known = {name for each in results.variants for name in each.speeds}
    known |= {name for each in results.variants for run in each.runs for name in run.metrics}
    # Where all runs were lost there is none, and each comparison says why.
    if known and metric not in known:
        raise InputError(f"metric: no run of this study has {metric!r}{nearest(metric, known)}")


def judge(results: Results, alpha: float = ALPHA, *, pool_below: int = POOL_BELOW) -> list[Judgement]:
    """What the study says about each of its claims, corrected over all claims that could be tested.

    That one is better: agrees if Holm's procedure marks the difference that way, differs if it marks it the other way.
    That both are equal up to a margin: agrees if the interval of coverage 1 - 2 alpha / claims (two one-sided tests at
    Bonferroni's level) lies within the margin, differs if it lies wholly outside. Otherwise the study can't tell. Where
    one diverged in most of its runs and the other in none, that decides without a test.
    """
    pairs = [_claimed(results, claim, pool_below) for claim in results.claims]
    tests = [i for i, pair in enumerate(pairs) if isinstance(pair, Pair) and pair.tested is not None]
    # Of equality, one of the verdicts is always wrong: such a claim keeps its share of alpha at every step of Holm's.
    p = [_better_p(results.claims[i], pairs[i]) for i in tests]
    adjusted = dict(zip(tests, holm(p), strict=True))
    found: list[Judgement] = []
    for i, (claim, pair) in enumerate(zip(results.claims, pairs, strict=True)):
        metric = claim.metric or results.metric
        if isinstance(pair, str):
            found.append(Judgement(claim=claim, verdict="can't tell", reason=pair, metric=metric, alpha=alpha))
        elif pair.tested is None:
            found.append(_untested(claim, pair, metric, alpha))
        else:
            found.append(_tested(claim, pair, pair.tested, metric, adjusted[i], len(tests), alpha))
    return found


def _claimed(results: Results, claim: Claim, pool_below: int) -> Pair | str:
    """The pair that a claim is about, or what the study lacks."""
    if claim.margin is not None and not claim.margin > 0:
        raise InputError(f"claim {claim.claim!r}: the margin is {claim.margin}; give one above 0, or none")
    names = [each.name for each in results.variants]
    for name in (claim.better, claim.than):
        if name not in names:
            return f"the study has no variant {name}"
    first, second = results.variant(claim.better), results.variant(claim.than)
    return pair_of(results, first, second, claim.metric or results.metric, pool_below)


def _better_p(claim: Claim, pair: Pair | str) -> float:
    tested = None if isinstance(pair, str) else pair.tested
    return 1.0 if tested is None or claim.margin is not None else tested.p


def _tested(
    claim: Claim, pair: Pair, tested: Paired, metric: str, adjusted: float, tests: int, alpha: float
) -> Judgement:
    verdict: Verdict = "can't tell"
    if claim.margin is None:
        marked = adjusted <= alpha
        if marked:
            verdict = "agrees" if _improves(tested.mean, metric) else "differs"
        interval = pair.interval(alpha / tests, marked=marked)
    else:
        low, high = -claim.margin, claim.margin
        if pair.speed:
            # No speed is lower by all of it or more: such a margin has no lower end.
            low, high = math.log1p(low) if low > -1 else -math.inf, math.log1p(high)
        inside, outside = min(1.0, tests * tested.p_inside(low, high)), min(1.0, tests * tested.p_outside(low, high))
        adjusted = min(inside, outside)
        if adjusted <= alpha:
            verdict = "agrees" if inside <= alpha else "differs"
        interval = pair.interval(2 * alpha / tests)
    return Judgement(
        claim=claim, verdict=verdict, metric=metric, speed=pair.speed, n=pair.n, difference=pair.difference,
        interval=interval, adjusted_p=adjusted, claims=tests, alpha=alpha, pooled_over=pair.pooled_over,
        smallest=pair.smallest(tests, alpha),
    )  # fmt: skip


def _untested(claim: Claim, pair: Pair, metric: str, alpha: float) -> Judgement:
    verdict: Verdict = "can't tell"
    reason = pair.reason
    if pair.identical:
        verdict = "can't tell" if claim.margin is None else "agrees"
        reason = f"{claim.better} and {claim.than} are identical in all {pair.n} {pair.unit}s"
    elif not pair.speed and _diverged_instead(pair.first, pair.second):
        verdict = "differs"
    elif not pair.speed and _diverged_instead(pair.second, pair.first):
        verdict = "agrees" if claim.margin is None else "differs"
    return Judgement(
        claim=claim, verdict=verdict, reason=reason, metric=metric, speed=pair.speed, n=pair.n,
        difference=pair.difference, alpha=alpha,
    )  # fmt: skip


def _diverged_instead(first: VariantResult, second: VariantResult) -> bool:
    """Whether one diverged in most of its runs and the other in none."""
    return 2 * count_runs(first, "diverged") > len(first.runs) and count_runs(second, "diverged") == 0
