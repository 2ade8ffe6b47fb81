"""Matching by measured time: sizes or steps at which a run of every variant takes as long as one of the base on this machine."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import median, stdev
from typing import Any

from anyformer.errors import InputError
from anyformer.lab.match import solve, varied
from anyformer.lab.study import Study
from anyformer.lab.variants import Variant

Measure = Callable[[Sequence[Variant]], dict[str, Any]]
"""Costs of variants by name, measured in rounds that take turns."""
TRIES = 3
"""How often steps are chosen anew, by more rounds each time."""


def match_time(every: Sequence[Variant], study: Study, measure: Measure) -> tuple[list[Variant], str]:
    """All variants at the time of the base, and in words how noisy that is."""
    match, base, found = study.match, every[0], list(every)
    turned = {variant.name for variant in every[1:] if "steps" in match.by and not varied(variant, "steps")}
    if "steps" not in match.by:
        found = [base, *(_solved(base, variant, study, measure) for variant in every[1:])]
    known = {variant.name: list[float]() for variant in every}
    # Judged by rounds that nothing was chosen by.
    rounds = _rounds(measure(found), found)
    for _ in range(TRIES if turned else 0):
        known = {name: known[name] + rounds[name] for name in known}
        found = [_with_time(base, each, known) if each.name in turned else each for each in found]
        rounds = _rounds(measure(found), found)
        if all(abs(_off_by(base, each, rounds)) <= match.within for each in found):
            break
    noise = max(_ratio(rounds, base, each)[1] for each in found)
    done = [replace(each, off_by=_off_by(base, each, rounds)) for each in found]
    wrong = [_unmet(variant, noise) for variant in done if abs(variant.off_by or 0.0) > match.within + noise]
    if wrong:
        head = f"time can't be matched within {match.within:.0%} of the base by {', '.join(match.by)}, so nothing was begun:"
        raise InputError("\n  ".join([head, *wrong]) + "\nadd steps to match.by, or allow a larger match.tolerance")
    return done, f"times of a step were measured with a standard error of up to {noise:.1%}"


def _unmet(variant: Variant, noise: float) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in variant.solved.items()) or "as it is"
    return f"{variant.name}: the closest is {chosen}, {variant.off_by:+.1%} (noise {noise:.1%})"


def _rounds(measured: dict[str, Any], every: Sequence[Variant]) -> dict[str, list[float]]:
    """Seconds of a step in each round, by variant."""
    for variant in every:
        if not measured[variant.name]["step_seconds"]:
            raise InputError(f"{variant.name}: its time can't be measured: {measured[variant.name]['reason']}")
    return {variant.name: list(measured[variant.name]["step_seconds"]) for variant in every}


def _ratio(rounds: dict[str, list[float]], base: Variant, variant: Variant) -> tuple[float, float]:
    """The time of a step as a multiple of the base's in the same round, and its relative standard error.

    A moment in which the machine is slow hits both.
    """
    pairs = zip(rounds[variant.name], rounds[base.name], strict=False)
    found = [mine / theirs for mine, theirs in pairs]
    typical = median(found)
    # Of a median, whose standard error is 1.25 times that of a mean.
    return typical, 1.25 * stdev(found) / math.sqrt(len(found)) / typical if len(found) > 1 else 0.0


def _off_by(base: Variant, variant: Variant, rounds: dict[str, list[float]]) -> float:
    return _ratio(rounds, base, variant)[0] * variant.run.config.steps / base.run.config.steps - 1


def _with_time(base: Variant, variant: Variant, known: dict[str, list[float]]) -> Variant:
    steps = max(1, round(base.run.config.steps / _ratio(known, base, variant)[0]))
    return replace(variant.with_steps(steps), solved={"steps": steps})


def _solved(base: Variant, variant: Variant, study: Study, measure: Measure) -> Variant:
    """A size found by measuring: the base takes its turns beside every trial, so that a slow moment hits both."""
    known: dict[str, float] = {}

    def cost(trial: Variant) -> float:
        key = repr(sorted(trial.solved.items()))
        if key not in known:
            rounds = _rounds(measure([base, trial]), [base, trial])
            known[key] = 1 + _off_by(base, trial, rounds)
        return known[key]

    return solve(variant, cost, 1.0, study.match).variant
