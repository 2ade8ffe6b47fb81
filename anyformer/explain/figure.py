"""A report as one picture: blocks, patterns, and bars of parameters and FLOPs."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import InputError, naming
from anyformer.explain.costs import Cost
from anyformer.explain.drawing import INDENT, STREAM, Layout, Picture, layout, picture_of, sketch
from anyformer.explain.report import Report
from anyformer.explain.words import some
from anyformer.specs import number_format

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, FAINT, PAPER = "#1f2933", "#8895a1", "#ffffff"
COLOURS = {"norm": "#f3d9a4", "attention": "#a9c8e8", "cross": "#c9b8e4", "ffn": "#b5dcb8", "other": "#e4e7eb"}
BARS = ("#3b6ea5", "#c8803a", "#4f9d69", "#8767b0", "#b5504d", "#7d8894")
SIDE, INSIDE = 13.0, 12.2
"""Inches: width of the figure, and without its margins."""
ACROSS, DOWN, PATTERN = 0.078, 0.17, 2.7
"""Inches: a letter and a line of a drawing, and the side of a pattern."""
BETWEEN = 0.12
"""Room between two heads of a pattern, in widths of one."""
SHOWN = 6
"""Kinds of layers that are drawn."""
LETTERS = 26
"""Letters in a line of a box."""


def save(report: Report, path: str | Path) -> None:
    """Draw a report into a file; its ending says the format."""
    save_figure(make(report), path)


def check_path(path: str | Path) -> None:
    """Refuse a file that could not be written, before hours of measuring and not after them."""
    from matplotlib.figure import Figure

    file = Path(path)
    if file.suffix.removeprefix(".").lower() not in Figure().canvas.get_supported_filetypes():
        raise InputError(f"{str(path)!r} ends in no known picture format; write e.g. {file.stem or 'model'}.png")
    if not file.parent.is_dir():
        raise InputError(f"{path}: there is no directory {str(file.parent)!r}")


def save_figure(figure: Figure, path: str | Path) -> None:
    """Write a figure into a file that is checked first."""
    check_path(path)
    with naming(path):
        figure.savefig(path, dpi=150, facecolor=PAPER)


def make(report: Report) -> Figure:
    """The figure, with no window and no global state. All places are in inches, counted from the top."""
    from matplotlib.figure import Figure

    groups = report.groups[:SHOWN]
    drawings = [(made.where, layout(made, LETTERS)) for made in map(sketch, groups)]
    widest = ACROSS * max(laid.width for _, laid in drawings) + 0.5
    each = max(1, min(len(groups), int(INSIDE / widest)))
    rows = [drawings[i : i + each] for i in range(0, len(groups), each)]
    left = len(report.groups) - len(groups)
    lines = textwrap.wrap(report.summary + (f" Not drawn: {some(left, 'more kind')} of layers." if left else ""), 150)
    bars = 0.6 + 0.34 * max(len(report.by_part), len(report.costs) + 2, 4)
    # A block that has a row to itself has its pattern at its side; several have theirs below.
    pictures = [picture_of(group) for group in groups]
    wide = PATTERN * max(len(drawn.panels) for drawn in pictures)
    aside = each == 1 and widest + wide + 1 <= INSIDE
    blocks = [DOWN * max(laid.height for _, laid in row) for row in rows]
    heights = [max(block, PATTERN + 0.7) if aside else block + PATTERN + 1.1 for block in blocks]
    top = 1.5 + 0.2 * len(lines)
    total = top + sum(height + 1.0 for height in heights) + bars + 0.6
    figure = Figure(figsize=(SIDE, total))
    figure.text(0.03, 1 - 0.35 / total, report.title, fontsize=17, weight="bold", color=INK, va="top")
    figure.text(0.03, 1 - 0.78 / total, "\n".join(lines), fontsize=10, color=INK, va="top", linespacing=1.4)
    left_to_draw = iter(pictures)
    for row, block, height in zip(rows, blocks, heights, strict=True):
        for i, (where, laid) in enumerate(row):
            cell = (INSIDE - wide - 0.6 if aside else INSIDE) / len(row)
            place = (cell, top + 0.3, wide) if aside else (i * cell, top + block + 0.75, cell - 0.3)
            _block(_axes(figure, i * cell, top, cell - 0.3, block), where, laid)
            drawn, axes = next(left_to_draw), _axes(figure, *place, PATTERN)
            _panels(axes, drawn)
            axes.set_xlabel("keys", fontsize=9, color=FAINT)
            axes.set_ylabel("queries", fontsize=9, color=FAINT)
            axes.set_title("\n".join(textwrap.wrap(drawn.caption, 46)), fontsize=9.5, color=INK)
        top += height + 1.0
    half = INSIDE / 2
    _parameters(_axes(figure, 1.3, top, half - 1.6, bars), report)
    _flops(_axes(figure, half + 1.1, top, half - 1.4, bars), report.costs)
    return figure


def _axes(figure: Figure, left: float, top: float, width: float, height: float) -> Axes:
    """Axes at a place inside of the margins."""
    total, left = float(figure.get_figheight()), left + (SIDE - INSIDE) / 2
    return figure.add_axes((left / SIDE, 1 - (top + height) / total, width / SIDE, height / total))


def _text(axes: Axes, x: float, y: float, text: str, **more: Any) -> None:
    axes.text(x, y, text, **({"color": INK, "fontsize": 9.5, "ha": "center", "va": "center"} | more))


def _block(axes: Axes, where: str, laid: Layout) -> None:
    from matplotlib.patches import FancyBboxPatch

    extent = axes.get_window_extent()
    across, down = extent.width / axes.figure.dpi / ACROSS, extent.height / axes.figure.dpi / DOWN
    spare = (across - laid.width) / 2
    axes.set(xlim=(-spare, across - spare), ylim=(down - 0.5, -0.5), xticks=[], yticks=[])
    axes.axis("off")
    title = "\n".join(textwrap.wrap(where, int(across * ACROSS * 10)))
    axes.set_title(title, fontsize=11, color=INK, weight="bold", pad=8)
    for x0, y0, x1, y1 in laid.wires:
        axes.plot([x0, x1], [y0, y1], color=INK, lw=1.6 if x1 == STREAM else 1.2, zorder=1, solid_capstyle="round")
    for box in laid.boxes:
        wide, tall, colour = box.inner + 3, len(box.lines) + 1, COLOURS[box.part]
        style = "round,pad=0,rounding_size=0.5"
        axes.add_patch(FancyBboxPatch((box.x, box.y), wide, tall, boxstyle=style, fc=colour, ec=INK, lw=1.0, zorder=3))
        lines = "\n".join(box.lines)
        _text(axes, box.x + wide / 2, box.y + tall / 2, lines, zorder=4, fontsize=8.6, linespacing=1.25)
    arrow = {"arrowstyle": "-|>", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 8}
    for y in laid.adds:
        axes.annotate("", xy=(STREAM, y), xytext=(INDENT, y), arrowprops=arrow, zorder=2)
        axes.plot([STREAM], [y], marker="o", ms=13, mfc=PAPER, mec=INK, mew=1.2, zorder=3)
        _text(axes, STREAM, y, "+", fontsize=11, zorder=4)
    for y, name in ((0, "x"), (laid.height - 1, "y")):
        _text(axes, STREAM, y, name, style="italic", backgroundcolor=PAPER)


def _panels(axes: Axes, drawn: Picture) -> None:
    """The heads of a picture, side by side."""
    import numpy as np
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Rectangle

    n = len(drawn.cells)
    apart = n * (1 + BETWEEN)
    colours = ListedColormap(["#eef1f4", BARS[0]])
    for i, cells in enumerate(drawn.panels.values()):
        edges = np.arange(n + 1) + i * apart
        axes.pcolormesh(edges, np.arange(n + 1), cells, cmap=colours, vmin=0, vmax=1, edgecolors=PAPER, lw=0.3)
        axes.add_patch(Rectangle((i * apart, 0), n, n, fill=False, ec=FAINT, lw=0.8, clip_on=False))
    names = [name for name in drawn.panels if name]
    axes.set(xlim=(0, apart * len(drawn.panels) - n * BETWEEN), ylim=(n, 0), aspect="equal", yticks=[])
    axes.set_xticks([i * apart + n / 2 for i in range(len(names))], names, fontsize=9, color=INK)
    axes.tick_params(length=0)
    axes.spines[:].set_visible(False)


def save_picture(drawn: Picture, path: str | Path, *, side: float = 1.92, note: str = "") -> None:
    """A pattern alone as a small PNG, with a note inside that says what it shows."""
    from matplotlib.figure import Figure

    count, several = len(drawn.panels), len(drawn.panels) > 1
    width, height = side * (count + BETWEEN * (count - 1)) + 0.1, side + (0.3 if several else 0.1)
    figure = Figure(figsize=(width, height))
    low = height - side - 0.05
    axes = figure.add_axes((0.05 / width, low / height, 1 - 0.1 / width, side / height))
    _panels(axes, drawn)
    figure.savefig(path, dpi=100, facecolor=PAPER, metadata={"Description": note, "Software": None})


def _bare(axes: Axes, title: str) -> None:
    axes.set_title(title, fontsize=11, color=INK, weight="bold", loc="left")
    axes.spines[["top", "right", "bottom"]].set_visible(False)
    axes.spines["left"].set_color(FAINT)
    axes.tick_params(length=0, labelsize=9.5, colors=INK, labelbottom=False)


def _parameters(axes: Axes, report: Report) -> None:
    names, values = list(report.by_part), list(report.by_part.values())
    axes.barh(names, values, color=BARS[0], height=0.66)
    axes.invert_yaxis()
    for i, n in enumerate(values):
        label = f" {number_format.params(n)}  ({number_format.percent(n, report.params)})"
        _text(axes, n, i, label, ha="left", fontsize=9)
    axes.set_xlim(0, max(values, default=1) * 1.45)
    _bare(axes, f"Parameters: {number_format.params(report.params)}")


def _flops(axes: Axes, costs: tuple[Cost, ...]) -> None:
    """Stacked bars, one for each context."""
    parts = list(dict.fromkeys(name for cost in costs for name in cost.by_part))
    labels = [f"{cost.context:,} tokens" for cost in costs]
    starts = [0.0] * len(costs)
    for part, colour in zip(parts, BARS, strict=False):
        values = [cost.by_part.get(part, 0.0) for cost in costs]
        axes.barh(labels, values, left=starts, color=colour, height=0.6, label=part)
        starts = [a + b for a, b in zip(starts, values, strict=True)]
    for i, cost in enumerate(costs):
        _text(axes, starts[i], i, f" {number_format.flops(cost.flops_per_token)}", ha="left", fontsize=9)
    axes.set_xlim(0, max(starts) * 1.25)
    axes.set_ylim(max(len(costs), 3) - 0.4, -0.6)
    _bare(axes, "Forward FLOPs per token")
    axes.legend(loc="upper center", bbox_to_anchor=(0.45, 0.02), ncols=len(parts), frameon=False, fontsize=9)
