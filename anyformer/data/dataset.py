"""Examples in a fixed order, each with named columns of numbers: a document, a pair and its label, a series."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from anyformer.errors import DataError, nearest

Names = Mapping[str, Sequence[str]]
"""Names of the classes of each column that holds labels or tags."""


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers of any length, laid end to end: list i is `values_N[bounds[i]:bounds[i + 1]]`."""

    values_N: Any
    bounds: Any
    """int64, one more than there are lists, from 0 to the number of values."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @classmethod
    def of(cls, lists: Sequence[Any]) -> Ragged:
        """Lists laid end to end: whole numbers as int64, others as float32."""
        arrays = [np.asarray(one) for one in lists]
        whole = all(array.dtype.kind in "iu" or not array.size for array in arrays)
        values_N = np.concatenate([array.astype(np.int64 if whole else np.float32).ravel() for array in arrays])
        return cls(values_N, np.cumsum([0, *(array.size for array in arrays)]))


class Examples:
    """Examples by number. Nothing is read before it is asked for: columns may be memory-mapped and larger than memory."""

    def __init__(
        self, columns: Mapping[str, Sequence[Ragged]], *, names: Names | None = None, fingerprint: str, bytes: int = 0
    ) -> None:
        """Each column is a sequence of pieces (one for each shard), which hold the same examples in every column."""
        sizes = {column: [len(piece) for piece in pieces] for column, pieces in columns.items()}
        if not sizes or any(other != next(iter(sizes.values())) for other in sizes.values()):
            counts = ", ".join(f"{column} {sum(size)}" for column, size in sizes.items())
            raise DataError(f"every column needs as many examples as the others; got {counts or 'no column'}")
        self._pieces = {column: tuple(pieces) for column, pieces in columns.items()}
        self._firsts = list(accumulate(next(iter(sizes.values())), initial=0))
        self.columns = tuple(columns)
        self.names: Mapping[str, tuple[str, ...]] = MappingProxyType({c: tuple(n) for c, n in (names or {}).items()})
        """Names of the classes that the numbers of a column stand for."""
        self.fingerprint = fingerprint
        self.bytes = bytes
        """UTF-8 bytes of all the text, 0 if that is not known."""

    @classmethod
    def of(cls, columns: Mapping[str, Sequence[Any]], *, names: Names | None = None, bytes: int = 0) -> Examples:
        """Examples in memory: `Examples.of({"tokens": [[5, 6, 7], [8]], "label": [[0], [1]]})`."""
        pieces = {column: [Ragged.of(lists)] for column, lists in columns.items()}
        digest = hashlib.sha256(repr(sorted((names or {}).items())).encode())
        for column, (piece,) in sorted(pieces.items()):
            digest.update(f"{column} {piece.values_N.dtype} {len(piece)} ".encode())
            digest.update(piece.bounds.tobytes() + piece.values_N.tobytes())
        return cls(pieces, names=names, fingerprint=digest.hexdigest(), bytes=bytes)

    def __len__(self) -> int:
        return self._firsts[-1]

    def lengths(self, column: str) -> Any:
        """How many numbers each example has in a column: int64, (examples,)."""
        return np.concatenate([np.zeros(0, np.int64), *(np.diff(piece.bounds) for piece in self._column(column))])

    def dtype(self, column: str) -> Any:
        pieces = self._column(column)
        return pieces[0].values_N.dtype if pieces else np.dtype(np.int64)

    def read(self, column: str, i: int, start: int = 0, stop: int | None = None) -> Any:
        """The numbers of example i in a column, or the slice from start to stop of them, one-dimensional."""
        pieces = self._column(column)
        if not 0 <= i < len(self):
            raise DataError(f"there is no example {i}; there are {len(self)}, from 0")
        place = bisect_right(self._firsts, i) - 1
        piece, row = pieces[place], i - self._firsts[place]
        begin, end = int(piece.bounds[row]), int(piece.bounds[row + 1])
        # As in a slice of Python: negative numbers count from the end, and what lies beyond it is not there.
        first, last, _ = slice(start, stop).indices(end - begin)
        return piece.values_N[begin + first : begin + max(first, last)]

    def _column(self, column: str) -> tuple[Ragged, ...]:
        if column not in self._pieces:
            raise DataError(f"there is no column {column!r}{nearest(column, self.columns)}")
        return self._pieces[column]

    def __repr__(self) -> str:
        return f"Examples({len(self)}, columns={self.columns}, bytes={self.bytes}, fingerprint={self.fingerprint[:12]})"


class Piece(NamedTuple):
    """A part of one example."""

    example: int
    start: int
    stop: int


@dataclass(frozen=True)
class Pieces:
    """Parts of examples, and how many cells each takes in a row."""

    example_P: Any
    start_P: Any
    stop_P: Any
    cells: Mapping[str, Any]
    """Cells of each piece by lane: "" is what the model reads, "decoder_" what its decoder is fed."""
    left_out: int = 0
    """Examples that no row holds."""
    shortened: int = 0
    """Examples of which only a part is held."""

    def __len__(self) -> int:
        return len(self.example_P)

    def piece(self, i: int) -> Piece:
        return Piece(int(self.example_P[i]), int(self.start_P[i]), int(self.stop_P[i]))

    def widest_P(self) -> Any:
        """Cells that a piece takes in the lane where it takes most."""
        return np.maximum.reduce(list(self.cells.values()))


def cut(lengths_N: Any, room: int) -> tuple[Any, Any, Any]:
    """Example, start and stop of pieces of at most `room`, which hold everything once and in order."""
    lengths_N = np.asarray(lengths_N, np.int64)
    parts_N = -(-lengths_N // room)
    example_P = np.repeat(np.arange(len(lengths_N)), parts_N)
    first_N = np.cumsum(parts_N) - parts_N
    start_P = (np.arange(len(example_P)) - first_N[example_P]) * room
    return example_P, start_P, np.minimum(start_P + room, lengths_N[example_P])
