"""What a position scheme adds to scores and values, for all pairs or for a tile of them."""

import functools
from typing import Any

import torch
from torch import Tensor

from anyformer.specs.axes import QKPositions, ScoreBias, ValueTerms

WHOLE = slice(None)


def gaps(where: QKPositions, rows: Any = WHOLE, columns: Any = WHOLE) -> Tensor:
    """(B or 1, T, S): how far each key comes after each query."""
    return where.k_pos_BS[:, None, columns] - where.q_pos_BT[:, rows, None]


def score_bias(terms: ScoreBias, where: QKPositions, rows: Any = WHOLE, columns: Any = WHOLE) -> Tensor | None:
    """(B or 1, H, T or 1, S): the sum of all terms for some queries and keys; None if there is none."""
    found: list[Tensor] = []
    if terms.slope_H is not None or terms.pick is not None:
        gap_BTS = gaps(where, rows, columns)
        if terms.slope_H is not None:
            found.append(terms.slope_H[:, None, None] * gap_BTS[:, None].abs())
        if terms.table_BHTN is not None:
            found.append(picked(terms, gap_BTS, rows))
        if terms.key_table_BHSN is not None:
            found.append(picked_by_key(terms, gap_BTS, columns))
    if terms.q_side_BTHE is not None:
        q_BTHE, k_BSE = terms.q_side_BTHE[:, rows], terms.k_side_BSE[:, columns]
        found.append(torch.einsum("bthe,bse->bhts", q_BTHE, k_BSE.expand(q_BTHE.shape[0], -1, -1)))
    if terms.column_BHS is not None:
        found.append(terms.column_BHS[:, :, None, columns])
    return functools.reduce(torch.add, found) if found else None


def picked(terms: ScoreBias, gap_BTS: Tensor, rows: Any = WHOLE) -> Tensor:
    """What the table holds for these gaps, (B,H,T,S)."""
    index_BTS, table = table_index(terms, gap_BTS), terms.table_BHTN
    if table.shape[2] == 1 and table.shape[0] == 1:
        # One row of numbers for each head: a plain look-up, whose gradient is a sum over equal gaps.
        return table[0, :, 0][:, index_BTS].transpose(0, 1)
    table = table if table.shape[2] == 1 else table[:, :, rows]
    batch, heads = max(table.shape[0], index_BTS.shape[0]), table.shape[1]
    queries, keys = index_BTS.shape[1:]
    table = table.expand(batch, heads, queries, table.shape[3])
    return table.gather(-1, index_BTS[:, None].expand(batch, heads, queries, keys))


def picked_by_key(terms: ScoreBias, gap_BTS: Tensor, columns: Any = WHOLE) -> Tensor:
    """What the table of each key holds for these gaps, (B,H,T,S)."""
    index_BST, table = table_index(terms, gap_BTS).transpose(1, 2), terms.key_table_BHSN[:, :, columns]
    batch, heads = max(table.shape[0], index_BST.shape[0]), table.shape[1]
    index = index_BST[:, None].expand(batch, heads, *index_BST.shape[1:])
    return table.expand(batch, *table.shape[1:]).gather(-1, index).transpose(2, 3)


def value_part(terms: ValueTerms, probs_BHTS: Tensor, where: QKPositions) -> Tensor:
    """What the weights take from the values' own table, (B,T,H,K)."""
    index = terms.pick(gaps(where))[:, None].expand(probs_BHTS.shape)
    table = terms.table_NK.to(probs_BHTS.dtype)
    by_gap = probs_BHTS.new_zeros(*probs_BHTS.shape[:3], table.shape[0]).scatter_add(-1, index, probs_BHTS)
    return (by_gap @ table).transpose(1, 2)


Sums = tuple[Any, Any, Any, Any, Any, Any]
"""Of slope, table, query side, key side, column and table of keys, those that are asked for; else None."""


def sums_for(terms: ScoreBias, wanted: tuple[bool, ...]) -> Sums:
    """Zeros to add gradients up in, one for each term."""
    each = terms.slope_H, terms.table_BHTN, terms.q_side_BTHE, terms.k_side_BSE, terms.column_BHS, terms.key_table_BHSN
    slope, table, q_side, k_side, column, by_key = (
        torch.zeros_like(term) if asked and term is not None else None for term, asked in zip(each, wanted, strict=True)
    )
    return slope, table, q_side, k_side, column, by_key


def add_up(sums: Sums, moved_BHTS: Tensor, terms: ScoreBias, where: QKPositions, rows: slice, columns: slice) -> None:
    """Add what the gradient of a tile's scores means for each term."""
    slope, table, q_side, k_side, column, by_key = sums
    batch, heads, queries, keys = moved_BHTS.shape
    if slope is not None:
        slope += (moved_BHTS * gaps(where, rows, columns)[:, None].abs()).sum((0, 2, 3))
    if table is not None:
        index_BTS, some = table_index(terms, gaps(where, rows, columns)), moved_BHTS
        if table.shape[2] == 1:
            # All queries share the row: pairs of one gap are one sum.
            rest = batch if table.shape[0] > 1 else 1
            if rest == 1 and index_BTS.shape[0] == 1:
                some = some.sum(0, keepdim=True)
            some = some.transpose(0, 1).reshape(heads, rest, -1).transpose(0, 1)
            index = index_BTS.expand(max(rest, index_BTS.shape[0]), -1, -1).reshape(rest, 1, -1)
            table[:, :, 0] += torch.zeros_like(table[:, :, 0]).scatter_add_(-1, index.expand(some.shape), some)
        else:
            some = some.sum_to_size(table.shape[0], heads, queries, keys) if index_BTS.shape[0] == 1 else some
            index = index_BTS[:, None].expand(some.shape)
            by_gap = some.new_zeros(some.shape[0], heads, queries, table.shape[3]).scatter_add_(-1, index, some)
            table[:, :, rows] += by_gap.sum_to_size(table[:, :, rows].shape)
    if q_side is not None:
        q_side[:, rows] += torch.einsum(
            "bhts,bse->bthe", moved_BHTS, terms.k_side_BSE[:, columns].expand(batch, -1, -1)
        )
    if k_side is not None:
        of_keys = torch.einsum("bhts,bthe->bse", moved_BHTS, terms.q_side_BTHE[:, rows].expand(batch, -1, -1, -1))
        k_side[:, columns] += of_keys.sum_to_size(k_side[:, columns].shape)
    if column is not None:
        column[:, :, columns] += moved_BHTS.sum(2).sum_to_size(column[:, :, columns].shape)
    if by_key is not None:
        index_BST = table_index(terms, gaps(where, rows, columns)).transpose(1, 2)
        index = index_BST[:, None].expand(batch, heads, keys, queries)
        by_gap = moved_BHTS.new_zeros(batch, heads, keys, by_key.shape[3])
        by_gap = by_gap.scatter_add_(-1, index, moved_BHTS.transpose(2, 3))
        by_key[:, :, columns] += by_gap.sum_to_size(by_key[:, :, columns].shape)


def table_index(terms: ScoreBias, gap_BTS: Tensor) -> Tensor:
    """Which entry of the table each gap picks."""
    # A table comes with the index into it. Not by `cast`: a compiler would lose where the function came from.
    pick: Any = terms.pick
    return pick(gap_BTS)
