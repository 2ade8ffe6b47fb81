"""AdamW in one fused kernel for all parameters of a group."""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from anyformer.optim.rule import OptimizedParam, Rule, StepSize, Update, local, pieces

CAST = 2**26
"""Gradients that are widened to float32 at once, in numbers: more would take as much memory as the weights."""


class AdamWRule(Rule):
    """Running means of gradients and of their squares, and the number of steps that made them."""

    def __init__(self, *, betas: tuple[float, float], eps: float) -> None:
        self.betas, self.eps = betas, eps

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        return {
            "exp_avg": torch.zeros_like(weight),
            "exp_avg_sq": torch.zeros_like(weight),
            # Beside the weights, where the fused kernel reads it without waiting.
            "step": torch.zeros((), dtype=torch.float32, device=weight.device),
        }

    def updates(self, moved: Sequence[OptimizedParam], pace: StepSize) -> list[tuple[int, Update]]:
        cast = any(each.weight.dtype != each.parameter.dtype for each in moved)
        cut = pieces(moved, CAST) if cast else [list(moved)]
        return [(sum(p.weight.numel() for p in some), functools.partial(self._move, some, pace)) for some in cut]

    @torch.no_grad()
    def _move(self, moved: list[OptimizedParam], pace: StepSize) -> None:
        adamw(
            [local(each.weight) for each in moved],
            [each.gradient for each in moved],
            [local(each.slots["exp_avg"]) for each in moved],
            [local(each.slots["exp_avg_sq"]) for each in moved],
            [],
            [each.slots["step"] for each in moved],
            fused=True,
            # Made for loss scaling: the kernel leaves weights, means and steps alone where it reads 1.
            found_inf=None if pace.skip is None else pace.skip.to(torch.float32),
            amsgrad=False,
            beta1=self.betas[0],
            beta2=self.betas[1],
            lr=pace.rate,
            weight_decay=pace.decay,
            eps=self.eps,
            maximize=False,
        )
        for each in moved:
            each.finish()
