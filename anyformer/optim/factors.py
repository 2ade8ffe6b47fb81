"""Schedules as plain functions: the factor on the learning rate at a step, counted from 0, of `total` steps.

`torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: cosine(step, total))` is a scheduler of torch. Spans (warmup,
decay) below 1 are shares of all steps; from 1 on they are steps.
"""

from __future__ import annotations

from anyformer.errors import InputError
from anyformer.optim.schedule import Constant, Cosine, InverseSqrt, Linear, Schedule, Trapezoid


def cosine(step: int, total: int, *, warmup: float = Cosine.warmup, floor: float = Cosine.floor) -> float:
    """Warm up in a straight line, then go down along half a cosine to `floor`."""
    return _factor(Cosine(warmup=warmup, floor=floor), step, total)


def linear(step: int, total: int, *, warmup: float = Linear.warmup, floor: float = Linear.floor) -> float:
    """Warm up in a straight line, then go down in another to `floor`."""
    return _factor(Linear(warmup=warmup, floor=floor), step, total)


def wsd(
    step: int,
    total: int,
    *,
    warmup: float = Trapezoid.warmup,
    decay: float = Trapezoid.decay,
    floor: float = Trapezoid.floor,
) -> float:
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
    if step < 0:
        wrong.append(f"step: {step} is not at least 0")
    if total < 1:
        wrong.append(f"total: {total} is not at least 1")
    if wrong:
        raise InputError("\n  ".join([f"{schedule.kind}: these can't be:", *wrong]))
    return schedule.factor(step, total)
