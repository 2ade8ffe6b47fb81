"""Attention to keys near the query, in blocks: each block of queries against the stretch of keys that it can reach.

Time and memory grow with tokens times window. A few tokens that see or are seen everywhere (Longformer's global ones)
are served beside the band: as keys in front of every block's stretch, and as queries by a small dense attention.
"""

import operator
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.attention import sdpa
from anyformer.kernels.attention.score_bias import score_bias
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import AttentionArgs, Kernel, KernelRequest
from anyformer.kernels.trace_constants import ask, constant_table
from anyformer.specs.axes import QKPositions
from anyformer.specs.patterns import Pattern, Tokens

LEAST, MOST = 64, 256
"""Queries in a block: about half of what each of them reaches, within these (measured for windows of 64 to 1024)."""
WORTH = 0.6
"""Above this share of all pairs, one dense call is as fast."""


def why_not(request: KernelRequest) -> str | None:
    """It knows softmax over keys that are near, with a bias that depends on the distance."""
    reach = request.pattern.reach()
    if request.shape != "pattern" or not reach.bounded:
        return f"'{request.pattern}' does not bound how far a query sees"
    if request.phase == "decode":
        return "one query is no block"
    fixed = "compiling" if request.compiling else "a CUDA graph is recorded" if request.recorded else None
    if fixed and not request.plain:
        return f"with padded or packed rows it must look at positions, which can't be done while {fixed}"
    if fixed and reach.marks:
        return f"it must look for the marked tokens, which can't be done while {fixed}"
    if request.reads_content:
        return "a position bias that reads queries or keys differs from block to block"
    return sdpa.why_not(request)


class Piece(NamedTuple):
    """So many blocks of `rows` queries, one after the other, each against `keys` keys from `key` on."""

    row: int
    rows: int
    blocks: int
    key: int
    keys: int


def run(q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Block by block where that is less work, else at once."""
    mask = terms.mask
    apart, pieces = _apart(mask), None
    if apart is not None:
        reach = mask.pattern.reach()
        # why_not refuses a reach that is not bounded.
        back, ahead = cast("int", reach.back), cast("int", reach.ahead)
        first = len(apart) if apart and apart[-1] == len(apart) - 1 else 0
        # A compiler makes blocks for lengths that it knows.
        pieces = cut(operator.index(mask.queries), operator.index(mask.keys), back, ahead, first, len(apart))
    if apart is None or pieces is None or not (terms.scores is None or terms.scores.by_distance):
        return sdpa.run(q_BTHK, k_BSGK, v_BSGK, terms)
    found = torch.cat([_blocks(q_BTHK, k_BSGK, v_BSGK, terms, piece, apart) for piece in pieces], 1)
    before = mask.keys - mask.queries
    rows = tuple(key - before for key in apart if key >= before)
    if not rows:
        return found
    if rows[-1] == len(rows) - 1:
        whole = Piece(0, len(rows), 1, 0, mask.keys)
        return torch.cat((_blocks(q_BTHK, k_BSGK, v_BSGK, terms, whole, ()), found[:, len(rows) :]), 1)
    index = _listed(rows, q_BTHK.device)
    return found.index_copy(1, index, _dense_rows(q_BTHK[:, index], k_BSGK, v_BSGK, terms, index))


def _listed(places: tuple[int, ...], device: torch.device) -> Tensor:
    """Places in a row as a tensor; of those next to each other nothing is copied to the device."""
    first, last = places[0], places[-1] + 1
    if last - first == len(places):
        return torch.arange(first, last, device=device)
    return constant_table(np.asarray, (places,), device)


def _apart(mask: AttentionMask) -> tuple[int, ...] | None:
    """Which keys of a row (of any row) are apart from the band; None if places in rows do not tell distances."""
    reach = mask.pattern.reach()
    marks = mask.k.marked if reach.marks else None
    if mask.plain and not isinstance(marks, Tensor):
        return tuple(range(min(reach.first, mask.keys)))
    if fixed_shapes(mask.k.pos.device.type) or not (mask.plain or mask.once("steady", lambda: _steady(mask))):
        return None
    some = mask.k.pos < reach.first
    if isinstance(marks, Tensor):
        some = some | marks
    if mask.valid_BS is not None:
        some = some & mask.valid_BS
    return tuple(some.any(0).nonzero().flatten().tolist())


def _steady(mask: AttentionMask) -> bool:
    """Whether real tokens of a document are as far apart in the row as in position, and queries are the last keys."""
    q, k, before = mask.q, mask.k, mask.keys - mask.queries
    if before < 0:
        return False
    wrong = (q.pos != k.pos[:, before:]).any()
    if isinstance(q.document, Tensor):
        wrong = wrong | (q.document != k.document[:, before:]).any()
    here = torch.arange(mask.keys, device=k.pos.device)[None]
    begin, last = here - k.pos, here
    if mask.valid_BS is not None:
        last = torch.where(mask.valid_BS, here, -1).cummax(-1).values
    rows = max(begin.shape[0], last.shape[0])
    begin, last = begin.expand(rows, -1), last.expand(rows, -1)[:, :-1]
    # The real token before: its document, if it is the same, must seem to begin at the same place.
    moved = begin.gather(1, last.clamp(min=0)) != begin[:, 1:]
    if isinstance(k.document, Tensor):
        document = k.document.expand(rows, -1)
        moved = moved & (document.gather(1, last.clamp(min=0)) == document[:, 1:])
    if mask.valid_BS is not None:
        moved = moved & (last >= 0) & mask.valid_BS[:, 1:]
    return not bool(wrong | moved.any())


def cut(queries: int, keys: int, back: int, ahead: int, first: int, apart: int) -> tuple[Piece, ...] | None:
    """Blocks whose stretch lies within the keys after the `first`, and a piece at each end; None if it saves too little."""
    size = LEAST
    while size < MOST and 4 * size <= back + ahead:
        size *= 2
    before = keys - queries
    head = max(0, back - 1 - before + first)
    blocks = (queries - head - ahead) // size
    if before < 0 or blocks < 1:
        return None
    pieces = [Piece(0, head, 1, 0, before + head + ahead)] if head else []
    pieces.append(Piece(head, size, blocks, before + head - back + 1, size + back - 1 + ahead))
    tail = head + blocks * size
    if tail < queries:
        begin = before + tail - back + 1
        pieces.append(Piece(tail, queries - tail, 1, begin, keys - begin))
    work = sum(piece.blocks * piece.rows * piece.keys for piece in pieces) + 2 * queries * apart
    return tuple(pieces) if work < WORTH * queries * keys else None


def _blocks(
    q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs, piece: Piece, apart: tuple[int, ...]
) -> Tensor:
    """One piece's queries against their stretches, (B, rows of the piece, H, K)."""
    row, rows, blocks, key, keys = piece
    batch, _, heads, dim = q_BTHK.shape
    far = tuple(a for a in apart if blocks > 1 or not key <= a < key + keys)
    q = q_BTHK[:, row : row + blocks * rows].reshape(batch * blocks, rows, heads, dim)
    k, v = (_stretches(x, piece, far) for x in (k_BSGK, v_BSGK))
    out = _grouped(q, k, v, _added(terms, piece, far, batch, q.dtype), terms)
    return out.reshape(batch, blocks * rows, heads, dim)


def _grouped(q_NTHK: Tensor, k_NGSK: Tensor, v_NGSK: Tensor, mask: Tensor, terms: AttentionArgs) -> Tensor:
    """Scaled dot-product attention, (N,T,G,R,K): the R heads of a group are queries of one, and no key is copied."""
    (count, rows, heads, dim), groups = q_NTHK.shape, k_NGSK.shape[1]
    q = q_NTHK.unflatten(2, (groups, -1)).permute(0, 2, 3, 1, 4).reshape(count, groups, -1, dim)
    if mask.shape[1] == 1:
        mask = mask.expand(-1, heads // groups, -1, -1).flatten(1, 2)[:, None]
    else:
        mask = mask.unflatten(1, (groups, -1)).flatten(2, 3)
    out = F.scaled_dot_product_attention(q, k_NGSK, v_NGSK, attn_mask=mask, dropout_p=terms.dropout, scale=terms.scale)
    return out.view(count, groups, heads // groups, rows, dim).permute(0, 3, 1, 2, 4)


def _stretches(x_BSGK: Tensor, piece: Piece, far: tuple[int, ...]) -> Tensor:
    """The keys apart, then the stretch of each block: (B blocks, G, far + keys, K)."""
    _, rows, blocks, key, keys = piece
    near = x_BSGK[:, key : key + (blocks - 1) * rows + keys].unfold(1, keys, rows).transpose(3, 4)
    if far:
        picked = x_BSGK[:, : len(far)] if far[-1] == len(far) - 1 else x_BSGK[:, _listed(far, x_BSGK.device)]
        near = torch.cat((picked.transpose(1, 2)[:, None].expand(-1, blocks, -1, -1, -1), near), 3)
    return near.flatten(0, 1)


def _added(terms: AttentionArgs, piece: Piece, far: tuple[int, ...], batch: int, dtype: torch.dtype) -> Tensor:
    """What torch's function calls attn_mask, (B blocks or 1, H or 1, rows, far + keys)."""
    mask, before = terms.mask, terms.mask.keys - terms.mask.queries
    device = mask.k.pos.device
    seen = mask.once(("band", piece, far), lambda: _seen(mask, piece, far))
    if seen.shape[0] > 1 or seen.shape[2] > 1:
        seen = seen.expand(batch, -1, piece.blocks, -1, -1)
    seen = seen.transpose(1, 2).flatten(0, 1)
    if terms.scores is None:
        return seen
    # In documents whose tokens follow each other, places in the row tell the distance as positions do. The distance
    # to a stretch is the same for all blocks.
    rows, columns = _places(piece, far, device, blocks=piece.blocks if far else 1)
    bias = score_bias(terms.scores, QKPositions(rows + before, columns))
    if bias is None:
        return seen
    if bias.shape[0] > 1:
        bias = bias.repeat(batch, 1, 1, 1)
        seen = seen if seen.shape[0] == bias.shape[0] else seen.expand(bias.shape[0], -1, -1, -1)
    return torch.where(seen, bias.to(dtype), float("-inf"))


def _places(piece: Piece, far: tuple[int, ...], device: torch.device, blocks: int) -> tuple[Tensor, Tensor]:
    """Row indices of queries (blocks, rows) and of keys (blocks, far + keys) of the first `blocks` blocks."""
    start = torch.arange(blocks, device=device)[:, None] * piece.rows
    rows = start + piece.row + torch.arange(piece.rows, device=device)
    columns = start + piece.key + torch.arange(piece.keys, device=device)
    if far:
        columns = torch.cat((_listed(far, device).expand(blocks, -1), columns), 1)
    return rows, columns


def _seen(mask: AttentionMask, piece: Piece, far: tuple[int, ...]) -> Tensor:
    """(B or 1, H or 1, blocks or 1, rows, far + keys): who sees whom, each pair once."""
    marked = isinstance(mask.k.marked, Tensor) and mask.pattern.reads_marks
    one = piece.blocks == 1 or (mask.plain and not marked and _alike(mask, piece, far))
    blocks = 1 if one else piece.blocks
    rows, columns = _places(piece, far, mask.k.pos.device, blocks)
    seen = mask.pairs(rows, columns).expand(-1, -1, blocks, *rows.shape[1:], *columns.shape[1:])
    if far:
        # A key apart that lies in the stretch is counted there.
        apart, begin = columns[:, : len(far)], columns[:, len(far) :][:, :1]
        outside = F.pad((apart < begin) | (apart >= begin + piece.keys), (0, piece.keys), value=True)
        seen = seen & outside[:, None]
    if marked and bool((seen == seen[:, :, :1]).all()):
        # Looked at anyway, to find the marked tokens: one mask takes less than many that are the same.
        seen = seen[:, :, :1].contiguous()
    return seen


def _alike(mask: AttentionMask, piece: Piece, far: tuple[int, ...]) -> bool:
    """Whether one mask serves all blocks of a piece."""
    pattern = mask.pattern
    if pattern.needs_length:
        return False
    if pattern.shift_invariant and not far:
        return True
    before = operator.index(mask.keys) - operator.index(mask.queries)
    return ask(_compared, pattern, tuple(piece), far, before, mask.heads, mask.layer)


def _compared(
    pattern: Pattern, piece: tuple[int, ...], far: tuple[int, ...], before: int, heads: int, layer: int
) -> bool:
    """The same, from the pattern alone: on the host, and once for a length."""
    row, rows, blocks, key, keys = piece
    head: Any = np.arange(heads)[:, None, None] if pattern.per_head else 0

    def seen(block: int) -> Any:
        q_pos, begin = row + before + block * rows + np.arange(rows)[:, None], key + block * rows
        k_pos = np.concatenate([np.asarray(far, dtype=np.int64), begin + np.arange(keys)])[None]
        inside = (k_pos >= begin) & (k_pos < begin + keys)
        inside[:, len(far) :] = False
        return pattern.allows(Tokens(q_pos, 0, None, head, layer), Tokens(k_pos, 0, None, head, layer)) & ~inside

    first = seen(0)
    return all(np.array_equal(first, seen(block)) for block in range(1, blocks))


def _dense_rows(q_BNHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs, index: Tensor) -> Tensor:
    """Some queries against all keys."""
    mask, columns = terms.mask, torch.arange(terms.mask.keys, device=index.device)
    attn_mask = mask.pairs(index, columns)
    where = QKPositions((index + mask.keys - mask.queries)[None], columns[None])
    bias = None if terms.scores is None else score_bias(terms.scores, where)
    if bias is not None:
        attn_mask = torch.where(attn_mask, bias.to(q_BNHK.dtype), float("-inf"))
    return _grouped(q_BNHK, k_BSGK.transpose(1, 2), v_BSGK.transpose(1, 2), attn_mask, terms).flatten(2, 3)


KERNEL = Kernel("banded", why_not, run)
