"""Attention of few queries to keys that lie in pages, on CUDA: many programs share the keys of a row.

What a query sees must be an interval of tokens, with the first tokens of its row beside it if asked for. How the keys
of a row are shared out follows from its own length, the model's shape, and whether the batch is small or large: among
batches of one of the two kinds a row gives the same bits in any company.
"""

import functools
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.attention import reference
from anyformer.kernels.attention.score_bias import picked
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest, why_no_fused_softmax
from anyformer.kernels.triton_launch import has_triton
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Both, Either, Pattern, Tokens

WIDEST = 512
"""Wider heads don't fit a program's registers."""
ENDLESS = 2**30
"""A length beyond every token, for patterns that ask for one."""
PROBED = 5000
"""Places up to which a pattern's interval is compared with that of a window."""


class Span(NamedTuple):
    """The tokens that a query at p sees: from p - window + 1 (None: from 0) to p, and the first tokens before p."""

    window: int | None = None
    first: int = 0
    ranged: bool = False
    """The interval is another one, which the pattern's `interval` gives."""


@functools.lru_cache(maxsize=256)
def span(pattern: Pattern) -> Span | None:
    """The tokens that a pattern lets a query see, if it can be said that way."""
    if pattern.needs_length or pattern.per_head or pattern.per_layer or pattern.reads_marks or not pattern.causal:
        return None
    probes = np.arange(0, PROBED, 7)
    interval = pattern.interval(probes, ENDLESS)
    if interval is not None:
        window = pattern.horizon()
        wanted = probes * 0 if window is None else np.maximum(probes - window + 1, 0), probes
        exact = pattern.shift_invariant and np.array_equal(np.broadcast_arrays(*interval, probes)[:2], wanted)
        return Span(window) if exact else Span(ranged=True)
    if isinstance(pattern, Both):
        for whole, part in ((pattern.first, pattern.second), (pattern.second, pattern.first)):
            if span(whole) == Span() and isinstance(part, Either):
                return _beside_first(whole, part)
    return None


def _beside_first(whole: Pattern, part: Either) -> Span | None:
    """What a causal pattern leaves of "these or the first tokens"."""
    for early, near in ((part.first, part.second), (part.second, part.first)):
        if early.kind == "global_tokens" and not early.reads_marks:
            found = span(Both(first=whole, second=near))
            if found is not None and not found.ranged and not found.first:
                return found._replace(first=early.reach().first)
    return None


def why_not(request: KernelRequest) -> str | None:
    """It knows softmax over an interval of tokens, with what depends on the distance added."""
    if not request.paged:
        return "keys lie in one piece, not in pages"
    if request.device != "cuda":
        return f"it is written in Triton for cuda, not {request.device}"
    if not has_triton():
        return "Triton is not installed"
    if request.compiling:
        return "torch.compile does not look into its launch"
    if request.phase == "train":
        return "it has no gradient"
    if (reason := why_no_fused_softmax(request)) is not None:
        return reason
    if request.products or request.reads_content:
        return "a position bias that reads queries or keys is more than a number for each distance"
    if span(request.pattern) is None:
        return f"what a query sees in '{request.pattern}' is no interval of tokens, with or without the first ones"
    return None


class Plan(NamedTuple):
    """Sizes that a kernel is compiled for, and how it shares keys out."""

    block: int
    """Keys that a program reads at once."""
    least: int
    """Keys of a program, where a row has few; a multiple of `block`."""
    most: int
    """Programs for one row and key head, where a row has many."""
    few: int
    """Programs up to which each has as few keys as that."""
    warps: int
    stages: int
    """Blocks under way, twice as many and one: where a key lies must be known before it is asked for."""
    registers: int | None = None
    """Of a thread, with no more queries than a product needs: fewer let more programs share a multiprocessor."""


CROWDED = 128
"""Rows times key heads from which a device has enough to do without sharing out a row's keys."""


def plan(kv_heads: int, dim: int, itemsize: int, rows: int = 1) -> Plan:
    """Sizes for a model's shape, as measured (bench/gpu_decode_attention.py --tune)."""
    wide = max(16, 1 << (dim - 1).bit_length()) * itemsize
    least = 512 if rows * kv_heads >= CROWDED else 64
    # About four programs for each of a large device's multiprocessors, if one row is alone.
    most = min(128, max(16, 1 << (512 // kv_heads).bit_length() - 1)) if kv_heads < 512 else 16
    if itemsize == 1:
        return Plan(32, least, most, 4, 4, 5, 96)
    if wide <= 256:
        return Plan(64, least, most, 4, 4, 3, 128)
    return Plan(32, least, most, 4, 4, 3 if wide <= 512 else 2)


def plain(q_BTHK: Tensor, k_PsGK: Tensor, v_PsGK: Tensor, terms: AttentionArgs) -> Tensor:
    """The same in torch: every slot gathered, and the reference over those that hold a token. The oracle."""
    pages = pages_of(terms)
    number_BS = pages.numbers()
    there_BS = number_BS >= 0
    # What lies in other slots may be anything, and even a weight of 0 does not make NaN vanish.
    k, v = (
        pages.gather(pool, scale, q_BTHK.dtype).masked_fill(~there_BS[..., None, None], 0)
        for pool, scale in zip((k_PsGK, v_PsGK), pages.scales or (None, None), strict=True)
    )
    given, keys = terms.mask, Tokens(number_BS.clamp(min=0))
    heads, layer = q_BTHK.shape[2], given.layer
    mask = AttentionMask(given.pattern, Tokens(given.q.pos), keys, there_BS, heads=heads, layer=layer)
    return reference.run(q_BTHK, k, v, terms._replace(mask=mask, pages=None))


def run(q_BTHK: Tensor, k_PsGK: Tensor, v_PsGK: Tensor, terms: AttentionArgs, sizes: Plan | None = None) -> Tensor:
    """One launch, or the plain way for what can't be told before: very wide heads, and columns that a cache keeps."""
    sizes = sizes or plan(k_PsGK.shape[2], q_BTHK.shape[3], k_PsGK.element_size(), q_BTHK.shape[0])
    pages, mask, scores = pages_of(terms), terms.mask, terms.scores
    seen = span(mask.pattern)
    slope_H = None if scores is None else scores.slope_H
    bias_HN = None if scores is None or scores.table_BHTN is None else _by_distance(scores, terms)
    told = scores is None or (scores.by_distance and (bias_HN is not None or scores.table_BHTN is None))
    if seen is None or not told or q_BTHK.shape[3] > WIDEST or pages.keep.columns:
        return plain(q_BTHK, k_PsGK, v_PsGK, terms)
    from anyformer.kernels.attention import paged_triton

    return paged_triton.launch(
        q_BTHK if q_BTHK.stride(3) == 1 else q_BTHK.contiguous(), k_PsGK, v_PsGK, terms, pages, seen, slope_H, bias_HN,
        None if not seen.ranged else mask.once("interval", lambda: _ranges(mask.pattern, mask.q.pos)), sizes,
    )  # fmt: skip


def pages_of(terms: AttentionArgs) -> BlockTable:
    """Where the keys of each row lie."""
    if terms.pages is None:
        raise InputError("attention to pages: terms.pages must say where the keys of each row lie")
    return terms.pages


def _by_distance(scores: ScoreBias, terms: AttentionArgs) -> Tensor | None:
    """(H,N): what the table adds at distance 0, 1, 2 ...; the last for all beyond. None if there is no last one."""
    pages = pages_of(terms)
    if scores.reach is not None:
        reach = scores.reach
    elif pages.keep.recent is None:
        reach = pages.slots
    elif not pages.keep.first:
        reach = pages.keep.recent
    else:
        return None

    def make() -> tuple[Any, Tensor]:
        table = scores.table_BHTN
        gap_N = -torch.arange(reach + 1, device=table.device)
        # Beside its source, so that nothing else gets that id while the mask lives.
        return table, picked(scores, gap_N[None, None])[0, :, 0].float().contiguous()

    return terms.mask.once(("by distance", id(scores.table_BHTN), reach), make)[1]


def _ranges(pattern: Pattern, pos_BT: Tensor) -> tuple[Tensor, Tensor]:
    """First and last token that each query sees, (B or 1, T)."""
    if isinstance(pattern, Both):
        (a, b), (c, d) = _ranges(pattern.first, pos_BT), _ranges(pattern.second, pos_BT)
        return torch.maximum(a, c), torch.minimum(b, d)
    found: Any = pattern.interval(pos_BT, ENDLESS)
    return found[0].contiguous(), found[1].contiguous()


KERNEL = Kernel("paged", why_not, run, reads_pages=True)
