"""Gradient norms and clipping, for whole gradients and for those that are cut over processes."""

import functools
import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import InputError
from anyformer.optim.rule import as_dtensor, lists, local


def clip(parameters: Iterable[nn.Parameter], limit: float = math.inf) -> Tensor:
    """Clip the norm of all gradients to `limit`; the norm before, without waiting for it."""
    every = list(parameters)
    gradients = [g for p in every if (g := settled(p)) is not None]
    if not gradients:
        return torch.zeros((), device=every[0].device if every else None)
    norm = total_norm(gradients)
    if limit != math.inf:
        # As torch does it: never up, and the tiny number keeps 0 / 0 away.
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        for device in {gradient.device for gradient in gradients}:
            lists._foreach_mul_([local(g) for g in gradients if g.device == device], factor.to(device))
    return norm


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all numbers of all tensors, as a float32 (or float64) scalar on their device; alike on all processes."""
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        # bf16 and float32 are summed alike; float64 or another device is summed on its own.
        key = _cut(tensor), torch.promote_types(tensor.dtype, torch.float32), tensor.device
        alike.setdefault(key, []).append(local(tensor))
    norms: list[Tensor] = []
    for (cut, wide, _), parts in alike.items():
        # The sums run in float32 anyway; this keeps their results from being rounded for each tensor.
        norm = torch.linalg.vector_norm(torch.stack(lists._foreach_norm(parts, 2.0, dtype=wide)))
        if cut is not None:
            # Of these tensors each process holds a part.
            mesh, directions = cut
            square = norm.square()
            for direction in directions:
                torch.distributed.all_reduce(square, group=mesh.get_group(direction))
            norm = square.sqrt()
        norms.append(norm)
    if len(norms) == 1:
        return norms[0]
    widest = functools.reduce(torch.promote_types, (norm.dtype for norm in norms))
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))


def _cut(tensor: Tensor) -> Any:
    """The processes that hold a tensor, and along which of their directions it is cut; None if it is whole."""
    held = as_dtensor(tensor)
    # A dimension that is cut twice has a placement of its own, which says that it is no shard.
    cut = () if held is None else tuple(i for i, where in enumerate(held.placements) if not where.is_replicate())
    return (held.device_mesh, cut) if held is not None and cut else None


def settled(parameter: nn.Parameter) -> Tensor | None:
    """The gradient, cut as its parameter is; what several processes have still to add up is added here."""
    gradient = None if parameter.grad is None else as_dtensor(parameter.grad)
    data = None if gradient is None else as_dtensor(parameter.data)
    if gradient is not None and data is not None and gradient.placements != data.placements:
        parameter.grad = gradient.redistribute(placements=data.placements)
    return parameter.grad


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float = math.inf) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_, with sums in float32 whatever the gradients' dtype; the norm before clipping.

    A norm that is not finite makes every gradient NaN: look at it before the step. Without a limit it only measures.
    """
    if isinstance(max_norm, bool) or not max_norm > 0:
        raise InputError(f"clip_grad_norm_: max_norm {max_norm!r} is not above 0")
    given: Any = [parameters] if isinstance(parameters, Tensor) else parameters
    return clip(given, max_norm)
