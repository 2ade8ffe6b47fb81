"""Batch loader: the batch of any step, as a pure function of examples, objective, seed and step."""

import itertools
from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

import numpy as np

from anyformer.data.dataset import IGNORE, Batch, Examples, Piece, check_values
from anyformer.data.objectives import Made, Objective, Setting, TextObjective, ids_of, surrounded
from anyformer.data.packing import Packed, Packing
from anyformer.data.packing.best_fit import BestFit
from anyformer.errors import DataError, nearest
from anyformer.specs.model import ModelSpec

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

    def visits(self, first: int, count: int) -> list[Visit]:
        """The visits from number `first` on, counted from the beginning of the run."""
        if first < 0:
            raise DataError(f"there is no step before the first; got visit {first}")
        found: list[Visit] = []
        for epoch, place in (divmod(i, self.rows) for i in range(first, first + count)):
            if epoch != self._epoch:
                draw = np.random.default_rng((self.seed, epoch))
                self._offset = 0 if self.offsets is None else int(draw.integers(self.offsets))
                self._epoch, self._visits = epoch, draw.permutation(self.rows)
            found.append(Visit(epoch, int(self._visits[place]), self._offset))
        return found


class Stream:
    """Documents end to end, each with the ids that belong before and after it."""

    def __init__(self, examples: Examples, before: int | None, after: int | None) -> None:
        self.examples, self.before, self.after = examples, before, after
        self._ends_N = np.cumsum(np.asarray(examples.lengths("tokens")) + len(ids_of(before, after)))

    def __len__(self) -> int:
        return int(self._ends_N[-1]) if len(self._ends_N) else 0

    def read(self, start: int, stop: int) -> Any:
        """The ids from one place to another, int64. The end is followed by the beginning: places go once around at most."""
        if stop > len(self):
            return np.concatenate([self._read(start, len(self)), self._read(0, stop - len(self))])
        return self._read(start, stop)

    def _read(self, start: int, stop: int) -> Any:
        parts: list[Any] = []
        i = int(np.searchsorted(self._ends_N, start, side="right"))
        while start < stop:
            end = int(self._ends_N[i])
            begin = int(self._ends_N[i - 1]) if i else 0
            piece = Piece(i, start - begin, min(stop, end) - begin)
            parts.append(surrounded(self.examples, piece, self.before, self.after))
            start, i = max(start, min(stop, end)), i + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)


DRAW = 53
"""Seed of what is measured on: whatever the run's own seed, the rows and what is masked in them are the same."""
MULTIPLE = 8
"""Padded rows are so many cells long, or a multiple of it: few shapes, which hardware likes."""


class BatchLoader:
    """Batches by number. Nothing depends on the batches that were asked for before.

    rows="stream": documents end to end in a circle, cut into rows at another place in each epoch; every token is read in
    each. rows="packed": several documents in a row, which `segments` keeps apart. rows="padded": one document in a row,
    padded on the right.
    """

    def __init__(
        self,
        examples: Examples,
        objective: Objective,
        *,
        spec: ModelSpec,
        length: int,
        batch: int,
        seed: int,
        rows: Literal["stream", "packed", "padded"],
        packing: Packing | None = None,
        restart: bool = True,
        multiple: int = MULTIPLE,
        version: int = VERSION,
    ) -> None:
        """`restart=False` numbers the positions of a packed row through, as if it were one document: usually a mistake.
        Widths of padded rows are rounded up to a `multiple`. `version`: of the rule that the run was begun with.
        """
        self.examples, self.objective, self.spec = examples, objective, spec
        self.length, self.batch_size, self.seed = length, batch, seed
        self.way, self.restart, self.multiple = rows, restart, multiple
        self.packing, self.version = packing or BestFit(), version
        self.repeated = 0
        """Tokens of a stream that an epoch reads twice, to fill its last row."""
        self._setting = Setting(spec=spec, length=length)
        self._check()
        self._stream: Stream | None = None
        self._packed: Packed | None = None
        if isinstance(objective, TextObjective) and rows == "stream":
            self._lay_stream(objective)
        else:
            self._lay_pieces()

    def _check(self) -> None:
        objective, spec, examples = self.objective, self.spec, self.examples
        problems = [f"{path}: {what}" for path, what in objective.problems(spec, examples)]
        if self.way not in objective.ways:
            known = nearest(self.way, objective.ways)
            problems.append(f"rows: {self.way!r} does not go with {objective.kind!r}{known}")
        sizes = {"length": self.length, "batch": self.batch_size, "multiple": self.multiple}
        problems += [f"{name}: {size} is not at least 1" for name, size in sizes.items() if size < 1]
        if not 1 <= self.version <= VERSION:
            problems.append(f"version: {self.version} is not from 1 to {VERSION}; a later anyformer began this run")
        if objective.shifts and self.length == 1:
            problems.append("length: 1 leaves no token to predict from the one before it; it must be at least 2")
        if self.length > spec.context:
            most = f"the {spec.context} tokens that the spec is made for (context)"
            problems.append(f"length: {self.length} is more than {most}")
        if not self.restart and (self.way != "packed" or len(objective.lanes) > 1):
            problems.append("restart: only packed rows of a model with one stack can number positions through")
        problems += [] if len(examples) else ["data: there is no example"]
        if problems:
            raise DataError("\n  ".join(["these data, objective and spec don't go together:", *problems]))

    def _lay_stream(self, objective: TextObjective) -> None:
        stream = Stream(self.examples, *objective.around(self._setting, stream=True))
        room = self._room = objective.checked_max_tokens(self._setting)
        if len(stream) < room:
            few = f"the text to learn from has {len(stream)} tokens, and one row takes {room} (length)"
            raise DataError(f"{few}; give a longer text or a shorter length")
        if self.version == 1:
            # One row is given up for the offset, unless there is only one.
            self.rows = max((len(stream) - room) // room, 1)
            offsets = min(len(stream) - self.rows * room, room - 1) + 1
        else:
            self.rows, offsets = -(-len(stream) // room), len(stream)
            self.repeated = self.rows * room - len(stream)
        self._stream, self._order = stream, Order(self.rows, seed=self.seed, offsets=offsets)
        self._widths = {lane: int(cells) for lane, cells in objective.cells(np.int64(room), self._setting).items()}
        self.left_out = self.shortened = 0
        self.waste = 0.0
        """Fraction of cells that are padding; of padded rows, in the first epoch."""

    def _lay_pieces(self) -> None:
        pieces = self._pieces = self.objective.plan(self.examples, self._setting)
        self.left_out, self.shortened = pieces.left_out, pieces.shortened
        if not len(pieces):
            raise DataError(f"none of {len(self.examples)} examples can be used: they are empty, or too long for a row")
        if self.way == "packed":
            packed = self._packed = self.packing.pack(pieces.widest_P(), self.length)
            self.rows, starts = len(packed), packed.starts[:-1]
            filled = {lane: np.add.reduceat(cells[packed.items_P], starts) for lane, cells in pieces.cells.items()}
            # What the model reads is as wide as was asked for; another lane as wide as its fullest row.
            widths = {lane: min(self.length, self._rounded(int(cells_R.max()))) for lane, cells_R in filled.items()}
            self._widths = widths | {"": self.length}
            used = sum(int(cells_R.sum()) for cells_R in filled.values())
            self.waste = 1 - used / (self.rows * sum(self._widths.values()))
            self._order = Order(self.rows, seed=self.seed)
        else:
            self.rows = len(pieces)
            self._widths = {lane: min(self.length, int(cells.max())) for lane, cells in pieces.cells.items()}
            self._order = Order(self.rows, seed=self.seed)
            rows = np.array([visit.row for visit in self._order.visits(0, self.rows)])
            batches = [
                cells_P[rows[i : i + self.batch_size]]
                for cells_P in pieces.cells.values()
                for i in range(0, self.rows, self.batch_size)
            ]
            total = sum(len(some) * min(self.length, self._rounded(int(some.max()))) for some in batches)
            self.waste = 1 - sum(int(some.sum()) for some in batches) / total

    def _rounded(self, cells: int) -> int:
        return -(-cells // self.multiple) * self.multiple

    def batch(self, step: int) -> Batch:
        """The batch of a step, counted from 0."""
        visits = self._order.visits(step * self.batch_size, self.batch_size)
        return self._collate([self._made(visit) for visit in visits], step)

    def swept(self, few: int = 0) -> int:
        """How many rows `sweep` reads."""
        rows = -(-len(self._stream) // self._room) if self._stream is not None else self.rows
        return min(few * self.batch_size, rows) if few else rows

    def sample(self, count: int) -> list[int]:
        """Row numbers that stand for all: one drawn from each of `count` equal stretches, as packed rows are sorted."""
        rows, draw = self.swept(), np.random.default_rng((DRAW, count))
        bounds = [rows * i // count for i in range(count + 1)]
        return [int(draw.integers(first, last)) for first, last in itertools.pairwise(bounds)]

    def sweep(self, multiple: int = 1, *, few: int = 0) -> Iterator[Batch]:
        """Every row once, in its own order and with the same draws each time, to measure on.

        The last batch has what is left; with `multiple` it is filled up to a multiple of that with rows that hold
        nothing, so that ranks can share it. The last row of a stream ends with it, and is padded. `few`: only so many
        batches, of a `sample` of the rows.
        """
        count = self.swept(few)
        rows = self.sample(count) if count < self.swept() else range(count)
        for step, first in enumerate(range(0, count, self.batch_size)):
            units = [self._made(Visit(0, row, 0), whole=False) for row in rows[first : first + self.batch_size]]
            units += [[] for _ in range(-len(units) % multiple)]
            yield self._collate(units, step)

    def _made(self, visit: Visit, *, whole: bool = True) -> list[Made]:
        """What one row holds; draws depend on seed, epoch and what is read. `whole`: fill up a stream's last row."""
        key = (self.seed, visit.epoch)
        if self._stream is not None and isinstance(self.objective, TextObjective):
            start = (visit.offset + visit.row * self._room) % len(self._stream)
            stop = start + self._room
            ids_N = self._stream.read(start, stop if whole else min(stop, len(self._stream)))
            return [Made((self.objective.to_inputs(ids_N, self._setting, (*key, start)),))]
        items = [visit.row] if self._packed is None else self._packed.row(visit.row).tolist()
        pieces = [self._pieces.piece(i) for i in items]
        make, setting = self.objective.make, self._setting
        return [make(self.examples, piece, setting, (*key, piece.example, piece.start)) for piece in pieces]

    def _collate(self, units: list[list[Made]], step: int) -> Batch:
        objective = self.objective
        inputs: dict[str, Any] = {}
        tokens_U = np.zeros(len(units), np.int64)
        lines = [[made.rows[i] for made in unit] for unit in units for i in range(objective.fan)]
        lanes = {
            lane: [[len(cells[names[0]]) for cells in line] for line in lines]
            for lane, names in objective.lanes.items()
        }
        # Rows of a stream are full, but for the one that ends it where every token is measured on once.
        short = any(0 < sum(line) < self._widths[lane] for lane, counts in lanes.items() for line in counts)
        for lane, counts in lanes.items():
            # Streams and packed rows are always equally wide.
            width, widest = self._widths[lane], max(map(sum, counts))
            if self.way == "padded":
                width = min(max(self.length, widest), self._rounded(max(widest, 1)))
            for name in objective.lanes[lane]:
                like = next((cells[name] for line in lines for cells in line if name in cells), None)
                if like is not None:
                    inputs[name] = self._laid(name, lines, width, like)
            filled = np.array([sum(count) for count in counts])
            tokens_U += filled.reshape(len(units), -1).sum(1)
            if short or self.way != "stream":
                inputs[f"{lane}attention_mask"] = (np.arange(width) < filled[:, None]).astype(np.int64)
            if self.way == "packed":
                inputs[f"{lane}segments"] = _segments(counts, width)
                if not self.restart:
                    inputs["positions"] = np.tile(np.arange(width, dtype=np.int64), (len(lines), 1))
        answers = [unit[0].answer if unit else objective.no_answer(self._setting) for unit in units]
        if answers[0] is not None:
            inputs["labels"] = np.stack(answers)
        check_values(inputs, self.spec, classes=objective.answers(self.spec))
        return Batch(inputs, step, tokens_U, self._counted(inputs["labels"], tokens_U))

    def _laid(self, name: str, lines: list[list[dict[str, Any]]], width: int, like: Any) -> Any:
        """The cells of all rows beside each other, and what stands where there are none."""
        pad = {"input_ids": self.spec.input_pad or 0, "labels": IGNORE}.get(name, 0)
        laid = np.full((len(lines), width, *like.shape[1:]), pad, like.dtype)
        for row, line in zip(laid, lines, strict=True):
            if line:
                cells = np.concatenate([cells[name] for cells in line])
                row[: len(cells)] = cells
        return laid

    def _counted(self, labels: Any, tokens_U: Any) -> Any:
        """Labels of each unit that the loss counts. A real number can't say that it does not count: its row does."""
        if labels.dtype.kind == "f":
            return (tokens_U > 0) * (labels.size // len(tokens_U))
        counted = (labels[:, 1:] if self.objective.shifts else labels) != IGNORE
        return counted.reshape(len(tokens_U), -1).sum(1)

    def every_packing(self) -> tuple[dict[str, Packed], Any]:
        """What each kind of packing makes of the same pieces, and the cells of each piece: to compare them."""
        if self._packed is None:
            raise DataError(f"rows: {self.way!r} rows hold no packed documents; take rows = packed")
        cells_P = self._pieces.widest_P()
        leaves = {kind: leaf for kind in Packing.kinds() if (leaf := Packing.named(kind)) is not None}
        return {kind: leaf().pack(cells_P, self.length) for kind, leaf in leaves.items()}, cells_P


def _segments(counts: list[list[int]], width: int) -> Any:
    """Documents numbered from 1; the cells after the last one are one more, so that ids never decrease."""
    laid = np.empty((len(counts), width), np.int64)
    for row, line in zip(laid, counts, strict=True):
        filled = sum(line)
        row[:filled] = np.repeat(np.arange(1, len(line) + 1), line)
        row[filled:] = len(line) + 1
    return laid
