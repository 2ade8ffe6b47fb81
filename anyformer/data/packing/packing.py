"""The axis of packings: items of any length go into rows that hold so many cells."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.errors import DataError
from anyformer.registry import OpenAxis


@dataclass(frozen=True)
class Packed:
    """What each row holds: row r has the items `items_P[starts[r]:starts[r + 1]]`, in this order."""

    items_P: Any
    starts: Any
    """int64, one more than there are rows."""
    capacity: int
    used: int
    """Cells that hold something."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, row: int) -> Any:
        """The items of one row."""
        return self.items_P[self.starts[row] : self.starts[row + 1]]

    @property
    def waste(self) -> float:
        """Fraction of all cells that hold nothing."""
        return 1 - self.used / (len(self) * self.capacity) if len(self) else 0.0


class Packing(OpenAxis, axis="packing", leaves="anyformer.data.packing"):
    """Base of the ways to choose which items share a row. The same lengths always give the same rows."""

    def rows_of(self, lengths_P: Any, capacity: int) -> Any:
        """The row of each item, numbered from 0 without gaps: int64, (items,). Lengths are from 1 to the capacity."""
        raise TypeError(f"{type(self).__name__} defines no rows_of()")

    def pack(self, lengths_P: Any, capacity: int) -> Packed:
        """Rows of `capacity` cells that hold every item once. Items of a row keep the order in which they were given."""
        lengths_P = np.asarray(lengths_P, np.int64)
        if capacity < 1:
            raise DataError(f"rows of {capacity} cells hold nothing; give at least 1")
        if len(lengths_P) and not (lengths_P.min() >= 1 and lengths_P.max() <= capacity):
            wrong = int(np.flatnonzero((lengths_P < 1) | (lengths_P > capacity))[0])
            raise DataError(
                f"item {wrong} has {lengths_P[wrong]} cells, and a row holds 1 to {capacity}; "
                "cut what is longer first, and leave out what is empty"
            )
        row_P = self.rows_of(lengths_P, capacity)
        rows = int(row_P.max()) + 1 if len(row_P) else 0
        starts = np.zeros(rows + 1, np.int64)
        np.cumsum(np.bincount(row_P, minlength=rows), out=starts[1:])
        return Packed(np.argsort(row_P, kind="stable"), starts, capacity, int(lengths_P.sum()))
