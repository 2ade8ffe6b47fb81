"""Classification of two texts in one row, told apart by token types."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from anyformer.data.dataset import Examples, Piece, Pieces
from anyformer.data.objectives import Framed, Long, Made, Setting, fitting, ids_of, label_of
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class TwoTexts(Framed):
    """Rows of cls, A, sep, B, sep; token types are 0 up to the first sep and 1 after it."""

    topologies = ("encoder", "decoder")
    heads = ("pair", "sequence")
    lanes = {"": ("input_ids", "token_types")}
    classes = "label"
    others: ClassVar[tuple[str, ...]] = ("b",)
    """Columns that stand beside A, each in a row of its own."""
    long: Long = "cut"
    """Cut: of two texts that don't fit together, the longer one loses its end until they do."""

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if spec.embed.token_types == 1:
            yield "embed.token_types", "1 does not tell two texts apart; set 2, or 0 to leave them out"

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        frame = self.checked_frame(setting, texts=2)
        a_N, *rest = (np.asarray(examples.lengths(column)) for column in ("a", *self.others))
        shortest_N, longest_N = np.minimum.reduce([a_N, *rest]), np.maximum.reduce(rest)
        cells_N = np.where(shortest_N == 0, 0, a_N + longest_N + frame)
        i, cells, counts = fitting(cells_N, setting.length, self.long)
        return Pieces(i, np.zeros_like(i), cells, {"": cells}, **counts)

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        rows = tuple(self._row(examples, piece.example, other, setting) for other in self.others)
        return Made(rows, label_of(examples, piece.example))

    def _row(self, examples: Examples, example: int, other: str, setting: Setting) -> dict[str, Any]:
        spec = setting.spec
        a, b = (np.asarray(examples.read(column, example), np.int64) for column in ("a", other))
        first, second = shared(len(a), len(b), setting.length - self.frame(spec, texts=2))
        left = self.framed(a[:first], spec)
        right = np.concatenate([b[:second], ids_of(self.last(spec))])
        cells = {"input_ids": np.concatenate([left, right])}
        if spec.head.kind == "pair" or spec.embed.token_types:
            cells["token_types"] = np.repeat(np.arange(2), [len(left), len(right)])
        return cells


@dataclass(frozen=True, kw_only=True)
class Pair(TwoTexts, kind="pair"):
    """One class for two texts: does B follow from A, do they mean the same."""

    columns = ("a", "b", "label")


def shared(first: int, second: int, room: int) -> tuple[int, int]:
    """How much of two texts is kept: the longer one gives way, until both are equally long."""
    if first + second <= room:
        return first, second
    half = room // 2
    if first <= half:
        return first, room - first
    if second <= room - half:
        return room - second, second
    return half, room - half
