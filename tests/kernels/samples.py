"""Queries, keys, values, masks and biases for the tests of attention kernels."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.attention import attend
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.dispatch import Kernel
from anyformer.parts.mixers.softmax import Softmax
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import ScoreBias, ValueTerms
from anyformer.specs.patterns import Pattern, Tokens
from tests.parts.samples import random

SCALE = 0.3


def qkv(queries: int, keys: int, heads: int = 6, groups: int = 2, dim: int = 8) -> tuple[Tensor, Tensor, Tensor]:
    return (
        random(2, queries, heads, dim, seed=1),
        random(2, keys, groups, dim, seed=2),
        random(2, keys, groups, dim, seed=3),
    )


def plain(pattern: Pattern, queries: int, keys: int | None = None, *, heads: int = 6, **rest: Any) -> AttentionMask:
    """Rows that are alike: queries are the last of the keys."""
    keys = queries if keys is None else keys
    every = torch.arange(keys)[None]
    length = torch.full((1, 1), keys) if pattern.needs_length else None
    q, k = Tokens(every[:, keys - queries :], length=length), Tokens(every, length=length)
    shape = "pattern"
    if isinstance(pattern, Full):
        shape = "none"
    elif isinstance(pattern, Causal) and queries == keys:
        shape = "causal"
    return AttentionMask(pattern, q, k, plain=True, heads=heads, shape=shape, **rest)


def packed(pattern: Pattern, tokens: int, *, heads: int = 6) -> AttentionMask:
    """Two rows of three and two documents."""
    cuts = (tokens // 4, tokens // 2), (tokens // 3,)
    document = torch.stack([sum((torch.arange(tokens) >= cut).long() for cut in row) for row in cuts])
    begin = torch.searchsorted(document, document)
    pos = torch.arange(tokens) - begin
    length = (document[:, :, None] == document[:, None]).sum(-1)
    tokens_of = Tokens(pos, document, length)
    return AttentionMask(pattern, tokens_of, tokens_of, heads=heads)


def padded(pattern: Pattern, tokens: int, *, heads: int = 6) -> tuple[AttentionMask, Tensor]:
    """One row padded on the left and one on the right, and which tokens are real."""
    few = tokens // 5
    here = torch.arange(tokens)
    valid = torch.stack([here >= few, here < tokens - few])
    pos = (valid.long().cumsum(-1) - 1).clamp(min=0)
    tokens_of = Tokens(pos, length=valid.sum(-1, keepdim=True))
    return AttentionMask(pattern, tokens_of, tokens_of, valid, heads=heads), valid


@dataclass
class Given(AttentionMask):
    """A mask that a test wrote down, (B or 1, H or 1, T, S)."""

    given: Tensor = field(default_factory=lambda: torch.ones(1, 1, 1, 1, dtype=torch.bool))

    def pairs(self, rows: Any, columns: Any) -> Tensor:
        return self.given[:, :, rows][..., columns]


def given(mask: Tensor) -> AttentionMask:
    queries, keys = mask.shape[-2:]
    every = torch.arange(keys)[None]
    return Given(Full(), Tokens(every[:, keys - queries :]), Tokens(every), given=mask)


def as_terms(bias_BHTS: Tensor) -> ScoreBias:
    """Any bias of plain rows: every query has a row of its own, in which the gap tells the key."""
    queries, keys = bias_BHTS.shape[-2:]

    def index(gap: Tensor) -> Tensor:
        return gap + keys - 1

    gap = torch.arange(keys)[None] - torch.arange(keys - queries, keys)[:, None]
    empty = bias_BHTS.new_zeros(*bias_BHTS.shape[:3], 2 * keys - 1)
    return ScoreBias(table_BHTN=empty.scatter(-1, index(gap).expand(bias_BHTS.shape), bias_BHTS), pick=index)


def near(gap: Tensor) -> Tensor:
    """Gaps of at most 4, as numbers 0 to 8."""
    return gap.clamp(-4, 4) + 4


Made = tuple[dict[str, Any], list[Tensor]]
"""Fields of Terms, and the leaves among them that have gradients."""


def _slope(queries: int, keys: int, heads: int) -> Made:
    slope = random(heads, seed=11).requires_grad_()
    return {"scores": ScoreBias(slope_H=slope)}, [slope]


def _table(queries: int, keys: int, heads: int) -> Made:
    table = random(1, heads, 1, 9, seed=11).requires_grad_()
    return {"scores": ScoreBias(table_BHTN=table, pick=near)}, [table]


def _table_of_rows(queries: int, keys: int, heads: int) -> Made:
    table = random(2, heads, 1, 9, seed=11).requires_grad_()
    return {"scores": ScoreBias(table_BHTN=table, pick=near)}, [table]


def _table_of_queries(queries: int, keys: int, heads: int) -> Made:
    table = random(2, heads, queries, 9, seed=11).requires_grad_()
    return {"scores": ScoreBias(table_BHTN=table, pick=near)}, [table]


def _shared_table_of_queries(queries: int, keys: int, heads: int) -> Made:
    table = random(1, heads, queries, 9, seed=11).requires_grad_()
    return {"scores": ScoreBias(table_BHTN=table, pick=near)}, [table]


def _sides(queries: int, keys: int, heads: int) -> Made:
    q_side, k_side = random(2, queries, heads, 5, seed=11), random(1, keys, 5, seed=12)
    leaves = [t.requires_grad_() for t in (q_side, k_side, random(2, heads, keys, seed=13))]
    return {"scores": ScoreBias(q_side_BTHE=leaves[0], k_side_BSE=leaves[1], column_BHS=leaves[2])}, leaves


def _table_of_keys(queries: int, keys: int, heads: int) -> Made:
    table = random(2, heads, keys, 9, seed=14).requires_grad_()
    return {"scores": ScoreBias(pick=near, key_table_BHSN=table)}, [table]


def _disentangled(queries: int, keys: int, heads: int) -> Made:
    of_queries, of_keys = random(2, heads, queries, 9, seed=11), random(1, heads, keys, 9, seed=14)
    leaves = [t.requires_grad_() for t in (of_queries, of_keys)]
    return {"scores": ScoreBias(table_BHTN=leaves[0], pick=near, key_table_BHSN=leaves[1])}, leaves


def _values(queries: int, keys: int, heads: int) -> Made:
    table = random(9, 8, seed=11).requires_grad_()
    return {"values": ValueTerms(table, near)}, [table]


def _shaw(queries: int, keys: int, heads: int) -> Made:
    both = _table_of_queries(queries, keys, heads), _values(queries, keys, heads)
    return both[0][0] | both[1][0], both[0][1] + both[1][1]


def _sink(queries: int, keys: int, heads: int) -> Made:
    sink = random(heads, seed=11).requires_grad_()
    return {"mixer": Softmax(sinks=True), "own": {"sink_H": sink}}, [sink]


ADDED: dict[str, Callable[[int, int, int], Made]] = {
    "plain": lambda queries, keys, heads: ({}, []),
    "softcap": lambda queries, keys, heads: ({"softcap": 1.5}, []),
    "slope": _slope,
    "table": _table,
    "table_of_rows": _table_of_rows,
    "table_of_queries": _table_of_queries,
    "shared_table_of_queries": _shared_table_of_queries,
    "sides": _sides,
    "table_of_keys": _table_of_keys,
    "disentangled": _disentangled,
    "values": _values,
    "shaw": _shaw,
    "sink": _sink,
}
"""What may be done to scores, one thing at a time, and Shaw's and DeBERTa's two."""


def run(kernel: Kernel | None, q: Tensor, k: Tensor, v: Tensor, mask: AttentionMask, **rest: Any) -> Tensor:
    """attend() with a mixer unless one is given."""
    usual = {"scale": SCALE, "mixer": Softmax(), "own": {}}
    return attend(q, k, v, kernel=kernel, mask=mask, **(usual | rest))


def value_and_gradients(
    kernel: Kernel,
    mask: AttentionMask,
    *names: str,
    groups: int = 2,
    real: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
    **rest: Any,
) -> list[Tensor]:
    """The result, and the gradients of queries, keys, values and everything added. `real` (B,T): queries that count."""
    heads = mask.heads
    leaves = [t.to(dtype).requires_grad_() for t in qkv(mask.queries, mask.keys, heads, groups)]
    more: list[Tensor] = []
    for name in names:
        fields, tensors = ADDED[name](mask.queries, mask.keys, heads)
        rest, more = rest | fields, more + tensors
    out = run(kernel, *leaves, mask, **rest)
    counted = out if real is None else out * real[:, :, None, None]
    counted.backward(random(*out.shape, seed=7).to(dtype))
    return [counted.detach(), *(leaf.grad for leaf in leaves + more)]
