"""Rotate and store: what comes between the merged q/k/v projection of few tokens and attention to pages, in one kernel.

Queries and keys are normed and rotated by position, keys and values go to their slots of the pool, queries come back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.attention.paged_cuda import DTYPES, has_triton
from anyformer.kernels.block_table import write

if TYPE_CHECKING:
    from anyformer.kernels.small_gemm import NormTerms

Layout = Literal["half", "interleaved"]
"""Pairs (i, i + R/2) or (2i, 2i + 1) of the R dimensions that turn."""


def rope_and_store_kv(
    qkv_NC: Tensor,
    *,
    heads: int,
    kv_heads: int,
    dim: int,
    slot_N: Tensor,
    k_PsGK: Tensor,
    v_PsGK: Tensor,
    scales: tuple[Tensor, Tensor] | None = None,
    cos_ND: Tensor | None = None,
    sin_ND: Tensor | None = None,
    layout: Layout = "half",
    q_norm: NormTerms | None = None,
    k_norm: NormTerms | None = None,
    v_norm: NormTerms | None = None,
    norm_last: bool = False,
    clip: float | None = None,
) -> Tensor:
    """Queries (N,H,K) of N tokens, whose keys and values are stored.

    qkv: query heads, key heads, value heads side by side. cos and sin are what `Rope.angles` gives for these tokens, with
    the sign in the sine, (N,R) or (1,R); R may be less than the head's width. slot: each token's place among all slots
    of the pool, page * size + slot in it. scales: (P,size,G) of an int8 pool. Norms are of each head; `norm_last`: those
    of queries and keys come after the rotation.
    """
    if qkv_NC.dim() != 2 or qkv_NC.shape[1] != (heads + 2 * kv_heads) * dim:
        raise InputError(
            f"rope_and_store_kv: {heads} + 2 x {kv_heads} heads of {dim} are {(heads + 2 * kv_heads) * dim} columns, got "
            f"{tuple(qkv_NC.shape)}"
        )
    for name, norm, count in (("q_norm", q_norm, heads), ("k_norm", k_norm, kv_heads), ("v_norm", v_norm, kv_heads)):
        for weight in {} if norm is None else norm.own.values():
            if weight.shape not in ((dim,), (count, dim)):
                raise InputError(
                    f"rope_and_store_kv: {name} is of each head, ({dim},), got weights {tuple(weight.shape)}"
                )
    norms = (q_norm, k_norm, v_norm)
    known = all(norm is None or norm.leaf.recipe() is not None for norm in norms)
    start = plain
    if qkv_NC.device.type == "cuda" and has_triton() and known and qkv_NC.dtype in DTYPES:
        from anyformer.kernels.small_gemm.rope_store_triton import launch as start
    return start(
        qkv_NC, heads, kv_heads, dim, slot_N, k_PsGK, v_PsGK, scales, cos_ND, sin_ND, layout, norms, norm_last, clip
    )


def plain(
    qkv_NC: Tensor, heads: int, kv_heads: int, dim: int, slot_N: Tensor, k_PsGK: Tensor, v_PsGK: Tensor,
    scales: tuple[Tensor, Tensor] | None, cos_ND: Tensor | None, sin_ND: Tensor | None, layout: Layout,
    norms: tuple[NormTerms | None, NormTerms | None, NormTerms | None], norm_last: bool, clip: float | None,
) -> Tensor:  # fmt: skip
    """The same in torch, operation by operation. The oracle."""
    y = qkv_NC if clip is None else qkv_NC.clamp(-clip, clip)
    parts = y.view(y.shape[0], -1, dim).split((heads, kv_heads, kv_heads), 1)
    turned: list[Tensor] = []
    for x_NHK, norm, turns in zip(parts, norms, (True, True, False), strict=True):
        late = norm_last and turns
        if norm is not None and not late:
            x_NHK = norm.leaf.apply(x_NHK, norm.own)
        if turns and cos_ND is not None and sin_ND is not None:
            x_NHK = rotated(x_NHK, cos_ND, sin_ND, layout)
        turned.append(norm.leaf.apply(x_NHK, norm.own) if norm is not None and late else x_NHK)
    q, k, v = turned
    for i, (pool, x_NGK) in enumerate(((k_PsGK, k), (v_PsGK, v))):
        write(pool, None if scales is None else scales[i], slot_N, x_NGK)
    return q.contiguous()


def rotated(x_NHK: Tensor, cos_ND: Tensor, sin_ND: Tensor, layout: Layout) -> Tensor:
    """Each pair turned: x cos + swapped(x) sin."""
    turning = cos_ND.shape[-1]
    x, rest = x_NHK[..., :turning], x_NHK[..., turning:]
    swapped = x.roll(turning // 2, -1) if layout == "half" else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    y = (x * cos_ND[:, None]).addcmul(swapped, sin_ND[:, None])
    return y if rest.shape[-1] == 0 else torch.cat((y, rest), -1)
