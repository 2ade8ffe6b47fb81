"""Pictures in text: a block as boxes on its residual, and a pattern as a grid of which keys each query may see."""

from __future__ import annotations

import itertools
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from anyformer.explain.axes import heads_name
from anyformer.explain.groups import Group
from anyformer.explain.words import number
from anyformer.specs.layer import Attention
from anyformer.specs.parameters import slots
from anyformer.specs.patterns import Pattern, Tokens

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

JOINTS = " \u2575\u2577\u2502\u2574\u2518\u2510\u2524\u2576\u2514\u250c\u251c\u2500\u2534\u252c\u253c"
"""Box-drawing characters by the sides on which they meet others."""
UP, DOWN, LEFT, RIGHT = 1, 2, 4, 8
PLAIN = str.maketrans(JOINTS + "\u2588\u2580\u2584", ' ++|++++++++-+++#"_')
"""For a terminal that knows ASCII only."""
STREAM = 2
"""Column of the residual."""
INDENT = 7
"""Column where boxes begin."""
GAP = 3
"""Between boxes side by side."""


@dataclass(frozen=True, kw_only=True)
class Branch:
    """What stands between the residual and an add. A box is a tuple of lines."""

    name: str
    boxes: tuple[tuple[str, ...], ...]
    body: int
    """Which of the boxes is the body; those before it stand on the input."""
    after: str = ""
    """The norm on the residual after the add."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The boxes of a block."""

    where: str
    serial: bool
    branches: tuple[Branch, ...]
    shared: str = ""
    """In a parallel block: the norm through which all branches read."""
    after: str = ""
    """In a parallel block: the norm after the add."""


def sketch(group: Group) -> Sketch:
    """The block of a group of layers."""
    layer, serial = group.layer, group.layer.block.wiring in ("serial", "reversible")
    names = ("attention", "cross", "ffn") if group.stack.cross else ("attention", "ffn")
    one_norm = layer.block.wiring == "parallel" and slots(layer, "attention")[0]
    norm = layer.norm.leaf.called()
    return Sketch(
        where=group.where() + (" (two streams)" if layer.block.wiring == "reversible" else ""),
        serial=serial,
        branches=tuple(_branch(group, name, serial=serial, shared=one_norm) for name in names),
        shared=norm if one_norm else "",
        after=norm if not serial and slots(layer, "attention")[2] else "",
    )


def _branch(group: Group, name: str, *, serial: bool, shared: bool) -> Branch:
    layer = group.layer
    inner, outer, after = slots(layer, name)
    norm = layer.norm.leaf.called()
    first = [(norm,)] if inner and not shared else []
    last = [(norm,)] if outer else []
    if layer.block.branch_scale != 1:
        last.append((f"times {number(layer.block.branch_scale)}",))
    boxes = (*first, body_lines(group, name), *last)
    return Branch(name=name, boxes=boxes, body=len(first), after=norm if after and serial else "")


def body_lines(group: Group, name: str) -> tuple[str, ...]:
    """The label of a body."""
    layer, dims = group.layer, group.dims
    if name == "ffn":
        return (f"{layer.ffn.called()} {dims.ffn_width}",)
    a = layer.attention
    # What is added to the embeddings is no matter of a block.
    placed = (name == "attention" or a.cross_position) and not layer.position.overrides("embed")
    kind = f"{heads_name(dims)}, {layer.position.called()}" if placed else heads_name(dims)
    lines = [kind, str(group.pattern)] if name == "attention" else [f"cross-attention {kind}", "reads the encoder"]
    if type(a.mixer) is not type(Attention(heads=1).mixer):
        lines.append(a.mixer.called())
    capped = f"softcap {number(a.softcap or 0)}"
    extras = {"qk-norm": a.qk_norm, "v-norm": a.v_norm, capped: a.softcap, "temperature": a.temperature}
    given = ", ".join(name for name, value in extras.items() if value is not None)
    return (*lines, *([given] if given else []))


class Box(NamedTuple):
    """A box on a grid of characters: its upper left corner, room for letters, its lines, and what it stands for."""

    x: int
    y: int
    inner: int
    lines: list[str]
    part: str


class Layout(NamedTuple):
    """Where the boxes of a block are, and the wires (x, y, x, y) that join them."""

    boxes: list[Box]
    wires: list[tuple[int, int, int, int]]
    adds: list[int]
    """Rows in which a branch is added to the residual."""
    width: int
    height: int


def layout(made: Sketch, room: int) -> Layout:
    """Boxes and wires of a block, with at most `room` letters in a line of a box."""
    boxes, wires, adds = list[Box](), list[tuple[int, int, int, int]](), list[int]()
    labels = [[*branch.boxes, (made.shared,)] for branch in made.branches]
    inners = [max(len(line) for box in column for line in broken(box, room)) for column in labels]
    steps = [(made.branches, inners, made.after)]
    if made.serial:
        steps = [((branch,), [max(inners)], branch.after) for branch in made.branches]
    y, begin = 2, 0
    for branches, inners, after in steps:
        lefts = [INDENT + sum(inners[:i]) + (4 + GAP) * i for i in range(len(branches))]
        middles = [left + (inner + 4) // 2 for left, inner in zip(lefts, inners, strict=True)]
        fork = STREAM
        if made.shared:
            boxes.append(Box(INDENT, y + 1, inners[0], [made.shared], "norm"))
            wires += [(STREAM, y, middles[0], y), (middles[0], y, middles[0], y + 1)]
            wires.append((middles[0], y + 3, middles[0], y + 4))
            y, fork = y + 4, middles[0]
        wires.append((fork, y, middles[-1], y))
        ends: list[int] = []
        for branch, left, inner, middle in zip(branches, lefts, inners, middles, strict=True):
            end = y
            for i, box in enumerate(branch.boxes):
                part = branch.name if i == branch.body else "other" if "times" in box[0] else "norm"
                boxes.append(Box(left, end + 1, inner, broken(box, room), part))
                wires.append((middle, end, middle, end + 1))
                end += len(boxes[-1].lines) + 2
            ends.append(end)
        y = max(ends) + 1
        adds.append(y)
        wires += [(middle, end, middle, y) for middle, end in zip(middles, ends, strict=True)]
        wires.append((STREAM, y, middles[-1], y))
        if after:
            # A norm that stands in the residual itself.
            boxes.append(Box(0, y + 2, len(after), [after], "norm"))
            wires.append((STREAM, begin, STREAM, y + 2))
            y, begin = y + 4, y + 4
        y += 2
    wires.append((STREAM, begin, STREAM, y))
    return Layout(boxes, wires, adds, max(box.x + box.inner + 4 for box in boxes), y + 1)


def draw(made: Sketch, width: int = 80) -> list[str]:
    """The block in lines of at most `width` characters (labels are broken to fit, down to a few letters)."""
    columns = 1 if made.serial else len(made.branches)
    laid = layout(made, max((width - INDENT - GAP * (columns - 1)) // columns - 4, 12))
    rows = [[" "] * laid.width for _ in range(laid.height)]
    for box in laid.boxes:
        for i, line in enumerate(framed([f" {line.center(box.inner)} " for line in box.lines])):
            rows[box.y + i][box.x : box.x + len(line)] = line
    for x0, y0, x1, y1 in laid.wires:
        for x, y in itertools.product(range(x0, x1 + 1), range(y0, y1 + 1)):
            sides = UP * (y > y0) | DOWN * (y < y1) | LEFT * (x > x0) | RIGHT * (x < x1)
            rows[y][x] = JOINTS[JOINTS.index(rows[y][x]) | sides]
    for y, mark in {0: " x ", laid.height - 1: " y ", **dict.fromkeys(laid.adds, "(+)")}.items():
        rows[y][STREAM - 1 : STREAM + 2] = mark
    return ["".join(row).rstrip() for row in rows]


def framed(lines: Sequence[str]) -> list[str]:
    """Lines of one length in a frame."""
    across, side = JOINTS[LEFT | RIGHT] * len(lines[0]), JOINTS[UP | DOWN]
    top = f"{JOINTS[DOWN | RIGHT]}{across}{JOINTS[DOWN | LEFT]}"
    return [top, *(f"{side}{line}{side}" for line in lines), f"{JOINTS[UP | RIGHT]}{across}{JOINTS[UP | LEFT]}"]


def broken(box: tuple[str, ...], room: int) -> list[str]:
    """The lines of a box, broken to fit."""
    return [piece for line in box for piece in textwrap.wrap(line, room) or [""]]


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
