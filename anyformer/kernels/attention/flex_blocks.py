"""Block masks for flex_attention: which tiles of an attention mask are empty, full or mixed, and the predicate of one pair."""

import math
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.attention.flex_attention import BlockMask

from anyformer.kernels.attention_mask import WHOLE, AttentionMask
from anyformer.kernels.cuda_graph import hold
from anyformer.specs.patterns import Both, Either, Pattern, Tokens

BLOCK = 128
"""Side of the tiles that a block mask skips."""
PAIRS = 1 << 28
"""Pairs whose predicate is asked at a time while a block mask is made."""
KEPT = 64
"""Block masks of plain rows that are kept for the next pass."""

_kept: OrderedDict[Any, BlockMask] = OrderedDict()

Reader = Callable[[Any, Any], Any]
"""From the numbers of a row and of a token to what is known of that token."""


def in_order(mask: AttentionMask) -> bool:
    """Whether the place of a token is its index, so that the kernel loads no positions."""
    marks = mask.pattern.reads_marks and isinstance(mask.q.marked, Tensor)
    apart = isinstance(mask.q.document, Tensor) or mask.valid_BS is not None
    return mask.plain and mask.queries == mask.keys and not marks and not apart


def block_mask(mask: AttentionMask) -> BlockMask:
    """The block mask of an attention mask. Kept: for plain rows by what it depends on, else with the mask."""
    return mask.once("blocks", lambda: _found(mask))


def _found(mask: AttentionMask) -> BlockMask:
    if torch.compiler.is_compiling():
        return made(mask)
    # A pass with gradients may read it next, which could not keep what was made in inference mode.
    with torch.inference_mode(False), torch.no_grad():
        if not in_order(mask):
            return made(mask)
        # All that the block mask of plain rows depends on.
        pattern = mask.pattern
        heads, layer = mask.heads if pattern.per_head else 1, mask.layer if pattern.per_layer else 0
        key = pattern, mask.queries, mask.keys, heads, layer, mask.q.pos.device
        found = _kept.pop(key, None)
        _kept[key] = found = made(mask) if found is None else found
    if len(_kept) > KEPT:
        _kept.popitem(last=False)
    return hold(found)


def made(mask: AttentionMask) -> BlockMask:
    """A block mask, from counts of the allowed pairs of every tile."""
    queries, keys = mask.queries, mask.keys
    rows = math.ceil(queries / BLOCK) * BLOCK
    if not torch.compiler.is_compiling():
        # The whole predicate is never in memory; compiled code makes one reduction of it and needs no slabs.
        pairs = mask.k.pos.shape[0] * (mask.heads if mask.pattern.per_head else 1) * keys
        rows = max(BLOCK, PAIRS // pairs // BLOCK * BLOCK)
    counts = [_counts(mask, first, min(first + rows, queries)) for first in range(0, queries, rows)]
    count = torch.cat(counts, 2) if len(counts) > 1 else counts[0]
    full = count == BLOCK * BLOCK
    mixed = (count > 0) & ~full
    blocks = BlockMask.from_kv_blocks(
        *_listed(mixed), *_listed(full), BLOCK_SIZE=BLOCK, mask_mod=mask_mod(mask), seq_lengths=(queries, keys)
    )
    rows_differ(
        blocks.kv_num_blocks, blocks.kv_indices, blocks.full_kv_num_blocks, blocks.full_kv_indices,
        blocks.q_num_blocks, blocks.q_indices, blocks.full_q_num_blocks, blocks.full_q_indices,
    )  # fmt: skip
    return blocks


def _counts(mask: AttentionMask, first: int, last: int) -> Tensor:
    """(B or 1, H or 1, tiles of these queries, tiles of all keys): allowed pairs in each tile."""
    seen = mask.pairs(slice(first, last), WHOLE)
    seen = F.pad(seen, (0, -mask.keys % BLOCK, 0, -(last - first) % BLOCK))
    seen = seen.unflatten(3, (-1, BLOCK)).unflatten(2, (-1, BLOCK))
    return seen.sum(5, dtype=torch.int32).sum(3, dtype=torch.int32)


def _listed(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """How many tiles each row of tiles has, and the numbers of the tiles, those first."""
    order = torch.argsort(tiles.to(torch.int32), dim=-1, descending=True, stable=True)
    return tiles.sum(-1, dtype=torch.int32), order.to(torch.int32)


def mask_mod(mask: AttentionMask) -> Callable[..., Tensor]:
    """The predicate of one pair, as flex asks it: row, head, query and key are numbers in tensors."""
    pattern, layer, valid_BS = mask.pattern, mask.layer, mask.valid_BS
    ask, apart = _asked(pattern, mask), isinstance(mask.q.document, Tensor)
    q_pos, k_pos = places(mask)
    q_document, k_document = reader(mask.q.document), reader(mask.k.document)
    q_length, k_length = (reader(x.length if pattern.needs_length else None) for x in (mask.q, mask.k))
    q_marked, k_marked = (reader(x.marked if pattern.reads_marks else False) for x in (mask.q, mask.k))
    real = reader(valid_BS)

    def visible(b: Any, h: Any, t: Any, s: Any) -> Tensor:
        head = h if pattern.per_head else 0
        q = Tokens(q_pos(b, t), q_document(b, t), q_length(b, t), head, layer, q_marked(b, t))
        k = Tokens(k_pos(b, s), k_document(b, s), k_length(b, s), head, layer, k_marked(b, s))
        allowed = ask(q, k, b, t, s)
        if apart:
            allowed = allowed & (q.document == k.document)
        if valid_BS is not None:
            allowed = allowed & real(b, s)
        return allowed

    return visible


Ask = Callable[[Tokens, Tokens, Any, Any, Any], Any]
"""From a query and a key, the number of their row, and their indices in it, to whether one may see the other."""


def _asked(pattern: Pattern, mask: AttentionMask) -> Ask:
    """A pattern's predicate. What was drawn is looked up: a kernel that drew it anew for every pair would be slow, and
    far slower to compile.
    """
    if not pattern.per_layer:
        return lambda q, k, b, t, s: pattern.allows(q, k)
    if isinstance(pattern, (Both, Either)):
        first, second = _asked(pattern.first, mask), _asked(pattern.second, mask)
        if isinstance(pattern, Both):
            return lambda q, k, b, t, s: first(q, k, b, t, s) & second(q, k, b, t, s)
        return lambda q, k, b, t, s: first(q, k, b, t, s) | second(q, k, b, t, s)
    chosen, grain = pattern.chosen(mask.sides()[0]), pattern.grains()[1]
    if chosen is None:
        return _seen(pattern, mask, grain)
    listed = [x[..., 0].to(torch.int32) for x in chosen]
    rows_differ(*listed)
    several = listed[0].shape[0] > 1

    def among(q: Tokens, k: Tokens, b: Any, t: Any, s: Any) -> Any:
        found = k.pos // grain == listed[0][b if several else 0, q.head, t]
        for one in listed[1:]:
            found = found | (k.pos // grain == one[b if several else 0, q.head, t])
        return found

    return among


def _seen(pattern: Pattern, mask: AttentionMask, grain: int) -> Ask:
    """A drawn predicate as a table of queries and of the grains of keys, or of all keys where rows are not in order."""
    queries, keys = mask.sides()
    if in_order(mask):
        starts = torch.arange(0, mask.keys, grain, device=mask.k.pos.device)
        seen = pattern.allows(queries, Tokens(starts, 0, queries.length, queries.head, mask.layer))[0]
        return lambda q, k, b, t, s: seen[q.head, t, s // grain]
    dense = pattern.allows(queries, keys)
    rows_differ(dense)
    several = dense.shape[0] > 1
    return lambda q, k, b, t, s: dense[b if several else 0, q.head, t, s]


def rows_differ(*tensors: Tensor | None) -> None:
    """Tell the compiler that the number of rows changes, so that it makes no kernel for each."""
    if not torch.compiler.is_compiling():
        for x in tensors:
            if x is not None:
                torch._dynamo.maybe_mark_dynamic(x, 0)


def places(mask: AttentionMask) -> tuple[Reader, Reader]:
    """Readers of the positions of queries and keys."""
    if in_order(mask):
        return _index, _index
    return reader(mask.q.pos), reader(mask.k.pos)


def _index(b: Any, t: Any) -> Any:
    return t


def reader(value: Any) -> Reader:
    """How the kernel reads (B,T), (1,T), (B,1) or (1,1), or a plain value."""
    if not isinstance(value, Tensor) or value.dim() < 2:
        return lambda b, t: value
    if value.dtype != torch.bool:
        value = value.to(torch.int32)
    rows, tokens = value.shape
    if tokens == 1:
        of_B = value[:, 0]
        rows_differ(of_B)
        return (lambda b, t: of_B[0]) if rows == 1 else (lambda b, t: of_B[b])
    if rows == 1:
        of_T = value[0]
        return lambda b, t: of_T[t]
    rows_differ(value)
    return lambda b, t: value[b, t]
