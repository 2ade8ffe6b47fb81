"""What a cache keeps of a row: which tokens, in which slots (CachePolicy), and each layer's tensors (LayerCacheSpec).

Slots are given by a token's number among the real tokens of its row. A newer token takes the slot of an older one
that no query will see again, so the room does not grow with the row unless the pattern makes it.
"""

import math
from dataclasses import dataclass
from typing import Any

from anyformer.errors import InputError


@dataclass(frozen=True, kw_only=True)
class CachePolicy:
    """The first tokens, the most recent ones, and the last columns of every block.

    Slots are in that order: the first tokens, a ring of recent ones, then the columns as they come.
    """

    recent: int | None = None
    """How many of the newest, the current one included; None: all of them for ever."""
    first: int = 0
    """How many of a row's first tokens stay."""
    block: int = 0
    columns: int = 0
    """Of every `block` tokens, the last `columns` stay."""

    def __post_init__(self) -> None:
        wrong: list[str] = []
        if self.recent is not None and self.recent < 1:
            wrong.append(f"recent must be at least 1 (a token sees itself), got {self.recent}")
        if self.first < 0:
            wrong.append(f"first must be at least 0, got {self.first}")
        if not 0 <= self.columns <= self.block:
            wrong.append(f"columns must be between 0 and block={self.block}, got {self.columns}")
        if wrong:
            raise InputError(f"what a cache keeps: {'; '.join(wrong)}")

    def join(self, other: "CachePolicy") -> "CachePolicy":
        """What two patterns need together."""
        if self.recent is None or other.recent is None:
            return CachePolicy()
        grids = [keep for keep in (self, other) if keep.columns]
        if len({keep.block for keep in grids}) > 1:
            # Columns of two grids would need two slots for some tokens.
            return CachePolicy()
        block, columns = max(((keep.block, keep.columns) for keep in grids), default=(0, 0))
        recent, first = max(self.recent, other.recent), max(self.first, other.first)
        return CachePolicy(recent=recent, first=first, block=block, columns=columns)

    def meet(self, other: "CachePolicy") -> "CachePolicy":
        """What is enough for queries that must satisfy both patterns: the smaller of the two."""

        def size(keep: CachePolicy) -> tuple[bool, bool, int]:
            return keep.recent is None, keep.columns > 0, (keep.recent or 0) + keep.first

        return min(self, other, key=size)

    def fed(self, chunk: int) -> "CachePolicy":
        """The same with room for `chunk` new tokens at once: the oldest of them sees as far back as ever."""
        if self.recent is None or chunk == 1:
            return self
        return CachePolicy(recent=self.recent + chunk - 1, first=self.first, block=self.block, columns=self.columns)

    def room(self, length: int) -> int:
        """Slots for rows of up to `length` tokens."""
        if self.recent is None:
            return length
        return min(length, self.first + self.recent + self._columns_of(length))

    def within(self, length: int) -> "CachePolicy":
        """The policy for rows of up to `length` tokens: to keep all, where that takes no more room."""
        return CachePolicy() if self.room(length) == length else self

    def filled(self, count: int) -> int:
        """How many slots of a ring, counted from the first, hold all that is kept of `count` tokens."""
        if self.recent is None:
            return count
        columns = self._columns_of(count)
        return self.first + self.recent + columns if columns else min(count, self.first + self.recent)

    def _columns_of(self, count: int) -> int:
        """How many of the first `count` tokens are in the last columns of their block."""
        if not self.columns:
            return 0
        return count // self.block * self.columns + max(0, count % self.block - (self.block - self.columns))

    def slot(self, number: Any) -> Any:
        """The slot of the token with this number (a number or an array)."""
        if self.recent is None:
            return number
        slot = self.first + (number - self.first) % self.recent
        if self.columns:
            inside = number % self.block - (self.block - self.columns)
            column = self.first + self.recent + number // self.block * self.columns + inside
            slot = slot + (column - slot) * (inside >= 0)
        return slot + (number - slot) * (number < self.first) if self.first else slot

    def held(self, slot: Any, count: Any) -> Any:
        """The number of the token in a slot after `count` tokens, all of them numbers or arrays; -1 if there is none,
        or one that no query will see.
        """
        if self.recent is None:
            return (slot + 1) * (slot < count) - 1
        newest = count - 1 - self.first
        # Of the numbers that share this slot of the ring, the last one before `count`.
        number = self.first + newest - (newest - (slot - self.first)) % self.recent
        real = number >= self.first
        if self.columns:
            real = real & (number % self.block < self.block - self.columns)
            place = slot - self.first - self.recent
            column = place // self.columns * self.block + self.block - self.columns + place % self.columns
            beyond = place >= 0
            number = number + (column - number) * beyond
            real = (real & (place < 0)) | (beyond & (column >= self.first) & (column < count))
        if self.first:
            early = slot < self.first
            number = number + (slot - number) * early
            real = (real & (slot >= self.first)) | (early & (slot < count))
        return (number + 1) * real - 1


@dataclass(frozen=True, kw_only=True)
class LayerCacheSpec:
    """What one layer keeps: tensors of some tokens, a state of the whole row, or both."""

    streams: tuple[tuple[int, int], ...] = ()
    """(heads, dim) of each tensor that is kept of a token."""
    keep: CachePolicy = CachePolicy()
    """Which tokens."""
    state: tuple[tuple[int, ...], ...] = ()
    """Shapes of what is kept of a row, however long it is."""

    @property
    def per_token(self) -> int:
        """Numbers kept of one token."""
        return sum(heads * dim for heads, dim in self.streams)

    @property
    def per_row(self) -> int:
        """Numbers of a row's state."""
        return sum(math.prod(shape) for shape in self.state)

    def tokens(self, length: int, chunk: int) -> int:
        """For how many tokens there are slots, in rows of up to `length` that are fed `chunk` at once."""
        return self.keep.fed(chunk).room(length)
