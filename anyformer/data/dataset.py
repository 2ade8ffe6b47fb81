"""Examples in a fixed order, each with named columns of numbers (a document, a pair and its label, a series); and batches.

A batch is what the model is called with in one step, and how it is divided among ranks and micro-batches.
"""

import hashlib
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from types import MappingProxyType
from typing import Any, NamedTuple, Self

import numpy as np

from anyformer.errors import DataError, nearest
from anyformer.specs.embed_head import TokenEmbed
from anyformer.specs.model import ModelSpec

Names = Mapping[str, Sequence[str]]
"""Names of the classes of each column that holds labels or tags."""
IGNORE = -100
"""A label that does not count: the number that the model's loss ignores, here without torch."""


@dataclass(frozen=True)
class Ragged:
    """Lists of numbers of any length, laid end to end: list i is `values_N[bounds[i]:bounds[i + 1]]`."""

    values_N: Any
    bounds: Any
    """int64, one more than there are lists, from 0 to the number of values."""

    def __len__(self) -> int:
        return len(self.bounds) - 1

    @classmethod
    def of(cls, lists: Sequence[Any]) -> Self:
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
    def of(cls, columns: Mapping[str, Sequence[Any]], *, names: Names | None = None, bytes: int = 0) -> Self:
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


@dataclass(frozen=True)
class Batch:
    """Arguments of `model(...)` as arrays. A unit is not divided: a row, or the rows of one example judged together."""

    inputs: Mapping[str, Any]
    step: int
    tokens_U: Any
    labels_U: Any
    """Labels of each unit that count in the loss."""

    @property
    def units(self) -> int:
        return len(self.tokens_U)

    @property
    def tokens(self) -> int:
        return int(self.tokens_U.sum())

    @property
    def labels(self) -> int:
        """Labels that count: what the model answers as `label_count`."""
        return int(self.labels_U.sum())

    @cached_property
    def digest(self) -> str:
        """A hash of names, shapes, dtypes and bytes of all inputs."""
        digest = hashlib.blake2b(digest_size=16)
        for name, array in sorted(self.inputs.items()):
            digest.update(f"{name} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).data)
        return digest.hexdigest()

    def share(self, rank: int, world: int) -> Self:
        """The units of one rank: the batch's own order, cut into `world` equal parts."""
        if not 0 <= rank < world:
            raise DataError(f"there is no rank {rank} among {world}; ranks are 0 to {world - 1}")
        return self._divided(world, f"{world} processes")[rank]

    def split(self, parts: int) -> list[Self]:
        if parts < 1:
            raise DataError(f"a batch can't be split into {parts} parts; give at least 1")
        return self._divided(parts, f"{parts} micro-batches")

    def _divided(self, parts: int, words: str) -> list[Self]:
        if parts == 1:
            return [self]
        if self.units % parts:
            below = self.units - self.units % parts
            fits = f"make it a multiple of {parts}, such as {f'{below} or ' if below else ''}{below + parts}"
            raise DataError(f"a batch of {self.units} can't be divided equally among {words}; {fits}")
        each = self.units // parts

        def part(array: Any, i: int) -> Any:
            rows = len(array) // self.units * each
            return array[i * rows : (i + 1) * rows]

        inputs = [{name: part(array, i) for name, array in self.inputs.items()} for i in range(parts)]
        counts = [(part(self.tokens_U, i), part(self.labels_U, i)) for i in range(parts)]
        return [type(self)(inputs[i], self.step, *counts[i]) for i in range(parts)]


def check_values(inputs: Mapping[str, Any], spec: ModelSpec, *, classes: int | None) -> None:
    """Refuse ids beyond a table, falling segments and non-finite numbers; `classes`: of integer labels, else None."""
    limits = {"input_ids": spec.input_vocab, "decoder_input_ids": spec.vocab}
    if isinstance(spec.embed, TokenEmbed) and spec.embed.token_types:
        limits["token_types"] = spec.embed.token_types
    problems: list[str] = []
    for name, array in inputs.items():
        if name == "labels" and classes is not None:
            problems += _beyond(name, array, (array != IGNORE) & ((array < 0) | (array >= classes)), classes)
        elif name in limits:
            problems += _beyond(name, array, (array < 0) | (array >= limits[name]), limits[name])
        elif name.endswith("segments"):
            back = np.argwhere(array[:, 1:] < array[:, :-1])
            if len(back):
                row, place = back[0].tolist()
                problems.append(
                    f"{name}: {array[row, place]} is followed by {array[row, place + 1]} at row {row}, column "
                    f"{place + 1}; ids of documents never decrease along a row"
                )
        elif array.dtype.kind == "f" and not np.isfinite(array).all():
            place = tuple(np.argwhere(~np.isfinite(array))[0].tolist())
            problems.append(f"{name}: {array[place]} at {place} is not a finite number")
    if problems:
        raise DataError("\n  ".join(["a batch that the model can't read:", *problems]))


def _beyond(name: str, array: Any, wrong: Any, limit: int) -> list[str]:
    if not wrong.any():
        return []
    place = tuple(np.argwhere(wrong)[0].tolist())
    return [
        f"{name}: {array[place]} at {place} is not among the {limit} that the spec has (0 to {limit - 1}); "
        "the tokenizer or the names of classes may belong to another spec"
    ]
