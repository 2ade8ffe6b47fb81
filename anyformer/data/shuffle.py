"""The order in which rows are visited: a pure function of (seed, epoch), so there is no state that could be lost."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from anyformer.errors import DataError

VERSION = 2
"""The rule by which a stream is cut into the rows of an epoch, which a run keeps to its end.

1: rows begin at an offset of less than a row, and what is left of the stream before and after them is not read: up to
two rows of tokens in each epoch, and where one row is all there is, the same ones each time.
2: the stream is a circle, cut anywhere; every token is read in each epoch, and the last row is filled up with the tokens
that the first one began with.
"""


class Visit(NamedTuple):
    """One row of one epoch."""

    epoch: int
    row: int
    offset: int
    """How far the rows of this epoch are moved along a stream; 0 where rows are documents."""


class Order:
    """Every row once an epoch, each epoch in another order. Only the current epoch's order is kept."""

    def __init__(self, rows: int, *, seed: int, offsets: int | None = None) -> None:
        """`offsets`: how many offsets the rows of a stream can begin at; one of them is drawn for each epoch."""
        if rows < 1:
            raise DataError("there is no row to visit")
        if seed < 0:
            raise DataError(f"seed: {seed} is below 0; give a whole number from 0")
        self.rows, self.seed, self.offsets = rows, seed, offsets
        self._epoch, self._offset = -1, 0
        self._visits: Any = None

    def _of(self, epoch: int) -> tuple[int, Any]:
        if epoch != self._epoch:
            draw = np.random.default_rng((self.seed, epoch))
            offset = 0 if self.offsets is None else int(draw.integers(self.offsets))
            self._epoch, self._offset, self._visits = epoch, offset, draw.permutation(self.rows)
        return self._offset, self._visits

    def visits(self, first: int, count: int) -> list[Visit]:
        """The visits from number `first` on, counted from the beginning of the run."""
        if first < 0:
            raise DataError(f"there is no step before the first; got visit {first}")
        found: list[Visit] = []
        for i in range(first, first + count):
            epoch, place = divmod(i, self.rows)
            offset, visits = self._of(epoch)
            found.append(Visit(epoch, int(visits[place]), offset))
        return found
