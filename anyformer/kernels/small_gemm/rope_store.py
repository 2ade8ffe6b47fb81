"""Rotate and store: what comes between the merged q/k/v projection of few tokens and attention to pages, in one kernel.

Queries and keys are normed and rotated by position, keys and values go to their slots of the pool, queries come back.
"""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.block_table import write
from anyformer.kernels.small_gemm.launch import FLOATS, NormTerms
from anyformer.kernels.triton_launch import has_triton

Layout = Literal["half", "interleaved"]
"""Pairs (i, i + R/2) or (2i, 2i + 1) of the R dimensions that turn."""


class RopeStoreArgs(NamedTuple):
    """N tokens, and where their keys and values go. Norms are of each head."""

    qkv_NC: Tensor
    """Query heads, key heads, value heads side by side."""
    heads: int
    kv_heads: int
    dim: int
    slot_N: Tensor
    """Each token's place among all slots of the pool, page * size + slot in it."""
    k_PsGK: Tensor
    v_PsGK: Tensor
    scales: tuple[Tensor, Tensor] | None = None
    """(P,size,G) of an int8 pool."""
    cos_ND: Tensor | None = None
    sin_ND: Tensor | None = None
    """What `Rope.angles` gives for these tokens, with the sign in the sine, (N,R) or (1,R); R may be less than `dim`."""
    layout: Layout = "half"
    q_norm: NormTerms | None = None
    k_norm: NormTerms | None = None
    v_norm: NormTerms | None = None
    norm_last: bool = False
    """Norms of queries and keys come after the rotation."""
    clip: float | None = None


def rope_and_store_kv(given: RopeStoreArgs) -> Tensor:
    """Queries (N,H,K) of N tokens, whose keys and values are stored."""
    norms = (given.q_norm, given.k_norm, given.v_norm)
    known = given.qkv_NC.dtype in FLOATS and all(norm is None or norm.leaf.recipe() is not None for norm in norms)
    if not (known and given.qkv_NC.is_cuda and has_triton()):
        return plain(given)
    from anyformer.kernels.small_gemm.rope_store_triton import launch

    return launch(given)


def plain(given: RopeStoreArgs) -> Tensor:
    """The same in torch, operation by operation. The oracle."""
    y = given.qkv_NC if given.clip is None else given.qkv_NC.clamp(-given.clip, given.clip)
    parts = y.view(y.shape[0], -1, given.dim).split((given.heads, given.kv_heads, given.kv_heads), 1)
    turned: list[Tensor] = []
    for x_NHK, norm, turns in zip(parts, (given.q_norm, given.k_norm, given.v_norm), (True, True, False), strict=True):
        late = given.norm_last and turns
        if norm is not None and not late:
            x_NHK = norm.leaf.apply(x_NHK, norm.own)
        if turns and given.cos_ND is not None and given.sin_ND is not None:
            x_NHK = rotated(x_NHK, given.cos_ND, given.sin_ND, given.layout)
        turned.append(norm.leaf.apply(x_NHK, norm.own) if norm is not None and late else x_NHK)
    q, k, v = turned
    k_scale, v_scale = given.scales or (None, None)
    write(given.k_PsGK, k_scale, given.slot_N, k)
    write(given.v_PsGK, v_scale, given.slot_N, v)
    return q.contiguous()


def rotated(x_NHK: Tensor, cos_ND: Tensor, sin_ND: Tensor, layout: Layout) -> Tensor:
    """Each pair turned: x cos + swapped(x) sin."""
    turning = cos_ND.shape[-1]
    x, rest = x_NHK[..., :turning], x_NHK[..., turning:]
    swapped = x.roll(turning // 2, -1) if layout == "half" else x.unflatten(-1, (-1, 2)).flip(-1).flatten(-2)
    y = (x * cos_ND[:, None]).addcmul(swapped, sin_ND[:, None])
    return y if rest.shape[-1] == 0 else torch.cat((y, rest), -1)
