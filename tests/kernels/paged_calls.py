"""Calls of attention to pages: their shapes, and tensors for them."""

from typing import NamedTuple

import torch

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import AttentionArgs
from anyformer.parts.mixers.softmax import Softmax
from anyformer.specs.axes import ScoreBias
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Tokens, parse

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def pattern(text):
    return parse(text, lambda leaf, fields: leaf(**fields))


class Case(NamedTuple):
    """One shape of call; counts are tokens of each row."""

    text: str = "causal"
    counts: tuple[int, ...] = (1, 200, 77)
    queries: int = 1
    heads: int = 4
    groups: int = 2
    dim: int = 16
    size: int = 16
    keep: CachePolicy = CachePolicy()
    dtype: torch.dtype = torch.float32
    softcap: float | None = None
    sinks: bool = False
    slopes: bool = False
    table: bool = False
    int8: bool = False
    sizes: tuple[int, ...] = (16, 16, 4, 2)
    """Keys read at once, keys of a program, programs of a row, few of them: small, so that few keys take every way."""


def made(case: Case, device=DEVICE, seed=0, dtype=None):
    """(q, key pool, value pool, terms); slots that hold nothing are NaN, and pages lie in no order."""
    random = torch.Generator().manual_seed(seed)
    rows, dtype = len(case.counts), dtype or case.dtype
    q = torch.randn(rows, case.queries, case.heads, case.dim, generator=random)
    room = max(max(case.keep.filled(n) for n in case.counts), 1)
    width = -(-room // case.size) + 1
    table = torch.randperm(rows * width, generator=random).view(rows, width).int() + 1
    shape = (rows * width + 1, case.size, case.groups, case.dim)
    count_B = torch.tensor(case.counts, dtype=torch.int32)
    pages = BlockTable(table, case.size, count_B, case.keep)
    pools = [torch.randn(shape, generator=random) for _ in range(2)]
    empty = torch.ones(shape[:2], dtype=torch.bool)
    slots = torch.arange(pages.slots)[None].expand(rows, -1)
    held_BS = pages.numbers() >= 0
    empty[table[:, :, None].expand(-1, -1, case.size).flatten(1)[held_BS].long(), (slots % case.size)[held_BS]] = False
    scales = None
    if case.int8:
        scales = tuple((pool.abs().amax(-1) / 127).to(device) for pool in pools)
        pools = [(pool / scale[..., None].cpu()).round().to(torch.int8) for pool, scale in zip(pools, scales)]
        scales = tuple(torch.where(empty[..., None].to(device), float("nan"), scale) for scale in scales)
    else:
        pools = [pool.masked_fill(empty[..., None, None], float("nan")).to(case.dtype).to(dtype) for pool in pools]
    pos = count_B[:, None].long() - case.queries + torch.arange(case.queries)[None]
    pos = pos.to(device)
    mixer = Softmax(sinks=case.sinks)
    own = {"sink_H": torch.randn(case.heads, generator=random).to(device)} if case.sinks else {}
    scores = None
    if case.slopes:
        scores = ScoreBias(slope_H=-torch.rand(case.heads, generator=random).to(device) / 8)
    if case.table:
        table_HN = torch.randn(1, case.heads, 1, 20, generator=random).to(device)
        scores = ScoreBias(table_BHTN=table_HN, pick=lambda gap: (-gap // 3).clamp(0, 19), reach=57)
    places = Tokens(pos)
    terms = AttentionArgs(
        scale=case.dim**-0.5, mixer=mixer, own=own, scores=scores, softcap=case.softcap,
        mask=AttentionMask(pattern(case.text), places, places, heads=case.heads),
        pages=BlockTable(table.to(device), case.size, count_B.to(device), case.keep, scales),
    )  # fmt: skip
    return q.to(case.dtype).to(dtype).to(device), *(pool.to(device) for pool in pools), terms
