"""Pieces: the parts of examples that rows are made of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np


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
        """One of them."""
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
