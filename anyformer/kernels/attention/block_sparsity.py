"""Which tiles of the pairs hold any that a pattern allows, and which hold no other.

For plain rows the pattern alone decides, on the host and once for a length. Otherwise the rows are looked at, unless
code is being compiled or recorded, which must serve rows that it has not seen.
"""

import operator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.trace_constants import ask
from anyformer.specs.patterns import Pattern, Tokens


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
        return planned(pattern, queries, keys, rows, columns, mask.heads, mask.layer)
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


def planned(pattern: Pattern, queries: int, keys: int, rows: int, columns: int, heads: int, layer: int) -> Plan:
    """The tiles of plain rows: queries are the last of the keys, and positions count from 0."""
    heads, layer = heads if pattern.per_head else 1, layer if pattern.per_layer else 0
    return ask(_planned, pattern, queries, keys, rows, columns, heads, layer)


def _planned(pattern: Pattern, queries: int, keys: int, rows: int, columns: int, heads: int, layer: int) -> Plan:
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
