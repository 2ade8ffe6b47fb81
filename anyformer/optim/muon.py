"""Muon (Jordan et al. 2024): momentum, made orthogonal, for the matrices inside a model.

The update of a matrix is the nearest matrix with all singular values equal to one, found by a few Newton-Schulz
steps. Matrices of one shape are stacked and done in one batched product: small models spend their time on calls.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.optim.clip import as_dtensor
from anyformer.optim.rule import OptimizedParam, Rule, StepSize, Update, chosen, lists, local, pieces

QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x -> a x + b x^3 + c x^5: five rounds bring singular values from (0.001, 1] to about 0.7 ... 1.2."""
STACK = {"cpu": 2**18}
"""Numbers of a stack. On a CPU they stay in its caches, and there are several stacks for several cores."""
LARGE_STACK = 2**26
"""The same on an accelerator, where only memory is a limit."""


def orthogonalised(g_NRC: Tensor, rounds: int = 5) -> Tensor:
    """The orthogonal factor of each matrix of a stack, approximately; in bf16 on an accelerator, fp32 on a CPU."""
    a, b, c = QUINTIC
    tall = g_NRC.shape[-2] > g_NRC.shape[-1]
    x = g_NRC.mT if tall else g_NRC
    if x.device.type == "cpu":
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.device.type != "cpu":
        x = x.to(torch.bfloat16)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(g_NRC.dtype)
    return x.mT if tall else x


class MuonRule(Rule):
    """Nesterov momentum whose update is made orthogonal and scaled to the root mean square that Adam would give.

    The factor 0.2 sqrt(max(rows, columns)) (Liu et al. 2025) lets one learning rate and one weight decay serve
    matrices of every shape, and AdamW beside it. A parameter of more dimensions is a stack of matrices.
    """

    def __init__(self, *, momentum: float, rounds: int = 5) -> None:
        self.momentum, self.rounds = momentum, rounds

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        if weight.dim() < 2:
            raise TypeError(f"Muon is for matrices, got a parameter of shape {tuple(weight.shape)}")
        return {"momentum": torch.zeros_like(weight)}

    def updates(self, moved: Sequence[OptimizedParam], pace: StepSize) -> list[tuple[int, Update]]:
        alike: dict[tuple[tuple[int, int], torch.dtype, torch.device], list[OptimizedParam]] = {}
        for each in moved:
            alike.setdefault((_flat(each.weight), each.weight.dtype, each.weight.device), []).append(each)
        found: list[tuple[int, Update]] = []
        for ((few, many), _, _), some in alike.items():
            for stack in pieces(some, STACK.get(some[0].weight.device.type, LARGE_STACK)):
                work = few * sum(each.weight.numel() for each in stack)
                found.append((work, functools.partial(self._move, stack, (few, many), pace)))
        return found

    @torch.no_grad()
    def _move(self, moved: list[OptimizedParam], shape: tuple[int, int], pace: StepSize) -> None:
        gradients = [each.gradient for each in moved]
        kept = [local(each.slots["momentum"]) for each in moved]
        after = lists._foreach_lerp(kept, gradients, 1 - self.momentum)
        ahead = lists._foreach_lerp(gradients, after, self.momentum)
        lists._foreach_copy_(kept, after if pace.skip is None else _all_or_none(pace.skip, kept, after))
        # A wide matrix has the same orthogonal factor as its tall twin, so both kinds share a stack.
        wide = [_wide(_whole(each, found)) for each, found in zip(moved, ahead, strict=True)]
        size = pace.rate * (0.2 * shape[1] ** 0.5)
        update_NRC = orthogonalised(torch.cat(wide), self.rounds) * size
        shrunk = 1 - pace.rate * pace.decay
        if pace.skip is not None:
            # w * 1 - 0 is w to the bit, and what is not finite is gone.
            update_NRC = chosen(pace.skip, torch.zeros_like(update_NRC), update_NRC)
            one = torch.ones((), dtype=update_NRC.dtype, device=update_NRC.device)
            shrunk = chosen(pace.skip, one, one * shrunk)
        weights = [local(each.weight) for each in moved]
        steps = update_NRC.split([stack.shape[0] for stack in wide])
        lists._foreach_mul_(weights, shrunk)
        lists._foreach_sub_(weights, [_share(each, step) for each, step in zip(moved, steps, strict=True)])
        for each in moved:
            each.finish()


def _all_or_none(skip: Tensor, old: list[Tensor], new: list[Tensor]) -> list[Tensor]:
    """The old tensors where a step is skipped, with a few calls for all of them."""
    picked = chosen(skip, torch.cat([t.flatten() for t in old]), torch.cat([t.flatten() for t in new]))
    parts = picked.split([t.numel() for t in old])
    return [part.view(t.shape) for part, t in zip(parts, old, strict=True)]


def _flat(weight: Tensor) -> tuple[int, int]:
    """Rows and columns of a matrix that lies on its longer side."""
    rows, columns = weight.shape[-2:]
    return min(rows, columns), max(rows, columns)


def _wide(whole: Tensor) -> Tensor:
    """A parameter as a stack of matrices that lie on their longer side."""
    stack = whole.reshape(-1, *whole.shape[-2:])
    return stack.mT if stack.shape[-2] > stack.shape[-1] else stack


def _whole(each: OptimizedParam, part: Tensor) -> Tensor:
    """All of what processes hold in parts: the factor of a part is not a part of the factor."""
    weight = as_dtensor(each.weight)
    if weight is None:
        return part
    mesh, where, shape, stride = weight.device_mesh, weight.placements, weight.shape, weight.stride()
    return type(weight).from_local(part, mesh, where, run_check=False, shape=shape, stride=stride).full_tensor()


def _share(each: OptimizedParam, stack: Tensor) -> Tensor:
    """What this process holds of an update, in the shape of its weight."""
    shape, weight = each.weight.shape, as_dtensor(each.weight)
    whole = (stack.mT if shape[-2] > shape[-1] else stack).reshape(shape)
    if weight is None:
        return whole
    from torch.distributed.tensor import Replicate

    # Every process made the same update, so each takes its part and nothing is sent.
    everywhere = [Replicate()] * weight.device_mesh.ndim
    made = type(weight).from_local(whole.contiguous(), weight.device_mesh, everywhere, run_check=False)
    return made.redistribute(placements=weight.placements).to_local()
