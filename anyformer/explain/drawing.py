"""A block as boxes, and these as lines of text: the residual is on the left, branches leave it and come back to an add."""

from __future__ import annotations

import textwrap
from dataclasses import dataclass
from itertools import zip_longest

from anyformer.explain.closed_axes import heads_name
from anyformer.explain.groups import Group
from anyformer.explain.words import number
from anyformer.specs.layer import Attention
from anyformer.specs.parameters import slots

# Box-drawing characters: lines, corners, and where lines meet.
ACROSS, DOWN = "\u2500", "\u2502"
TOP_LEFT, TOP_RIGHT, LOW_LEFT, LOW_RIGHT = "\u250c", "\u2510", "\u2514", "\u2518"
TO_RIGHT, FROM_BELOW, FROM_ABOVE = "\u251c", "\u252c", "\u2534"
PLAIN = str.maketrans(
    {
        ACROSS: "-",
        DOWN: "|",
        **dict.fromkeys((TOP_LEFT, TOP_RIGHT, LOW_LEFT, LOW_RIGHT, TO_RIGHT, FROM_BELOW, FROM_ABOVE), "+"),
        "\u2588": "#",
        "\u2580": '"',
        "\u2584": "_",
    }
)
"""For a terminal that knows ASCII only."""

STREAM = 2
"""Column of the residual."""
LEFT = 7
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
    return Branch(
        name=name,
        boxes=(*first, body_lines(group, name), *last),
        body=len(first),
        after=norm if after and serial else "",
    )


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
    extras = [
        text
        for text, has in (
            ("qk-norm", a.qk_norm is not None),
            ("v-norm", a.v_norm is not None),
            (f"softcap {number(a.softcap or 0)}", a.softcap is not None),
            ("temperature", a.temperature is not None),
        )
        if has
    ]
    return (*lines, *([", ".join(extras)] if extras else []))


def draw(made: Sketch, width: int = 80) -> list[str]:
    """The block in lines of at most `width` characters (labels are broken to fit, down to a few letters)."""
    columns = 1 if made.serial else len(made.branches)
    room = max((width - LEFT - GAP * (columns - 1)) // columns - 4, 12)
    lines = [" " * STREAM + "x", _stream()]
    if made.serial:
        inner = _inner([box for branch in made.branches for box in branch.boxes], room)
        for branch in made.branches:
            lines += _fork([_middle(inner)])
            lines += [_stream() + " " * (LEFT - STREAM - 1) + line for line in _column(branch, inner, room)]
            lines += [_add([_middle(inner)]), *_after(branch.after), _stream()]
    else:
        lines += _parallel(made, room)
    return [*lines, " " * STREAM + "y"]


def _parallel(made: Sketch, room: int) -> list[str]:
    inners = [_inner([*branch.boxes, (made.shared,)], room) for branch in made.branches]
    lefts = [LEFT + sum(inner + 4 + GAP for inner in inners[:i]) for i in range(len(inners))]
    middles = [left - LEFT + _middle(inner) for left, inner in zip(lefts, inners, strict=True)]
    lines: list[str] = []
    if made.shared:
        lines += _fork(middles[:1])
        indent = _stream() + " " * (LEFT - STREAM - 1)
        lines += [indent + line for line in _box((made.shared,), inners[0])]
        lines.append(indent + _row(middles, TO_RIGHT, FROM_BELOW, TOP_RIGHT))
    else:
        lines += _fork(middles)
    columns = [_column(branch, inner, room) for branch, inner in zip(made.branches, inners, strict=True)]
    wires = [" " * _middle(inner) + DOWN for inner in inners]
    for row in zip_longest(*columns):
        cells = [wire if cell is None else cell for cell, wire in zip(row, wires, strict=True)]
        placed = "".join(cell.ljust(inner + 4 + GAP) for cell, inner in zip(cells, inners, strict=True))
        lines.append((_stream() + " " * (LEFT - STREAM - 1) + placed).rstrip())
    return [*lines, _add(middles), *_after(made.after), _stream()]


def _stream() -> str:
    return " " * STREAM + DOWN


def _inner(boxes: list[tuple[str, ...]], room: int) -> int:
    """Width inside of boxes that stand in one column."""
    return max(len(line) for box in boxes for line in broken(box, room))


def broken(box: tuple[str, ...], room: int) -> list[str]:
    """The lines of a box, broken to fit."""
    return [piece for line in box for piece in textwrap.wrap(line, room) or [""]]


def _middle(inner: int) -> int:
    return (inner + 4) // 2


def _column(branch: Branch, inner: int, room: int) -> list[str]:
    return [line for box in branch.boxes for line in _box(tuple(broken(box, room)), inner)]


def _box(lines: tuple[str, ...], inner: int) -> list[str]:
    middle = _middle(inner)
    left, right = ACROSS * (middle - 1), ACROSS * (inner + 2 - middle)
    return [
        f"{TOP_LEFT}{left}{FROM_ABOVE}{right}{TOP_RIGHT}",
        *(f"{DOWN} {line.center(inner)} {DOWN}" for line in lines),
        f"{LOW_LEFT}{left}{FROM_BELOW}{right}{LOW_RIGHT}",
    ]


def _row(middles: list[int], first: str, between: str, last: str) -> str:
    """A line from the first of these columns to the last, which it joins."""
    marks = [first, *[between] * (len(middles) - 2), last]
    line, at = "", 0
    for middle, mark in zip(middles, marks, strict=False):
        line += (ACROSS if line else " ") * (middle - at) + mark
        at = middle + 1
    return line


def _fork(middles: list[int]) -> list[str]:
    row = _row(middles, FROM_BELOW, FROM_BELOW, TOP_RIGHT) if len(middles) > 1 else " " * middles[0] + TOP_RIGHT
    return [" " * STREAM + TO_RIGHT + ACROSS * (LEFT - STREAM - 1) + row.replace(" ", ACROSS)]


def _add(middles: list[int]) -> str:
    row = _row(middles, FROM_ABOVE, FROM_ABOVE, LOW_RIGHT) if len(middles) > 1 else " " * middles[0] + LOW_RIGHT
    return " " * (STREAM - 1) + "(+)" + ACROSS * (LEFT - STREAM - 2) + row.replace(" ", ACROSS)


def _after(norm: str) -> list[str]:
    """A norm that stands in the residual itself."""
    if not norm:
        return []
    right = ACROSS * (len(norm) + 2 - STREAM)
    return [
        _stream(),
        f"{TOP_LEFT}{ACROSS * (STREAM - 1)}{FROM_ABOVE}{right}{TOP_RIGHT}",
        f"{DOWN} {norm} {DOWN}",
        f"{LOW_LEFT}{ACROSS * (STREAM - 1)}{FROM_BELOW}{right}{LOW_RIGHT}",
    ]
