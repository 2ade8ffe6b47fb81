"""Attention of few queries to keys that lie in pages, on a CPU: rows of like lengths at once.

One gather for all rows would copy as many keys for the shortest as for the longest, and push them out of the processor's
cache before they are used. So rows are sorted by length, and few of them are gathered at a time.
"""

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention import paged_cuda, sdpa
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest

BYTES = 2**20
"""Of keys that are gathered at a time, unless one row has more; the values are as many."""


class Group(NamedTuple):
    """Some rows, and what of their pages they need."""

    rows_R: Tensor
    pages: BlockTable
    mask: Tensor | None
    """(R,1,T,S): what is added to scores, -inf where a query does not see a key; None: all of them see all."""


def why_not(request: KernelRequest) -> str | None:
    """It is torch's own function over every token so far."""
    if not request.paged:
        return "keys lie in one piece, not in pages"
    if request.device != "cpu":
        return f"it is for a CPU, not {request.device}"
    if request.compiling:
        return "it looks at the lengths of rows on the host"
    if request.phase == "train":
        return "it has no gradient"
    if request.bias:
        return "it adds nothing to scores"
    if paged_cuda.span(request.pattern) != paged_cuda.Span():
        return f"'{request.pattern}' lets a query see something else than all tokens so far"
    return sdpa.why_not(request)


def run(q_BTHK: Tensor, k_PsGK: Tensor, v_PsGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Each group by itself."""
    pages = paged_cuda.pages_of(terms)
    if pages.keep.recent is not None:
        return paged_cuda.plain(q_BTHK, k_PsGK, v_PsGK, terms)
    width = k_PsGK.shape[2] * k_PsGK.shape[3] * q_BTHK.element_size()
    parts: list[Group] = terms.mask.once(
        ("groups", id(pages.table_BN), width), lambda: groups(pages, terms.mask.q.pos, width, q_BTHK.dtype)
    )
    queries, heads, dim = q_BTHK.shape[1:]
    kv_heads = k_PsGK.shape[2]
    scales = (None, None) if pages.scales is None else pages.scales
    out_BTHK = torch.empty_like(q_BTHK)
    for rows_R, some, mask in parts:
        q_RTHK = q_BTHK[rows_R]
        # The heads of one query that share keys are queries of one head.
        packed = (len(rows_R), kv_heads, heads // kv_heads, dim)
        q = q_RTHK.view(packed) if queries == 1 else q_RTHK.transpose(1, 2)
        k, v = (
            some.gather(pool, scale, q.dtype).transpose(1, 2)
            for pool, scale in zip((k_PsGK, v_PsGK), scales, strict=True)
        )
        found = F.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=terms.scale, enable_gqa=queries > 1 and heads != kv_heads
        )
        out_BTHK[rows_R] = found.reshape(q_RTHK.shape) if queries == 1 else found.transpose(1, 2)
    return out_BTHK


def groups(pages: BlockTable, pos_BT: Tensor, width: int, dtype: torch.dtype) -> list[Group]:
    """Rows of like lengths, with keys of `width` bytes for each token."""
    counts = pages.count_B.tolist()
    order = sorted(range(len(counts)), key=counts.__getitem__, reverse=True)
    found: list[Group] = []
    while order:
        needed = -(-max(counts[order[0]], 1) // pages.size)
        some = order[: max(1, BYTES // (needed * pages.size * width))]
        order = order[len(some) :]
        rows_R = torch.tensor(some)
        slot_S = torch.arange(needed * pages.size)
        # Slots are the numbers of tokens, which are also their positions.
        seen = slot_S <= (pos_BT[rows_R] if pos_BT.shape[0] > 1 else pos_BT.expand(len(some), -1))[..., None]
        part = BlockTable(pages.table_BN[rows_R, :needed], pages.size, pages.count_B[rows_R], pages.keep)
        mask = None
        if not bool(seen.all()):
            mask = torch.zeros(seen.shape, dtype=dtype).masked_fill_(~seen, float("-inf"))[:, None]
        found.append(Group(rows_R, part, mask))
    return found


KERNEL = Kernel("grouped", why_not, run, reads_pages=True)
