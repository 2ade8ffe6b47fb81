"""The largest number of each row: one pass over pieces of the row that a device takes side by side."""

from torch import Tensor

PIECES = 512
"""Pieces of a row at most."""
SHORT = 4096
"""Rows up to this length are taken whole."""


def largest(x_BV: Tensor) -> tuple[Tensor, Tensor]:
    """Values and places (B,) of the largest numbers, of equals the first; NaN if there is one."""
    rows, length = x_BV.shape
    pieces = 1 if length <= SHORT else next(n for n in range(PIECES, 0, -1) if length % n == 0)
    if pieces == 1:
        found = x_BV.max(-1)
        return found.values, found.indices
    inside = x_BV.view(rows, pieces, -1).max(-1)
    best = inside.values.max(-1)
    place_B = inside.indices.gather(-1, best.indices[:, None])[:, 0]
    return best.values, place_B + best.indices * (length // pieces)
