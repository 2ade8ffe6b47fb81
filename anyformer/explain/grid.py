"""A pattern as a small picture: which of a few keys each of a few queries may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.explain.drawing import ACROSS, DOWN, LOW_LEFT, LOW_RIGHT, TOP_LEFT, TOP_RIGHT
from anyformer.explain.words import number
from anyformer.specs.patterns import Pattern, Tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS = 32
UPPER, LOWER, BOTH = "\u2580", "\u2584", "\u2588"
"""Half of a character, the other half, all of it."""


def grid(pattern: Pattern, tokens: int = TOKENS, documents: tuple[int, ...] = ()) -> NDArray[np.bool_]:
    """(query, key): True where the pattern allows. `documents` are lengths of documents in the row (default: one)."""
    import numpy as np

    lengths = np.array(documents or (tokens,))
    document = np.repeat(np.arange(len(lengths)), lengths)
    begin = np.repeat(np.cumsum(lengths) - lengths, lengths)
    pos, length = np.arange(len(document)) - begin, np.repeat(lengths, lengths)
    q = Tokens(pos[:, None], document[:, None], length[:, None])
    k = Tokens(pos[None, :], document[None, :], length[:, None])
    same = document[:, None] == document[None, :]
    return np.broadcast_to(pattern.allows(q, k), same.shape) & same


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A pattern on few tokens, with its sizes divided if they are larger than the picture."""

    pattern: Pattern
    drawn: Pattern
    divided: float
    """What the sizes were divided by; 1: nothing."""
    cells: NDArray[np.bool_]

    @property
    def caption(self) -> str:
        """What is seen."""
        if self.drawn == self.pattern:
            return str(self.pattern)
        return f"{self.pattern}, drawn as {self.drawn}: sizes / {number(self.divided)}"


def picture(pattern: Pattern, tokens: int = TOKENS) -> Picture:
    """A pattern drawn on so many tokens. Sizes of more than half of them would fill the picture, so they shrink."""
    largest = max(pattern.sizes(), default=1)
    by = 1.0 if largest <= tokens // 2 else largest / (tokens // 4)
    drawn = pattern if by == 1 else pattern.shrunk(by)
    return Picture(pattern=pattern, drawn=drawn, divided=by, cells=grid(drawn, tokens))


def draw_grid(cells: NDArray[np.bool_]) -> list[str]:
    """Lines of text in a frame: a character is one key wide and two queries high, which makes cells square."""
    rows, keys = cells.shape
    lines = [f"{TOP_LEFT}{ACROSS * keys}{TOP_RIGHT}"]
    for i in range(0, rows, 2):
        lower = cells[i + 1] if i + 1 < rows else [False] * keys
        marks = {(True, True): BOTH, (True, False): UPPER, (False, True): LOWER, (False, False): " "}
        row = "".join(marks[bool(a), bool(b)] for a, b in zip(cells[i], lower, strict=True))
        lines.append(f"{DOWN}{row}{DOWN}")
    return [*lines, f"{LOW_LEFT}{ACROSS * keys}{LOW_RIGHT}"]
