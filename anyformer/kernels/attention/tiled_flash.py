"""Exact attention tile by tile with a running softmax (FlashAttention, Dao et al. 2022), in plain torch.

Memory grows with the tokens, not with their pairs, on any device and with everything that may be done to a score. The
backward pass computes each tile again from the log-sum-exp of its rows.

Tiles without a pair that the pattern allows are skipped, and those with no other ask for no mask. For plain rows the
pattern alone decides, on the host and once for a length. Otherwise the rows are looked at, unless code is being
compiled or recorded, which must serve rows that it has not seen.
"""

import operator
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from anyformer.errors import CapabilityError
from anyformer.kernels.attention.score_bias import add_up, gaps, score_bias, sums_for
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest
from anyformer.kernels.precision import no_autocast
from anyformer.kernels.trace_constants import ask
from anyformer.specs.axes import ScoreBias
from anyformer.specs.patterns import Pattern, Tokens

PAIRS = 1 << 18
"""Scores of a tile on a CPU: measured, 128 x 256 in 8 heads; larger ones leave its cache."""
PAIRS_CUDA = 1 << 24
"""The same on CUDA: 1024 x 1024 in 16 heads, where a tile fills the device."""
LEAST, MOST = 64, 1024
"""Queries and keys of a tile, at least and at most."""


def why_not(request: KernelRequest) -> str | None:
    """It knows softmax weights, with anything on the scores."""
    if request.mixer.kind != "softmax":
        return f"its running sums are those of a softmax, not of {request.mixer.kind}"
    if request.phase == "decode":
        return "one query's scores are no larger than its keys"
    return None


class Tile(NamedTuple):
    """Keys `first` to `last` (not included) of a stripe of queries."""

    first: int
    last: int
    whole: bool
    """Every pair is allowed."""


class Stripe(NamedTuple):
    """Queries `first` to `last` (not included), and the tiles that they see anything of."""

    first: int
    last: int
    tiles: tuple[Tile, ...]


Plan = tuple[Stripe, ...]


def plan(mask: AttentionMask, rows: int, columns: int) -> Plan:
    """The tiles of one pass."""
    return mask.once(("tiles", rows, columns), lambda: _plan(mask, rows, columns))


def _plan(mask: AttentionMask, rows: int, columns: int) -> Plan:
    queries, keys, pattern = operator.index(mask.queries), operator.index(mask.keys), mask.pattern
    if mask.shape == "none":
        return every(queries, keys, rows, columns, True)
    marks = pattern.reads_marks and isinstance(mask.k.marked, Tensor)
    if mask.plain and not pattern.needs_length and not marks:
        heads, layer = mask.heads if pattern.per_head else 1, mask.layer if pattern.per_layer else 0
        return ask(_planned, pattern, queries, keys, rows, columns, heads, layer)
    if fixed_shapes(mask.k.pos.device.type):
        return every(queries, keys, rows, columns, False)
    return _looked_up(mask, rows, columns)


def every(queries: int, keys: int, rows: int, columns: int, whole: bool) -> Plan:
    """All of them."""
    tiles = tuple(Tile(s, min(s + columns, keys), whole) for s in range(0, keys, columns))
    return tuple(Stripe(t, min(t + rows, queries), tiles) for t in range(0, queries, rows))


def _looked_up(mask: AttentionMask, rows: int, columns: int) -> Plan:
    queries, keys = mask.queries, mask.keys
    stripes = [slice(t, min(t + rows, queries)) for t in range(0, queries, rows)]
    tiles = [slice(s, min(s + columns, keys)) for s in range(0, keys, columns)]
    # The answers come to the host together: asking for each would stop an accelerator as often.
    found = [[(seen := mask.pairs(row, tile)).any(), seen.all()] for row in stripes for tile in tiles]
    flags = torch.stack([flag for pair in found for flag in pair]).view(len(stripes), len(tiles), 2).tolist()
    return tuple(
        Stripe(
            row.start, row.stop, tuple(Tile(t.start, t.stop, a) for t, (e, a) in zip(tiles, of_row, strict=True) if e)
        )
        for row, of_row in zip(stripes, flags, strict=True)
    )


def _planned(pattern: Pattern, queries: int, keys: int, rows: int, columns: int, heads: int, layer: int) -> Plan:
    """The tiles of plain rows: queries are the last of the keys, and positions count from 0."""
    edges = np.arange(0, keys, columns)
    ends = np.minimum(edges + columns, keys)
    stripes = []
    for t in range(0, queries, rows):
        last = min(t + rows, queries)
        q = np.arange(t, last) + keys - queries
        some, whole = _asked(pattern, q, keys, edges, ends, heads, layer)
        tiles = tuple(Tile(int(a), int(b), bool(w)) for a, b, e, w in zip(edges, ends, some, whole, strict=True) if e)
        stripes.append(Stripe(t, last, tiles))
    return tuple(stripes)


def _asked(pattern: Pattern, q: Any, keys: int, edges: Any, ends: Any, heads: int, layer: int) -> tuple[Any, Any]:
    """For each tile of one stripe: whether any pair is allowed, and whether all are."""
    interval = pattern.interval(q, keys)
    if interval is not None:
        low, high = (np.broadcast_to(end, q.shape)[:, None] for end in interval)
        seen = np.minimum(high + 1, ends) - np.maximum(low, edges)
        return (seen > 0).any(0), (seen == ends - edges).all(0)
    if pattern.shift_invariant and not pattern.per_head:
        # Pairs of a tile are as far apart as its corners at most; each distance is asked once.
        far = np.arange(q[0] - keys + 1, q[-1] + 1)
        allowed = np.broadcast_to(pattern.allows(Tokens(far), Tokens(far * 0)), far.shape)
        total = np.concatenate([[0], np.cumsum(allowed)])
        nearest, farthest = q[0] - ends + 1, q[-1] - edges
        seen = total[farthest - far[0] + 1] - total[nearest - far[0]]
        return seen > 0, seen == farthest - nearest + 1
    head: Any = np.arange(heads)[:, None, None] if pattern.per_head else 0
    every = np.arange(keys)[None]
    allowed = pattern.allows(Tokens(q[:, None], 0, None, head, layer), Tokens(every, 0, None, head, layer))
    allowed = np.broadcast_to(allowed, (*np.shape(allowed)[:-2], len(q), keys)).reshape(-1, keys)
    seen = np.add.reduceat(allowed, edges, axis=1, dtype=np.int64)
    return (seen > 0).any(0), (seen == ends - edges).all(0)


class Job(NamedTuple):
    """What is the same for all tiles, beside the tensors."""

    mask: AttentionMask
    plan: Plan
    scale: float
    softcap: float | None
    dropout: float
    index: Any
    value_index: Any


def run(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """All tiles that the pattern leaves."""
    # Loops over tiles are unrolled by a compiler, for lengths that it knows.
    queries, keys = operator.index(q_BTHK.shape[1]), operator.index(k_BSGK.shape[1])
    rows, columns = sizes(q_BTHK.shape[0] * q_BTHK.shape[2], queries, keys, q_BTHK.device.type)
    scores, values = terms.scores or ScoreBias(), terms.values
    tiles, pick = plan(terms.mask, rows, columns), None if values is None else values.pick
    job = Job(terms.mask, tiles, terms.scale, terms.softcap, terms.dropout, scores.pick, pick)
    seed = None
    if terms.dropout > 0:
        seed = torch.randint(-(2**31), 2**31 - 1, (2,), device=q_BTHK.device).to(torch.int32)
    with no_autocast(q_BTHK):
        return _Tiled.apply(
            job, seed, q_BTHK, k_BSGK, v_BSGK, terms.own.get("sink_H"), scores.slope_H, scores.table_BHTN,
            scores.q_side_BTHE, scores.k_side_BSE, scores.column_BHS, scores.key_table_BHSN, None if values is None else values.table_NK,
        )  # fmt: skip


def sizes(heads: int, queries: int, keys: int, device: str) -> tuple[int, int]:
    """Queries and keys of a tile, for so many heads in all rows."""
    room = (PAIRS if device == "cpu" else PAIRS_CUDA) // heads
    side = LEAST
    while side < MOST and 4 * side * side <= room:
        side *= 2
    columns = min(side * 2 if 2 * side * side <= room else side, MOST)
    return min(side, queries), min(columns, keys)


class _Tiled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, job: Job, seed: Tensor | None, *given: Tensor | None) -> Tensor:
        parts = Parts(*given)
        out_BHTK, lse_BHT = forward(job, seed, parts)
        ctx.job = job
        ctx.save_for_backward(seed, *given, out_BHTK, lse_BHT)
        return out_BHTK.transpose(1, 2).to(parts.q.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        if torch.is_grad_enabled() and not torch.compiler.is_compiling():
            raise CapabilityError("tiled attention has no second derivative; take it from kernel=reference.KERNEL")
        seed, *given, out_BHTK, lse_BHT = ctx.saved_tensors
        wanted = ctx.needs_input_grad[2:]
        found = backward(ctx.job, seed, Parts(*given), out_BHTK, lse_BHT, grads[0], Parts(*wanted))
        return None, None, *(None if g is None else g.to(x.dtype) for g, x in zip(found, given, strict=True))


class Parts(NamedTuple):
    """The tensors that have gradients, as they were given."""

    q: Any
    k: Any
    v: Any
    sink_H: Any
    slope_H: Any
    table_BHTN: Any
    q_side_BTHE: Any
    k_side_BSE: Any
    column_BHS: Any
    key_table_BHSN: Any
    values_NK: Any


class Whole(NamedTuple):
    """Queries (B,H,T,K) that are scaled, keys and values (B,G,S,K), in the dtype of the computation."""

    q: Tensor
    k: Tensor
    v: Tensor
    scores: ScoreBias
    values_NK: Tensor | None

    @classmethod
    def of(cls, job: Job, parts: Parts) -> Self:
        exact = torch.promote_types(parts.q.dtype, torch.float32)
        q, k, v = (x.transpose(1, 2).to(exact).contiguous() for x in parts[:3])
        slope, table, q_side, k_side, column, by_key = (None if x is None else x.to(exact) for x in parts[4:10])
        values = None if parts.values_NK is None else parts.values_NK.to(exact)
        bias = ScoreBias(slope, table, job.index, q_side, k_side, column, key_table_BHSN=by_key)
        return cls(q * job.scale, k, v, bias, values)


def forward(job: Job, seed: Tensor | None, parts: Parts) -> tuple[Tensor, Tensor]:
    """The result (B,H,T,K), and the log of each query's sum of exponentials."""
    whole = Whole.of(job, parts)
    q, k, v, _, values_NK = whole
    batch, heads, queries, dim = q.shape
    groups = k.shape[1]
    out_BHTK, lse_BHT = torch.zeros_like(q), q.new_zeros(batch, heads, queries)
    for stripe in job.plan:
        rows = slice(stripe.first, stripe.last)
        count = stripe.last - stripe.first
        q_rows = _folded(q[:, :, rows], groups)
        # A sink is a score that was seen before all others, and has no value.
        highest = q.new_full((batch, heads, count, 1), torch.finfo(q.dtype).min)
        total = torch.zeros_like(highest)
        if parts.sink_H is not None:
            highest = parts.sink_H.to(q.dtype)[:, None, None].expand_as(highest)
            total = torch.ones_like(highest)
        mixed = q.new_zeros(batch, heads, count, dim)
        by_gap = None if values_NK is None else q.new_zeros(batch, heads, count, values_NK.shape[0])
        for tile in stripe.tiles:
            columns = slice(tile.first, tile.last)
            score, _ = _scores(job, whole, q_rows, rows, tile)
            above = torch.maximum(highest, score.amax(-1, keepdim=True))
            weight = score.sub_(above).exp_()
            fade = (highest - above).exp()
            total = total * fade + weight.sum(-1, keepdim=True)
            if seed is not None:
                weight = weight * kept_weights(seed, (batch, heads), rows, columns, job.dropout)
            mixed = mixed * fade + (_folded(weight, groups) @ v[:, :, columns]).view(mixed.shape)
            if by_gap is not None:
                by_gap = (by_gap * fade).scatter_add_(-1, _value_index(job, rows, columns, weight), weight)
            highest = above
        if values_NK is not None and by_gap is not None:
            mixed = mixed + by_gap @ values_NK
        # A query that saw nothing has a sum of 0 and takes nothing.
        total = total.where(total > 0, 1.0)
        out_BHTK[:, :, rows] = mixed / (total * (1 - job.dropout))
        lse_BHT[:, :, rows] = (highest + total.log()).squeeze(-1)
    return out_BHTK, lse_BHT


def backward(
    job: Job, seed: Tensor | None, parts: Parts, out: Tensor, lse: Tensor, grad_BTHK: Tensor, wanted: Parts
) -> Parts:
    """The gradients of all parts, each tile's scores computed once more."""
    whole = Whole.of(job, parts)
    q, k, v, scores, values_NK = whole
    batch, heads = q.shape[:2]
    groups = k.shape[1]
    back = grad_BTHK.transpose(1, 2).to(q.dtype).contiguous()
    # What all weights of a query have in common: the softmax takes their mean off.
    mean = (back * out).sum(-1, keepdim=True)
    q_grad, k_grad, v_grad = torch.zeros_like(q), torch.zeros_like(k), torch.zeros_like(v)
    sums = sums_for(scores, wanted[4:10])
    values_grad = None if values_NK is None else torch.zeros_like(values_NK)
    for stripe in job.plan:
        rows = slice(stripe.first, stripe.last)
        q_rows, back_rows = _folded(q[:, :, rows], groups), _folded(back[:, :, rows], groups)
        mean_rows, lse_rows = mean[:, :, rows], lse[:, :, rows, None]
        along = None if values_NK is None else back[:, :, rows] @ values_NK.mT
        by_gap = None if along is None else torch.zeros_like(along)
        for tile in stripe.tiles:
            columns = slice(tile.first, tile.last)
            score, steep = _scores(job, whole, q_rows, rows, tile)
            weight = score.sub_(lse_rows).exp_()
            pull = (back_rows @ v[:, :, columns].mT).view(weight.shape)
            index = None if along is None else _value_index(job, rows, columns, weight)
            if along is not None and index is not None:
                pull = pull + along.gather(-1, index)
            used = weight
            if seed is not None:
                kept = kept_weights(seed, (batch, heads), rows, columns, job.dropout).to(q.dtype) / (1 - job.dropout)
                used, pull = weight * kept, pull * kept
            v_grad[:, :, columns] += _folded(used, groups).mT @ back_rows
            if by_gap is not None and index is not None:
                by_gap = by_gap.scatter_add(-1, index, used)
            moved = weight * (pull - mean_rows)
            if steep is not None:
                moved = moved * steep
            flat = _folded(moved, groups)
            q_grad[:, :, rows] += (flat @ k[:, :, columns]).view(batch, heads, -1, q.shape[3])
            k_grad[:, :, columns] += flat.mT @ q_rows
            add_up(sums, moved, scores, job.mask.where, rows, columns)
        if by_gap is not None and values_grad is not None:
            values_grad = values_grad + torch.einsum("bhtn,bhtk->nk", by_gap, back[:, :, rows])
    sink_grad = None
    if parts.sink_H is not None:
        share = (parts.sink_H.to(q.dtype)[:, None] - lse).exp()
        sink_grad = -(share * mean.squeeze(-1)).sum((0, 2))
    q_out, k_out, v_out = (x.transpose(1, 2) for x in (q_grad * job.scale, k_grad, v_grad))
    return Parts(q_out, k_out, v_out, sink_grad, *sums, values_grad)


def _folded(x_BHTN: Tensor, groups: int) -> Tensor:
    """(B, G, heads of a group T, N): the heads of a group as more rows of one."""
    batch, _, _, last = x_BHTN.shape
    return x_BHTN.reshape(batch, groups, -1, last)


def _scores(job: Job, whole: Whole, q_rows: Tensor, rows: slice, tile: Tile) -> tuple[Tensor, Tensor | None]:
    """A tile's scores (B,H,T,S), -inf where a key may not be seen, and how steep the soft-cap is there."""
    columns = slice(tile.first, tile.last)
    heads = whole.q.shape[1]
    score = q_rows @ whole.k[:, :, columns].mT
    score = score.view(score.shape[0], heads, rows.stop - rows.start, -1)
    bias = score_bias(whole.scores, job.mask.where, rows, columns)
    if bias is not None:
        score = score.add_(bias)
    steep = None
    if job.softcap is not None:
        bent = score.div_(job.softcap).tanh_()
        steep = 1 - bent.square()
        score = bent * job.softcap
    if not tile.whole:
        score = score.masked_fill_(~job.mask.pairs(rows, columns), float("-inf"))
    return score, steep


def _value_index(job: Job, rows: slice, columns: slice, like_BHTS: Tensor) -> Tensor:
    return job.value_index(gaps(job.mask.where, rows, columns))[:, None].expand(like_BHTS.shape)


def kept_weights(seed_2: Tensor, sizes: tuple[int, int], rows: slice, columns: slice, share: float) -> Tensor:
    """(B,H,T,S) of some queries and keys, for sizes (B, H): True for all but a `share` of the weights.

    A hash of the seed and of their place, not a stored mask, so that the backward pass drops the same ones.
    """
    batch, heads = sizes
    device = seed_2.device

    def numbers(first: int, last: int) -> Tensor:
        return torch.arange(first, last, device=device, dtype=torch.int32)

    of_head = _mixed(numbers(0, batch * heads) ^ seed_2[0]).view(batch, heads, 1)
    of_row = _mixed(of_head ^ _mixed(numbers(rows.start, rows.stop) ^ seed_2[1]))
    of_column = _mixed(_mixed(numbers(columns.start, columns.stop)) ^ seed_2[0])
    drawn = _mixed(of_row[..., None] ^ of_column)
    return drawn >= round(share * 2**32) - 2**31


def _mixed(x: Tensor) -> Tensor:
    """A one-to-one map of 32 bits in which every bit depends on every other (lowbias32, C. Wellons)."""
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ (x >> 16 & 0xFFFF)


KERNEL = Kernel("tiled", why_not, run)
