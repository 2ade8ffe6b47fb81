"""Matching by measured time: sizes or steps at which a run of every variant takes as long as one of the base on this machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, stdev
from typing import Any

from anyformer.errors import InputError
from anyformer.lab.match import solve
from anyformer.lab.study import Study
from anyformer.lab.variants import Variant

Measure = Callable[[Sequence[Variant]], dict[str, Any]]
"""Costs of variants by name, measured in rounds that take turns."""
TRIES = 3


def match_time(every: Sequence[Variant], study: Study, measure: Measure) -> tuple[list[Variant], str]:
    """All variants at the time of the base, and in words how noisy that is."""
    match, found = study.match, list(every)
    if "steps" in match.by:
        for _ in range(TRIES):
            times = _times(measure(found), found)
            base = times[found[0].name][0] * found[0].run.config.steps
            found = [found[0], *(_with_time(variant, base, times[variant.name][0]) for variant in found[1:])]
            if all(_off(variant, times, base) <= match.within for variant in found[1:]):
                break
    else:
        found = [found[0], *(_solved(found[0], variant, study, measure) for variant in found[1:])]
    times = _times(measure(found), found)
    base = times[found[0].name][0] * found[0].run.config.steps
    noise = max((spread for _, spread in times.values()), default=0.0)
    wrong, done = list[str](), [replace(found[0], off_by=0.0)]
    for variant in found[1:]:
        off_by = times[variant.name][0] * variant.run.config.steps / base - 1
        done.append(replace(variant, off_by=off_by))
        if abs(off_by) > match.within + noise:
            chosen = ", ".join(f"{name}={value}" for name, value in variant.solved.items()) or "as it is"
            wrong.append(f"{variant.name}: the closest is {chosen}, {off_by:+.1%} (noise {noise:.1%})")
    if wrong:
        head = f"time can't be matched within {match.within:.0%} of the base by {', '.join(match.by)}, so nothing was begun:"
        raise InputError("\n  ".join([head, *wrong]) + "\nadd steps to match.by, or allow a larger match.tolerance")
    return done, f"times of a step were measured with a standard error of up to {noise:.1%}"


def _times(measured: dict[str, Any], every: Sequence[Variant]) -> dict[str, tuple[float, float]]:
    """Median seconds of a step and their relative standard error, by variant."""
    found: dict[str, tuple[float, float]] = {}
    for variant in every:
        rounds = measured[variant.name]["step_seconds"]
        if not rounds:
            raise InputError(f"{variant.name}: its time can't be measured: {measured[variant.name]['reason']}")
        typical = median(rounds)
        spread = 1.25 * stdev(rounds) / math.sqrt(len(rounds)) / typical if len(rounds) > 1 else 0.0
        found[variant.name] = typical, spread
    return found


def _with_time(variant: Variant, total: float, step: float) -> Variant:
    steps = max(1, round(total / step))
    return replace(variant.with_steps(steps), solved={"steps": steps})


def _off(variant: Variant, times: dict[str, tuple[float, float]], base: float) -> float:
    return abs(times[variant.name][0] * variant.run.config.steps / base - 1)


def _solved(base: Variant, variant: Variant, study: Study, measure: Measure) -> Variant:
    """A size found by measuring: the base takes its turns beside every trial, so that a slow moment hits both."""
    known: dict[str, float] = {}

    def cost(trial: Variant) -> float:
        key = repr(sorted(trial.solved.items()))
        if key not in known:
            times = _times(measure([base, trial]), [base, trial])
            known[key] = times[trial.name][0] * trial.run.config.steps / (times[base.name][0] * base.run.config.steps)
        return known[key]

    return solve(variant, cost, 1.0, study.match).variant
