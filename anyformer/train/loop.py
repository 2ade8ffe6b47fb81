"""A plain loop for a short run: batches in, a better model out, one record for each step, until a budget is spent."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from anyformer.data.loader import BatchLoader
from anyformer.optim.schedule import Schedule
from anyformer.train.events import Budget
from anyformer.train.train_step import TrainStep


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What a step did."""

    step: int
    loss: float
    """Mean cross-entropy of the step's rows in nats per token, before the update; smoothed if the spec says so."""
    gradient_norm: float
    rate: float
    tokens: int
    seconds: float
    progress: float
    skipped: bool
    """Loss or gradient were not finite, so the weights were left as they were."""


Clock = Callable[[], float]


def train(
    train_step: TrainStep,
    loader: BatchLoader,
    *,
    schedule: Schedule,
    budget: Budget,
    seed: int,
    clock: Clock | None = None,
) -> Iterator[StepRecord]:
    """Train until the budget is spent; the caller's time between steps counts only if `clock` measures it."""
    model = train_step.model
    model.train()
    step = tokens = 0
    seconds = 0.0

    def over() -> float:
        return budget.progress(step, seconds if clock is None else clock())

    while (progress := over()) < 1.0:
        begun = time.perf_counter()
        batch, rate = loader.batch(step), schedule.at(progress)
        found = train_step.step(batch, seed=seed, step=step, factor=rate).read()
        tokens += batch.tokens
        step += 1
        seconds += time.perf_counter() - begun
        yield StepRecord(
            step=step, loss=found.loss, gradient_norm=found.norm, rate=rate, tokens=tokens, seconds=seconds,
            progress=over(), skipped=found.skipped,
        )  # fmt: skip
        train_step.settle(found, step, batch)
    model.eval()
