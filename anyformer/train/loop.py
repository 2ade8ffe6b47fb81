"""The training loop: rows in, a better model out, one record for each step."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from anyformer.data.rows import Rows
from anyformer.errors import TrainingError
from anyformer.model.models import Model
from anyformer.model.reversible import replays_dropout
from anyformer.train.budget import Budget
from anyformer.train.crew import Crew
from anyformer.train.optim import Optimizers
from anyformer.train.schedule import Trapezoid

PATIENCE = 10
"""So many steps in a row may be skipped before a run gives up."""


@dataclass(frozen=True, kw_only=True)
class StepRecord:
    """What a step did."""

    step: int
    loss: float
    """Mean cross-entropy of the step's rows in nats per token, before the update; smoothed if the spec says so."""
    gradient_norm: float
    rate: float
    """Factor on the peak learning rates."""
    tokens: int
    """Tokens learned from so far."""
    seconds: float
    """Time spent in steps so far."""
    progress: float
    """How much of the run is over after the step."""
    skipped: bool
    """Loss or gradient were not finite, so the weights were left as they were."""


def train(
    model: Model,
    rows: Rows,
    *,
    optimizers: Optimizers,
    schedule: Trapezoid,
    budget: Budget,
    crew: Crew,
    seed: int,
    clip: float = 1.0,
) -> Iterator[StepRecord]:
    """Train until the budget is spent. The caller may look at the model between steps: that time does not count.

    What is dropped in a step depends on (seed, step) alone, as its rows do, and on a crew of one.
    """
    device = next(model.parameters()).device
    parameters = list(optimizers.parameters())
    model.train()
    step = tokens = skipped = 0
    seconds = 0.0
    while (progress := budget.progress(step, seconds)) < 1.0:
        begun = time.perf_counter()
        ids_BT = torch.from_numpy(rows.batch(step)).to(device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed((seed * 1_000_003 + step) % 2**63)
            value = gradients(model, parameters, ids_BT, crew)
        norm = float(torch.nn.utils.clip_grad_norm_(parameters, clip))
        rate = schedule.factor(progress)
        # A number that is not finite must never reach the weights: nothing would bring them back.
        sound = math.isfinite(value) and math.isfinite(norm)
        if sound:
            optimizers.step(rate, crew)
        else:
            optimizers.forget()
        skipped = 0 if sound else skipped + 1
        tokens += ids_BT.numel()
        step += 1
        seconds += time.perf_counter() - begun
        yield StepRecord(
            step=step, loss=value, gradient_norm=norm, rate=rate, tokens=tokens, seconds=seconds,
            progress=budget.progress(step, seconds), skipped=not sound,
        )  # fmt: skip
        if skipped == PATIENCE:
            raise TrainingError(
                f"loss or gradient were not finite in {PATIENCE} steps up to step {step} (loss {value}); "
                "the spec may be unstable: try a norm before each branch (norm.placement = pre) or qk_norm"
            )
    model.eval()


def gradients(model: Model, parameters: list[nn.Parameter], ids_BT: Tensor, crew: Crew) -> float:
    """Leave in each parameter its gradient of the mean loss, and answer its cross-entropy.

    Each worker takes some of the rows. What they find is added in a fixed order, so that a step repeats to the bit.
    """

    def work(some_BT: Tensor) -> tuple[float, tuple[Tensor | None, ...]]:
        # All rows count as many labels, so the mean over the batch is the mean over rows.
        share = some_BT.shape[0] / ids_BT.shape[0]
        out = model(some_BT, labels=some_BT)
        found = torch.autograd.grad(out.loss * share, parameters, allow_unused=True)
        return float(out.losses["cross_entropy"].detach()) * share, found

    total = 0.0
    pieces = 1 if replays_dropout(model) else crew.size
    for value, found in crew.map(work, ids_BT.chunk(pieces)):
        total += value
        for parameter, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                parameter.grad = gradient if parameter.grad is None else parameter.grad.add_(gradient)
    return total
