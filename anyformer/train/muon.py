"""Muon (Jordan et al. 2024): momentum, made orthogonal, for the matrices inside a model.

The update of a matrix is the nearest matrix with all singular values equal to one, found by a few Newton-Schulz
steps. Matrices of one shape are stacked and done in one batched product: small models spend their time on calls.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x -> a x + b x^3 + c x^5: five rounds bring singular values from (0.001, 1] to about 0.7 ... 1.2."""


def orthogonalised(g_NRC: Tensor, steps: int = 5) -> Tensor:
    """The orthogonal factor of each matrix of a stack, approximately.

    On an accelerator the products run in bf16, which is precise enough for a direction; on a CPU in fp32.
    """
    a, b, c = QUINTIC
    tall = g_NRC.shape[-2] > g_NRC.shape[-1]
    x = g_NRC.mT if tall else g_NRC
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.device.type == "cuda":
        x = x.to(torch.bfloat16)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(g_NRC.dtype)
    return x.mT if tall else x


class Muon(torch.optim.Optimizer):
    """Nesterov momentum whose update is made orthogonal and scaled to the root mean square that Adam would give.

    The factor 0.2 sqrt(max(rows, columns)) (Liu et al. 2025) lets one learning rate and one weight decay serve
    matrices of every shape, and AdamW beside it.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 0.01,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        steps: int = 5,
    ) -> None:
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "steps": steps})
        for group in self.param_groups:
            for p in group["params"]:
                if p.dim() != 2:
                    raise ValueError(f"Muon is for matrices, got a parameter of shape {tuple(p.shape)}")

    def step(self, closure: Any = None) -> Any:
        """One update of every matrix that has a gradient."""
        if closure is not None:
            raise TypeError("Muon takes no closure; call backward before step")
        for update in self.updates():
            update()

    def updates(self) -> list[Callable[[], None]]:
        """The step in pieces that may run at the same time, the longest first: one for each shape."""
        found: list[tuple[int, Callable[[], None]]] = []
        for group in self.param_groups:
            alike: dict[tuple[int, int], list[Tensor]] = {}
            for p in group["params"]:
                if p.grad is not None:
                    alike.setdefault((p.shape[0], p.shape[1]), []).append(p)
            for shape, matrices in alike.items():
                work = len(matrices) * min(shape) ** 2 * max(shape)
                found.append((work, functools.partial(self._update, matrices, shape, group)))
        return [update for _, update in sorted(found, key=lambda each: -each[0])]

    @torch.no_grad()
    def _update(self, matrices: list[Tensor], shape: tuple[int, int], group: dict[str, Any]) -> None:
        ahead: list[Tensor] = []
        for p in matrices:
            if p.grad is not None:
                buffer = self._momentum(p).lerp_(p.grad, 1 - group["momentum"])
                ahead.append(p.grad.lerp(buffer, group["momentum"]))
        update_NRC = orthogonalised(torch.stack(ahead), group["steps"])
        size = group["lr"] * 0.2 * max(shape) ** 0.5
        for p, update in zip(matrices, update_NRC, strict=True):
            p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=size)

    def _momentum(self, p: Tensor) -> Tensor:
        state = self.state[p]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(p)
        return state["momentum"]
