"""Learning-rate schedules: a factor on the peak for each step of a run."""

import math
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.errors import InputError
from anyformer.registry import OpenAxis
from anyformer.specs.axes import Problem

CLOCK = 1000.0
"""A run by the clock does not know its steps; it is taken for one of so many."""


def at_least(node: object, least: float, *names: str) -> Iterator[Problem]:
    """Fields of a config node that are below their least value; one that is unset is not."""
    for name in names:
        if (getattr(node, name) or 0.0) < least:
            yield name, f"{getattr(node, name):g} is not at least {least}"


@dataclass(frozen=True, kw_only=True)
class Schedule(OpenAxis, axis="schedule", leaves="anyformer.optim.schedule"):
    """How fast a run learns at each of its steps. Spans below 1 are shares of the run; from 1 on they are steps."""

    warmup: float = 0.02
    """The span in which the factor rises in a straight line to 1."""

    def factor(self, step: float, total: float) -> float:
        """The factor of a step, counted from 0, of so many. The first step already has a little, the last one still."""
        return min(self.rising(step, total), self.shape(step, total))

    def at(self, progress: float) -> float:
        """The factor of a run by the clock, of which so much is over."""
        return self.factor(progress * CLOCK, CLOCK)

    def shape(self, step: float, total: float) -> float:
        """The factor without the warm-up."""
        raise TypeError(f"schedule kind {self.kind!r} defines no shape()")

    def rising(self, step: float, total: float) -> float:
        """The factor of the warm-up alone; at least 1 after it."""
        warmup = span(self.warmup, total)
        return (step + 1) / warmup if step < warmup else 1.0

    def after(self, step: float, total: float) -> float:
        """How much of what follows the warm-up is over, from 0 to 1."""
        warmup = min(span(self.warmup, total), total)
        return min(max((step - warmup) / max(total - warmup, 1.0), 0.0), 1.0)

    def problems(self) -> Iterator[Problem]:
        yield from at_least(self, 0, "warmup")


@dataclass(frozen=True, kw_only=True)
class Decaying(Schedule):
    """A schedule that ends at a floor."""

    floor: float = 0.0

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not 0 <= self.floor <= 1:
            yield "floor", f"{self.floor:g} is not from 0 to 1"


@dataclass(frozen=True, kw_only=True)
class Trapezoid(Decaying, kind="wsd"):
    """Warm up, stay, and decay linearly (WSD: warm-up, stable, decay; Hu et al. 2024)."""

    decay: float = 0.5
    """The span of the decay."""

    def shape(self, step: float, total: float) -> float:
        decay = span(self.decay, total)
        left = min((total - step) / decay, 1.0) if decay else 1.0
        return max(self.floor + (1 - self.floor) * left, self.floor)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        yield from at_least(self, 0, "decay")


@dataclass(frozen=True, kw_only=True)
class Cosine(Decaying, kind="cosine"):
    """Warm up, then decay along half a cosine (Loshchilov and Hutter 2017)."""

    floor: float = 0.1

    def shape(self, step: float, total: float) -> float:
        return self.floor + (1 - self.floor) * 0.5 * (1 + math.cos(math.pi * self.after(step, total)))


@dataclass(frozen=True, kw_only=True)
class Linear(Decaying, kind="linear"):
    """Warm up, then decay linearly."""

    def shape(self, step: float, total: float) -> float:
        return self.floor + (1 - self.floor) * (1 - self.after(step, total))


@dataclass(frozen=True, kw_only=True)
class InverseSqrt(Schedule, kind="inverse_sqrt"):
    """Warm up, then fall with the root of the step (Vaswani et al. 2017, eq. 3).

    Theirs is d^-0.5 min(s^-0.5, s w^-1.5) with s from 1, whose peak, at s = w, is (d w)^-0.5; here the peak is given.
    """

    warmup: float = 4000.0

    def shape(self, step: float, total: float) -> float:
        return (max(span(self.warmup, total), 1.0) / (step + 1)) ** 0.5


@dataclass(frozen=True, kw_only=True)
class Constant(Schedule, kind="constant"):
    """Warm up, then stay."""

    def shape(self, step: float, total: float) -> float:
        return 1.0


def span(given: float, total: float) -> float:
    """A span in steps."""
    return given if given >= 1 else given * total


def cosine(step: int, total: int, *, warmup: float = Cosine.warmup, floor: float = Cosine.floor) -> float:
    """Warm up in a straight line, then go down along half a cosine to `floor`."""
    return _factor(Cosine(warmup=warmup, floor=floor), step, total)


def linear(step: int, total: int, *, warmup: float = Linear.warmup, floor: float = Linear.floor) -> float:
    """Warm up in a straight line, then go down in another to `floor`."""
    return _factor(Linear(warmup=warmup, floor=floor), step, total)


def wsd(step: int, total: int, *, warmup: float = 0.02, decay: float = 0.5, floor: float = 0.0) -> float:
    """Warm-up, stable, decay (Hu et al. 2024): the last `decay` go down in a straight line to `floor`."""
    return _factor(Trapezoid(warmup=warmup, decay=decay, floor=floor), step, total)


def inverse_sqrt(step: int, total: int, *, warmup: float = InverseSqrt.warmup) -> float:
    """Warm up in a straight line, then fall with the root of the step (Vaswani et al. 2017)."""
    return _factor(InverseSqrt(warmup=warmup), step, total)


def constant(step: int, total: int, *, warmup: float = Constant.warmup) -> float:
    """Warm up in a straight line, then stay at 1."""
    return _factor(Constant(warmup=warmup), step, total)


def _factor(schedule: Schedule, step: int, total: int) -> float:
    wrong = [f"{name}: {why}" for name, why in schedule.problems()]
    wrong += [f"step: {step} is not at least 0"] if step < 0 else []
    wrong += [f"total: {total} is not at least 1"] if total < 1 else []
    if wrong:
        raise InputError("\n  ".join([f"{schedule.kind}: these can't be:", *wrong]))
    return schedule.factor(step, total)
