"""How often comparisons are wrong, and how often they find a planted difference, on a pool of real final losses.

Each redraw makes a study of the pool: every name gets its own runs, no run is used twice, and `compare` judges it as it
judges any other study.
"""

import math
import random
from collections.abc import Iterator, Sequence

from anyformer.errors import InputError
from anyformer.lab.results import BASE, Results, RunResult, VariantResult
from anyformer.lab.statistics.comparison import POOL_BELOW, compare
from anyformer.lab.statistics.estimates import variance


def null_study(
    values: Sequence[float],
    *,
    names: int = 8,
    seeds: int = 5,
    redraws: int = 200,
    seed: int = 0,
    pool_below: int = POOL_BELOW,
) -> float:
    """The share of redraws in which anything is claimed, where nothing differs but chance."""
    drawn = list(_studies(values, names, seeds, redraws, seed, shift=0.0))
    claims = sum(any(each.marked for each in compare(study, pool_below=pool_below)) for study in drawn)
    return claims / redraws


def planted_study(
    values: Sequence[float],
    *,
    shift_sds: float = 5.0,
    names: int = 8,
    seeds: int = 5,
    redraws: int = 200,
    seed: int = 0,
    pool_below: int = POOL_BELOW,
) -> float:
    """The share of redraws that find the one name whose losses are lower by so many standard deviations of the pool."""
    shift = shift_sds * math.sqrt(variance(values))
    found = 0
    for study in _studies(values, names, seeds, redraws, seed, shift=shift):
        found += compare(study, pool_below=pool_below)[0].outcome == "better"
    return found / redraws


def _studies(
    values: Sequence[float], names: int, seeds: int, redraws: int, seed: int, *, shift: float
) -> Iterator[Results]:
    """Studies of disjoint draws; the first name after the base is better by `shift`."""
    if names < 2 or names * seeds > len(values):
        raise InputError(
            f"{names} names with {seeds} disjoint seeds each can't be drawn from {len(values)} values; two names or "
            "more are needed, and as many values as runs"
        )
    rng = random.Random(seed)
    for _ in range(redraws):
        drawn = rng.sample(list(values), names * seeds)
        variants: list[VariantResult] = []
        for i in range(names):
            losses = drawn[i * seeds : (i + 1) * seeds]
            runs = [
                RunResult(seed=j, status="finished", metrics={"loss": loss - (shift if i == 1 else 0.0)})
                for j, loss in enumerate(losses)
            ]
            variants.append(VariantResult(name=BASE if i == 0 else f"name {i}", runs=runs))
        yield Results(title="calibration", variants=variants)
