"""The axes of a spec, as the README shows them: a table, and a picture."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any, get_args

from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.specs import Embed, FeedForward, Head, Init, Mixer, Norm, Pattern, Position
from anyformer.specs.layer import Placement, Topology, Wiring

README = Path(__file__).resolve().parents[1] / "README.md"
BEGIN, END = "<!-- axes: begin (docs/make.py) -->\n", "<!-- axes: end -->\n"
PICTURE = Path(__file__).resolve().parent / "pictures" / "axes.png"
INK, LINE, WASH, ACCENT = "#1f2430", "#8795b0", "#eef2f9", "#2b6cb0"

AXES: tuple[tuple[str, str, Any], ...] = (
    ("stacks", "`topology`", Topology),
    ("positions", "`position.kind`", Position),
    ("beyond the trained length", "`position.scaling.kind` of rope", RopeScaling),
    ("who sees whom", "`attention.pattern`, with `&`, `\\|`", Pattern),
    ("scores to weights", "`attention.mixer.kind`", Mixer),
    ("feed-forward", "`ffn.kind`", FeedForward),
    ("norm", "`norm.kind`", Norm),
    ("where norms stand", "`norm.placement`", Placement),
    ("branches of a block", "`block.wiring`", Wiring),
    ("input", "`embed.kind`", Embed),
    ("answer", "`head.kind`", Head),
    ("initial weights", "`init.kind`", Init),
)
"""Name for people, how it is set, and the axis itself, in the order of the table."""

AT: dict[str, tuple[str, float]] = {
    "answer": ("right", 0.915),
    "branches of a block": ("left", 0.79),
    "feed-forward": ("right", 0.665),
    "where norms stand": ("left", 0.58),
    "norm": ("left", 0.50),
    "scores to weights": ("right", 0.475),
    "who sees whom": ("right", 0.37),
    "positions": ("left", 0.375),
    "beyond the trained length": ("left", 0.245),
    "stacks": ("left", 0.915),
    "initial weights": ("left", 0.105),
    "input": ("right", 0.105),
}
"""On which side of the picture an axis is listed, and at which height."""


def kinds_of(axis: Any) -> list[str]:
    """The choices of a closed axis, or the kinds of an open one that we ship ourselves."""
    if choices := get_args(axis):
        return list(choices)
    return [kind for kind in axis.kinds() if axis.named(kind).__module__.startswith("anyformer.")]


def table() -> str:
    """The README's table."""
    rows = [f"| {name} | {path} | {', '.join(kinds_of(axis))} |" for name, path, axis in AXES]
    return "\n".join(["| axis | set by | kinds |", "|---|---|---|", *rows, ""])


def written() -> str:
    """What the picture says, which it also carries as text: a picture that is out of date can be told."""
    return json.dumps({name: kinds_of(axis) for name, _, axis in AXES})


def draw(path: Path) -> None:
    """A block of a model, and around it what can be chosen where."""
    from matplotlib.figure import Figure
    from matplotlib.patches import FancyBboxPatch

    figure = Figure(figsize=(11, 7), dpi=150, facecolor="white")
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.axis("off")

    def box(middle: float, y: float, width: float, height: float, text: str, face: str = "white") -> None:
        shape = FancyBboxPatch(
            (middle - width / 2, y - height / 2), width, height, boxstyle="round,pad=0.004,rounding_size=0.012",
            facecolor=face, edgecolor=INK, linewidth=1.2, zorder=3,
        )  # fmt: skip
        axes.add_patch(shape)
        axes.text(middle, y, text, ha="center", va="center", fontsize=11, color=INK, zorder=4)

    def wire(*points: tuple[float, float]) -> None:
        axes.plot(*zip(*points, strict=True), color=INK, linewidth=1.3, zorder=2, solid_joinstyle="round")

    def join(y: float) -> None:
        axes.text(STREAM, y, "+", ha="center", va="center", fontsize=13, color=INK, zorder=5)
        axes.plot([STREAM], [y], "o", markersize=14, markerfacecolor="white", markeredgecolor=INK, zorder=4)

    STREAM, BRANCH = 0.44, 0.545
    axes.add_patch(
        FancyBboxPatch(
            (0.395, 0.225),
            0.245,
            0.575,
            boxstyle="round,pad=0.004,rounding_size=0.015",
            facecolor=WASH,
            edgecolor=LINE,
            linewidth=1,
            zorder=0,
        )
    )
    axes.text(0.632, 0.782, "x depth", ha="right", va="center", fontsize=10, color=LINE, style="italic")
    wire((STREAM, 0.105), (STREAM, 0.915))
    for norm, body, add, fork, name in (
        (0.31, 0.405, 0.47, 0.262, "attention"),
        (0.575, 0.665, 0.73, 0.522, "feed-forward"),
    ):
        wire((STREAM, fork), (BRANCH, fork), (BRANCH, add), (STREAM, add))
        box(BRANCH, norm, 0.13, 0.04, "norm")
        box(BRANCH, body, 0.13, 0.055, name)
        join(add)
    box(STREAM, 0.105, 0.16, 0.055, "embedding")
    box(STREAM, 0.855, 0.1, 0.035, "norm")
    box(STREAM, 0.935, 0.16, 0.055, "head")

    ends = {
        "answer": (0.525, 0.935), "branches of a block": (0.43, 0.73), "feed-forward": (0.615, 0.665),
        "where norms stand": (0.475, 0.575), "norm": (0.475, 0.565), "scores to weights": (0.615, 0.415),
        "who sees whom": (0.615, 0.395), "positions": (0.475, 0.405), "beyond the trained length": (0.475, 0.395),
        "stacks": (0.39, 0.8), "initial weights": (0.355, 0.105), "input": (0.525, 0.105),
    }  # fmt: skip
    for name, _, axis in AXES:
        side, y = AT[name]
        x, edge, align = (0.315, 0.322, "right") if side == "left" else (0.685, 0.678, "left")
        lines = textwrap.wrap(", ".join(kinds_of(axis)), 40)
        axes.text(x, y + 0.012, name, ha=align, va="bottom", fontsize=11, color=ACCENT, weight="bold")
        axes.text(x, y + 0.006, "\n".join(lines), ha=align, va="top", fontsize=9.5, color=INK, linespacing=1.35)
        to = ends[name]
        axes.plot([edge, to[0]], [y + 0.022, to[1]], color=LINE, linewidth=0.9, linestyle=(0, (2, 2)), zorder=1)
    figure.savefig(path, metadata={"Description": written()})


def updated(page: str) -> str:
    """The README with its table between the marks."""
    before, rest = page.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}{table()}{END}{after}"


def main() -> None:
    """Write the table, and draw the picture."""
    README.write_text(updated(README.read_text(encoding="utf-8")), encoding="utf-8")
    PICTURE.parent.mkdir(exist_ok=True)
    draw(PICTURE)
