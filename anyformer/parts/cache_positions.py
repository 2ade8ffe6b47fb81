"""Positions of cached tokens: which each row has read, where they are, and which are new in the step under way."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.errors import InputError

KeyPositions = tuple[Tensor, Tensor | None, Tensor | None]
"""Positions, validity (None: all real) and global marks (None: no token is global) of some keys."""


class CachePositions:
    """Tokens are written in the columns in which they came, padding included. What lies past `used` does not count,
    so a step that is not ended leaves no trace.
    """

    def __init__(self, batch: int, length: int, device: torch.device, *, numbered: bool) -> None:
        self.length, self.numbered = length, numbered
        self.used = 0
        """Columns filled so far, padding included."""
        self.ragged = False
        """Whether rows differ: padding was fed, or positions were given."""
        self.new = 0
        """Columns of the step under way."""
        self.end = 0
        """Columns at the end of the step under way."""
        self.index_L = torch.arange(length, device=device)
        """0, 1, 2 ..., to be cut."""
        self.row_B = torch.arange(batch, device=device)
        self.pos_LB = self.index_L[:, None].repeat(1, batch)
        self.valid_LB = torch.ones(length, batch, device=device, dtype=torch.bool)
        self.global_LB: Tensor | None = None
        self.column_LB = self.pos_LB.clone()
        """The column of each row's real tokens by their number, if a layer asks for it: one that keeps some only."""
        self.seen_B = torch.zeros(batch, device=device, dtype=torch.long)
        """Real tokens so far in each row, kept once rows differ."""
        self.total_B = self.seen_B
        """The same at the end of the step under way."""
        self.order_TB: Tensor | None = None
        """A number for each new column where rows differ: real tokens in their order, then padding."""

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, global_BT: Tensor | None, *, ragged: bool) -> None:
        """Note new tokens."""
        self.new = pos_BT.shape[1]
        self.end = self.used + self.new
        if self.end > self.length:
            raise InputError(
                f"the cache has room for {self.length} tokens: {self.used} are used and {self.new} were given; "
                "make it longer"
            )
        new = slice(self.used, self.end)
        if global_BT is not None and self.global_LB is None:
            self.global_LB = torch.zeros_like(self.valid_LB)
        if self.global_LB is not None:
            self.global_LB[new] = False if global_BT is None else global_BT.T
        if ragged and not self.ragged:
            self.ragged = True
            self.seen_B.fill_(self.used)
        if not self.ragged:
            return
        self.pos_LB[new] = pos_BT.T
        self.valid_LB[new] = True if valid_BT is None else valid_BT.T
        real_TB = self.valid_LB[new]
        self.total_B = self.seen_B + real_TB.sum(0)
        if self.numbered:
            # Padding is numbered after the real tokens, so that no two columns of a row share a number.
            self.order_TB = torch.where(real_TB, real_TB.cumsum(0), real_TB.sum(0) + (~real_TB).cumsum(0)) - 1
            columns_TB = self.index_L[new, None].expand_as(self.order_TB)
            self.column_LB.scatter_(0, self.seen_B + self.order_TB, columns_TB)

    def advance(self, new: int) -> None:
        """The new tokens count from now on."""
        if self.ragged:
            self.seen_B.copy_(self.total_B)
        self.used, self.new, self.order_TB = self.used + new, 0, None
        self.end = self.used

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was."""
        if len(rows_B) != len(self.row_B):
            self.row_B = torch.arange(len(rows_B), device=rows_B.device)
        self.pos_LB = picked(self.pos_LB, 1, rows_B)
        self.valid_LB = picked(self.valid_LB, 1, rows_B)
        self.global_LB = None if self.global_LB is None else picked(self.global_LB, 1, rows_B)
        self.column_LB = picked(self.column_LB, 1, rows_B)
        self.seen_B = self.total_B = picked(self.seen_B, 0, rows_B)

    def columns(self, start: int, end: int) -> KeyPositions:
        """Tokens of some columns. Rows that don't differ share their positions."""
        is_global = None if self.global_LB is None else self.global_LB[start:end].T
        if not self.ragged:
            return self.pos_LB[start:end, :1].T, None, is_global
        return self.pos_LB[start:end].T, self.valid_LB[start:end].T, is_global

    def numbered_as(self, number: Tensor, *, whole: bool) -> KeyPositions:
        """The tokens of these numbers: (S,), or (S,B) where rows differ; -1 is no token at all.

        `whole` says that there is no -1 among them.
        """
        if not self.ragged:
            inside = number if whole else number.clamp(min=0)
            is_global = None if self.global_LB is None else self.global_LB[inside].T
            return inside[None], None if whole else (number >= 0)[None], is_global
        column_SB = self.column_LB.gather(0, number.clamp(min=0))
        is_global = None if self.global_LB is None else self.global_LB.gather(0, column_SB).T
        return self.pos_LB.gather(0, column_SB).T, (number >= 0).T, is_global


def picked(kept: Tensor, dim: int, rows_B: Tensor, filled: int | None = None) -> Tensor:
    """Some rows of a tensor, written into it if they are as many as it has. `filled`: only so many slots count."""
    part = kept if filled is None else kept[:filled]
    found = part.index_select(dim, rows_B)
    if len(rows_B) == kept.shape[dim]:
        part.copy_(found)
        return kept
    if filled is None:
        return found
    size = list(kept.shape)
    size[dim] = len(rows_B)
    more = kept.new_zeros(size)
    more[:filled] = found
    return more
