"""Per-layer KV storage of contiguous rows: full, ring buffer, or none.

Layers with one policy share it: it prepares each step once, and they then only write and read. Tokens are the first
dimension of every tensor: what has been filled is then a slice whose strides do not depend on how much it is.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.parts.cache_positions import CachePositions, KeyPositions
from anyformer.specs.cache_policy import Keep


class FullCache:
    """Every column has a slot of its own, padding included."""

    def __init__(self, tokens: CachePositions) -> None:
        self.tokens, self.slots = tokens, tokens.length
        self.keys = tokens.columns(0, 0)
        """Where the keys are that are seen in this step."""

    def begin(self) -> None:
        """Prepare a step."""
        self.keys = self.tokens.columns(0, self.tokens.end)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        """Store new tokens (B,T,heads,dim); all of them so far (B,S,heads,dim)."""
        end = self.tokens.end
        kept[self.tokens.used : end] = fresh.transpose(0, 1)
        return kept[:end].transpose(0, 1)


class StateOnly:
    """New tokens are seen and not kept: a mixer's state has them all."""

    def __init__(self, tokens: CachePositions) -> None:
        self.tokens, self.slots = tokens, 0
        self.keys = tokens.columns(0, 0)

    def begin(self) -> None:
        """Prepare a step."""
        self.keys = self.tokens.columns(self.tokens.used, self.tokens.end)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        """The new tokens."""
        return fresh


class RingCache:
    """Newer tokens take the slots of those that no query will see again.

    Up to `chunk` new tokens are written first and seen in place. More of them would overwrite what the first of them
    still sees: they are seen behind what the ring holds, and then the ring takes what later queries can see.
    """

    def __init__(self, tokens: CachePositions, keep: Keep, chunk: int) -> None:
        self.tokens, self.keep, self.chunk = tokens, keep, chunk
        self.slots = keep.room(tokens.length)
        self.keys = tokens.columns(0, 0)
        self.filled = 0
        """Slots that are seen in this step."""
        self.slot = tokens.index_L[:0]
        """Where new tokens go: (T,), or (T,B) where rows differ."""
        self.real_TB11: Tensor | None = None
        """Which of them are real, where rows differ."""
        self.taken: tuple[Tensor, Tensor] | None = None
        """Of a long feed: which slots change, and which of the new tokens each takes; (R,1) and (R,), or (R,B)."""

    def begin(self) -> None:
        """Prepare a step."""
        tokens, order_TB = self.tokens, self.tokens.order_TB
        if not self.in_place():
            self._prepare_long()
            return
        self.taken = self.real_TB11 = None
        self.filled = self._filled(tokens.end)
        self.keys = self._find(tokens.end, tokens.total_B)
        if order_TB is None:
            self.slot = self.keep.slot(tokens.index_L[tokens.used : tokens.end])
        else:
            self.slot = self.keep.slot(tokens.seen_B + order_TB)
            self.real_TB11 = tokens.valid_LB[tokens.used : tokens.end, :, None, None]

    def _prepare_long(self) -> None:
        tokens, order_TB = self.tokens, self.tokens.order_TB
        self.filled, self.keys = 0, tokens.columns(tokens.used, tokens.end)
        if tokens.used > 0:
            self.filled = self._filled(tokens.used)
            self.keys = _behind(self._find(tokens.used, tokens.seen_B), self.keys)
        index_R = tokens.index_L[: self.slots]
        if order_TB is None:
            number_R = self.keep.held(index_R, tokens.end)
            self.taken = (number_R >= tokens.used)[:, None], (number_R - tokens.used).clamp(min=0)
        else:
            number_RB = self.keep.held(index_R[:, None], tokens.total_B)
            column_TB = torch.empty_like(order_TB)
            column_TB.scatter_(0, order_TB, tokens.index_L[: tokens.new, None].expand_as(order_TB))
            source_RB = column_TB.gather(0, (number_RB - tokens.seen_B).clamp(min=0))
            self.taken = number_RB >= tokens.seen_B, source_RB

    def in_place(self) -> bool:
        """Whether new tokens are written before they are seen."""
        return self.tokens.new <= self.chunk

    def _filled(self, columns: int) -> int:
        # Compiled code meets one shape, with a mask of what is there.
        return self.slots if torch.compiler.is_compiling() else self.keep.filled(columns)

    def _find(self, columns: int, count_B: Tensor) -> KeyPositions:
        """The tokens in the filled slots, after so many columns."""
        slot_S = self.tokens.index_L[: self.filled]
        if self.tokens.ragged:
            return self.tokens.numbered_as(self.keep.held(slot_S[:, None], count_B), whole=False)
        whole = not self.keep.columns and not torch.compiler.is_compiling()
        return self.tokens.numbered_as(self.keep.held(slot_S, columns), whole=whole)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        """Store new tokens (B,T,heads,dim); all that may be seen in this step (B,S,heads,dim)."""
        fresh = fresh.to(kept.dtype)
        fresh_T, row_B = fresh.transpose(0, 1), self.tokens.row_B
        if self.taken is not None:
            seen = torch.cat((kept[: self.filled].transpose(0, 1), fresh), 1) if self.tokens.used > 0 else fresh
            change, source = self.taken
            picked = fresh_T[source] if source.dim() == 1 else fresh_T[source, row_B]
            kept.copy_(torch.where(change[:, :, None, None], picked, kept))
            return seen
        if self.real_TB11 is None:
            kept.index_copy_(0, self.slot, fresh_T)
        else:
            # All slots of a row differ, so what padding writes back disturbs nobody.
            at = self.slot, row_B
            kept[at] = torch.where(self.real_TB11, fresh_T, kept[at])
        return kept[: self.filled].transpose(0, 1)


def _behind(old: KeyPositions, new: KeyPositions) -> KeyPositions:
    """Old keys, then new ones."""
    pos = torch.cat((old[0], new[0]), 1)
    valid, is_global = old[1], None
    if valid is not None:
        valid = torch.cat((valid, torch.ones_like(new[0], dtype=torch.bool) if new[1] is None else new[1]), 1)
    if old[2] is not None and new[2] is not None:
        is_global = torch.cat((old[2], new[2]), 1)
    return pos, valid, is_global
