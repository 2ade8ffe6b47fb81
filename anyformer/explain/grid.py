"""A pattern as a small picture: which of a few keys each of a few queries may see."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from anyformer.explain.drawing import framed
from anyformer.explain.groups import Group
from anyformer.explain.words import number
from anyformer.specs.patterns import Pattern, Tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

TOKENS = 32
HEADS, PANELS = 8, 2
"""Heads that are looked at where a pattern differs by head, and how many that look different are drawn."""
HALVES = " \u2584\u2580\u2588"
"""A character by its filled halves: none, the lower one, the upper one, both."""

Cells: TypeAlias = "NDArray[np.bool_]"


def grid(
    pattern: Pattern,
    tokens: int = TOKENS,
    documents: tuple[int, ...] = (),
    *,
    head: int = 0,
    layer: int = 0,
    marked: tuple[int, ...] = (),
) -> Cells:
    """(query, key): True where the pattern allows. `documents` are lengths of documents in the row (default: one),
    `marked` are the tokens of `global_mask`.
    """
    import numpy as np

    lengths = np.array(documents or (tokens,))
    document = np.repeat(np.arange(len(lengths)), lengths)
    begin = np.repeat(np.cumsum(lengths) - lengths, lengths)
    pos, length = np.arange(len(document)) - begin, np.repeat(lengths, lengths)
    mark = np.isin(np.arange(len(document)), marked)
    q = Tokens(pos[:, None], document[:, None], length[:, None], head, layer, mark[:, None])
    k = Tokens(pos[None, :], document[None, :], length[None, :], head, layer, mark[None, :])
    same = document[:, None] == document[None, :]
    return np.broadcast_to(pattern.allows(q, k), same.shape) & same


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A pattern on few tokens, with its sizes divided if they are larger than the picture."""

    pattern: Pattern
    drawn: Pattern
    divided: float
    """What the sizes were divided by; 1: nothing."""
    panels: dict[str, Cells]
    """Heads that differ, by name; one without a name if all are alike."""
    marked: tuple[int, ...] = ()
    """Tokens that are drawn as if `global_mask` named them."""

    @property
    def cells(self) -> Cells:
        return next(iter(self.panels.values()))

    @property
    def caption(self) -> str:
        words = [str(self.pattern)]
        if self.drawn != self.pattern:
            words.append(f"drawn as {self.drawn}: sizes / {number(self.divided)}")
        if self.marked:
            words.append(f"tokens {' and '.join(map(str, self.marked))} marked")
        elif self.pattern.reads_marks:
            words.append("no token marked")
        return ", ".join(words)


def picture(
    pattern: Pattern, tokens: int = TOKENS, *, heads: int = HEADS, layer: int = 0, documents: tuple[int, ...] = ()
) -> Picture:
    """A pattern drawn on so many tokens. Sizes of more than half of them would fill the picture, so they shrink."""
    largest = max(pattern.sizes(), default=1)
    by = 1.0 if largest <= tokens // 2 else largest / (tokens // 4)
    drawn = pattern if by == 1 else pattern.shrunk(by)
    # One at the beginning and one inside, as in Longformer's figure; but where the pattern itself names the global tokens,
    # a marked one more would look as if it were of their number.
    marked = (0, tokens * 5 // 8) if pattern.reads_marks and not pattern.reach().first else ()
    panels: dict[str, Cells] = {}
    for head in range(heads if pattern.per_head else 1):
        cells = grid(drawn, tokens, documents, head=head, layer=layer, marked=marked)
        if not any((cells == known).all() for known in panels.values()):
            panels[f"head {head}"] = cells
        if len(panels) == PANELS:
            break
    if len(panels) == 1:
        panels = {"": next(iter(panels.values()))}
    return Picture(pattern=pattern, drawn=drawn, divided=by, panels=panels, marked=marked)


def picture_of(group: Group) -> Picture:
    """The pattern of a group of layers, as the first of them has it."""
    return picture(group.pattern, heads=group.dims.heads, layer=group.indices[0])


def draw_picture(drawn: Picture) -> list[str]:
    """All panels as lines of text, one below the other."""
    lines: list[str] = []
    for name, cells in drawn.panels.items():
        lines += [*([name] if name else []), *draw_grid(cells)]
    return lines


def draw_grid(cells: Cells) -> list[str]:
    """Lines of text in a frame: a character is one key wide and two queries high, which makes cells square."""
    rows = cells.astype(int).tolist()
    below = [*rows[1::2], [0] * len(rows[0])]
    pairs = [zip(*two, strict=True) for two in zip(rows[::2], below, strict=False)]
    return framed(["".join(HALVES[2 * a + b] for a, b in pair) for pair in pairs])
