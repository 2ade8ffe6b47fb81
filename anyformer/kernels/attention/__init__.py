"""Attention: the one public call, and the kernels behind it in order of preference.

Shapes: q (B,T,H,K), k and v (B,S,G,K) with G dividing H, result (B,T,H,K).
score = scale q.k + bias, then the soft-cap, then what the mask forbids becomes -inf, then the mixer's weights.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.attention import native, reference
from anyformer.kernels.choose import Choice, Kernel, Request, Terms, choose

KERNELS: tuple[Kernel, ...] = (native.KERNEL, reference.KERNEL)
"""Closed on purpose: the order is policy."""


def choice(request: Request) -> Choice:
    """The kernel for a request, with the refusals of the faster ones."""
    return choose(request, KERNELS)


def attend(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, *, kernel: Kernel | None = None, **terms: Any) -> Tensor:
    """Attention by the given kernel, or by the one that the request asks for. `terms` are the fields of `Terms`."""
    given = Terms(**terms)
    if kernel is None:
        _check(q_BTHK, k_BSGK, v_BSGK, causal=given.causal, mask=given.mask, bias=given.bias)
        request = Request(
            device=q_BTHK.device.type,
            dtype=q_BTHK.dtype,
            phase="train" if q_BTHK.requires_grad else "prefill",
            mask="causal" if given.causal else "none" if given.mask is None else "dense",
            mixer=given.mixer,
            bias=given.bias is not None,
            softcap=given.softcap is not None,
            reads_probs=given.values is not None,
            dropout=given.dropout > 0,
        )
        kernel = choice(request).kernel
    return kernel.run(q_BTHK, k_BSGK, v_BSGK, given)


def _check(q: Tensor, k: Tensor, v: Tensor, *, causal: bool, mask: Tensor | None, bias: Tensor | None) -> None:
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or q.shape[0] != k.shape[0] or q.shape[3] != k.shape[3]:
        raise InputError(f"attend takes q (B,T,H,K) and k, v (B,S,G,K), got {[tuple(t.shape) for t in (q, k, v)]}")
    if q.shape[2] % k.shape[2]:
        raise InputError(f"{k.shape[2]} key heads do not divide {q.shape[2]} query heads")
    if causal and (mask is not None or q.shape[1] != k.shape[1]):
        raise InputError("causal=True is for as many keys as queries and no mask; pass a mask otherwise")
    if mask is not None and mask.dtype != torch.bool:
        raise InputError(f"mask: expected True where a key may be seen, got {mask.dtype}; numbers to add are a bias")
    pairs = (q.shape[0], q.shape[2], q.shape[1], k.shape[1])
    for name, given in (("mask", mask), ("bias", bias)):
        if given is not None and not _spreads(tuple(given.shape), pairs):
            raise InputError(f"{name}: {tuple(given.shape)} can't be spread over (B,H,T,S) = {pairs}")


def _spreads(shape: tuple[int, ...], wanted: tuple[int, ...]) -> bool:
    ends = zip(reversed(shape), reversed(wanted), strict=False)
    return len(shape) <= len(wanted) and all(n in (1, m) for n, m in ends)
