"""Matching: sizes of each variant solved so that it has the base's parameters, training FLOPs or time.

Every cost grows with every knob, so a knob is found by bisection over its admissible values: widths that heads divide,
whole layers, whole feed-forward channels. Loads no torch; times are measured elsewhere and given as a function.
"""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from anyformer.errors import InputError, SpecError
from anyformer.lab.study import Match
from anyformer.lab.variants import Variant

Cost = Callable[[Variant], float]
ROUND = (8, 1)
"""Feed-forward widths are multiples of the first of these that is close enough: kernels like round numbers."""
LARGEST = {"depth": 4096}
"""No knob is turned further than this, or `FAR`: where layers share their parameters, for example, no depth is enough."""
FAR = 2**20
SKIP = 8
"""So many values in a row may be none that a spec can have before there are no others."""
PART = re.compile(r"^(?:(?:encoder|decoder)\.)?(?:layers\.[^.]+\.)?")
"""Where a name says something of some layers only."""
NEIGHBOURS = 3
"""How many values of a coarse knob on either side of the best one are tried for the next knob to make up."""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A variant with a knob at some value, and how far it is from the target."""

    variant: Variant
    off_by: float

    @property
    def distance(self) -> float:
        return abs(self.off_by)


def costs(to: str) -> Cost:
    """What is matched, from the spec and the config alone."""
    return (lambda variant: float(variant.params)) if to == "params" else (lambda variant: variant.train_flops)


def matched(every: Sequence[Variant], match: Match, cost: Cost | None = None) -> list[Variant]:
    """All variants at the cost of the first one, which stays as it is. One InputError names all that can't be."""
    cost, base = cost or costs(match.to), every[0]
    target = cost(base)
    found, wrong = [replace(base, off_by=0.0)], list[str]()
    for variant in every[1:]:
        best = solve(variant, cost, target, match)
        if best.distance > match.within:
            wrong.append(_unmet(variant, best, match))
        found.append(best.variant)
    if wrong:
        head = f"{match.to} can't be matched within {match.within:.2%} of the base by {', '.join(match.by)}, so nothing was begun:"
        tail = "add a finer knob (match.by), a larger tolerance, or leave these variants out"
        raise InputError("\n  ".join([head, *wrong]) + f"\n{tail}")
    return found


def _unmet(variant: Variant, best: Trial, match: Match) -> str:
    chosen = ", ".join(f"{name}={value}" for name, value in best.variant.solved.items()) or "as it is"
    return f"{variant.name}: the closest is {chosen}, {best.off_by:+.3%}"


def solve(variant: Variant, cost: Cost, target: float, match: Match) -> Trial:
    """The best values of the knobs, one after the other. What the variant itself is about is never turned."""
    off_by = cost(variant) / target - 1
    as_is = Trial(variant=replace(variant, off_by=off_by), off_by=off_by)
    knobs = [knob for knob in match.by if not varied(variant, knob)]
    return as_is if as_is.distance <= match.within or not knobs else _turn(as_is, cost, target, match, knobs)


def varied(variant: Variant, knob: str) -> bool:
    """Whether a variant is about a knob itself, in all layers or in some."""
    if knob == "steps":
        return any(name.startswith("stages") and name.endswith("steps") for name in variant.changes)
    return any(PART.sub("", name) == knob for name in variant.changes)


def _turn(now: Trial, cost: Cost, target: float, match: Match, knobs: Sequence[str]) -> Trial:
    """Solve for the first knob; where it leaves too much, the next one starts from its best value and neighbours of it."""
    knob, *rest = knobs
    best = now
    for step in _steps(now.variant, knob):
        middle = _bisect(now.variant, knob, step, cost, target)
        if middle is None:
            continue
        reach = NEIGHBOURS if rest else 1
        tried = _around(now.variant, knob, middle, step, cost, target, reach)
        for trial in sorted(tried, key=lambda each: each.distance):
            settled = _turn(trial, cost, target, match, rest) if rest and trial.distance > match.within else trial
            best = min(best, settled, key=lambda each: each.distance)
            if best.distance <= match.within:
                return best
    return best


def _around(variant: Variant, knob: str, middle: int, step: int, cost: Cost, target: float, reach: int) -> list[Trial]:
    """The value itself, and so many on either side of it that a spec can have."""
    found = [_trial(variant, knob, middle * step, cost, target)]
    for way in (1, -1):
        at, left = middle, reach
        while left and abs(at - middle) < SKIP * reach and at + way > 0:
            at += way
            trial = _trial(variant, knob, at * step, cost, target)
            found.append(trial)
            left -= trial is not None
    return [trial for trial in found if trial is not None]


def _steps(variant: Variant, knob: str) -> tuple[int, ...]:
    """What a knob's values are multiples of, the coarse choice first."""
    if knob == "ffn.width":
        return ROUND
    if knob == "width":
        # Halves of a head are rotated, and every head is as wide as the others.
        heads = [layer.attention.heads for stack in variant.run.spec.stacks for layer in stack.layers]
        return (2 * math.lcm(*heads),)
    return (1,)


def _bisect(variant: Variant, knob: str, step: int, cost: Cost, target: float) -> int | None:
    """The largest multiple of the step whose cost is not above the target; of those that can't be, the next one counts."""
    low, high = 0, 1
    while high * step <= LARGEST.get(knob, FAR):
        trial = _next_valid(variant, knob, high, step, cost, target)
        if trial is None:
            return low or None
        if trial.off_by > 0:
            break
        low, high = high, high * 2
    else:
        return low
    while high - low > 1:
        middle = (low + high) // 2
        trial = _next_valid(variant, knob, middle, step, cost, target)
        low, high = (low, middle) if trial is None or trial.off_by > 0 else (middle, high)
    return max(low, 1)


def _next_valid(variant: Variant, knob: str, value: int, step: int, cost: Cost, target: float) -> Trial | None:
    for higher in range(value, value + SKIP):
        if (trial := _trial(variant, knob, higher * step, cost, target)) is not None:
            return trial
    return None


def _trial(variant: Variant, knob: str, value: int, cost: Cost, target: float) -> Trial | None:
    """The variant with a knob at a value; None if such a spec can't be."""
    if value < 1:
        return None
    try:
        made = variant.with_steps(value) if knob == "steps" else variant.with_spec({knob: value})
    except (SpecError, InputError):
        return None
    made = replace(made, solved={**variant.solved, knob: value})
    off_by = cost(made) / target - 1
    return Trial(variant=replace(made, off_by=off_by), off_by=off_by)
