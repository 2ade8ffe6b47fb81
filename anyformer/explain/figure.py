"""A report as one picture: blocks, patterns, and bars of parameters and FLOPs. Only this file imports matplotlib."""

from __future__ import annotations

import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import InputError, naming
from anyformer.explain.costs import Cost
from anyformer.explain.drawing import Branch, Sketch, broken, sketch
from anyformer.explain.grid import Picture, picture
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
UNIT, PATTERN = 0.42, 2.7
"""Inches: one unit of a drawing, and the side of a pattern."""
BETWEEN = 0.12
"""Room between two heads of a pattern, in widths of one."""
SHOWN = 6
"""Kinds of layers that are drawn."""
LETTERS = 26
"""Letters in a line of a box."""
LINE, PAD, STEP = 0.42, 0.34, 0.55
"""Heights of a line of text, of the room around it in a box, and between boxes; in units of a drawing."""


def save(report: Report, path: str | Path) -> None:
    """Draw a report into a file; its ending says the format."""
    figure = make(report)
    known = figure.canvas.get_supported_filetypes()
    ending = Path(path).suffix.removeprefix(".").lower()
    if ending not in known:
        raise InputError(f"{str(path)!r} ends in no known picture format; write e.g. {Path(path).stem or 'model'}.png")
    with naming(path):
        figure.savefig(path, dpi=150, facecolor=PAPER)


def make(report: Report) -> Figure:
    """The figure, with no window and no global state. All places are in inches, counted from the top."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    groups = report.groups[:SHOWN]
    sketches = [sketch(group) for group in groups]
    each = max(1, min(len(groups), int(INSIDE / (UNIT * max(map(_wide, sketches))))))
    rows = [sketches[i : i + each] for i in range(0, len(groups), each)]
    left = len(report.groups) - len(groups)
    lines = textwrap.wrap(report.summary + (f" Not drawn: {some(left, 'more kind')} of layers." if left else ""), 150)
    bars = 0.6 + 0.34 * max(len(report.sizes.by_part), len(report.costs) + 2, 4)
    # A block that has a row to itself has its pattern at its side; several have theirs below.
    pictures = [picture(group.pattern, heads=group.dims.heads, layer=group.indices[0]) for group in groups]
    wide = PATTERN * max(len(drawn.panels) for drawn in pictures)
    aside = each == 1 and max(map(_wide, sketches)) * UNIT + wide + 1 <= INSIDE
    blocks = [UNIT * max(map(_height, row)) for row in rows]
    heights = [max(block, PATTERN + 0.7) if aside else block + PATTERN + 1.1 for block in blocks]
    top = 1.5 + 0.2 * len(lines)
    total = top + sum(height + 1.0 for height in heights) + bars + 0.6
    figure = Figure(figsize=(SIDE, total))
    FigureCanvasAgg(figure)
    figure.text(0.03, 1 - 0.35 / total, report.title, fontsize=17, weight="bold", color=INK, va="top")
    figure.text(0.03, 1 - 0.78 / total, "\n".join(lines), fontsize=10, color=INK, va="top", linespacing=1.4)
    left_to_draw = iter(pictures)
    for row, block, height in zip(rows, blocks, heights, strict=True):
        for i, made in enumerate(row):
            cell = (INSIDE - wide - 0.6 if aside else INSIDE) / len(row)
            place = (cell, top + 0.3, wide) if aside else (i * cell, top + block + 0.75, cell - 0.3)
            _block(_axes(figure, i * cell, top, cell - 0.3, block), made)
            _pattern(_axes(figure, *place, PATTERN), next(left_to_draw))
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


def _box_height(box: tuple[str, ...]) -> float:
    return LINE * len(broken(box, LETTERS)) + PAD


def _branch_height(branch: Branch) -> float:
    return sum(_box_height(box) + STEP for box in branch.boxes) + STEP


def _height(made: Sketch) -> float:
    """How tall a block is drawn."""
    norm = _box_height(("x",)) + STEP
    if made.serial:
        return 1.4 + sum(_branch_height(b) + STEP + (norm if b.after else 0) for b in made.branches)
    shared, after = (norm if name else 0 for name in (made.shared, made.after))
    return 1.4 + STEP + shared + max(map(_branch_height, made.branches)) + after


STREAM, FIRST, WIDTH = 0.0, 3.6, 4.6
"""Column of the residual, middle of the first column of boxes, and how far columns are apart."""


def _wide(made: Sketch) -> float:
    """How wide a block is drawn."""
    return FIRST + WIDTH * ((1 if made.serial else len(made.branches)) - 0.5) + 1.2


def _block(axes: Axes, made: Sketch) -> None:
    box = axes.get_window_extent()
    across, down = (side / axes.figure.dpi / UNIT for side in (box.width, box.height))
    spare = (across - _wide(made)) / 2
    axes.set(xlim=(-0.8 - spare, across - 0.8 - spare), ylim=(down, 0))
    axes.axis("off")
    axes.set(xticks=[], yticks=[])
    title = "\n".join(textwrap.wrap(made.where, int(across * UNIT * 10)))
    axes.set_title(title, fontsize=11, color=INK, weight="bold", pad=8)
    _text(axes, STREAM, 0.2, "x", style="italic")
    y = _serial(axes, made) if made.serial else _parallel(axes, made)
    axes.plot([STREAM, STREAM], [0.45, y + 0.25], color=INK, lw=1.6, zorder=1)
    _text(axes, STREAM, y + 0.5, "y", style="italic")


def _serial(axes: Axes, made: Sketch) -> float:
    y = 0.6
    for branch in made.branches:
        _wire(axes, [(STREAM, y), (FIRST, y)])
        end = _column(axes, branch, FIRST, y)
        _wire(axes, [(FIRST, end), (STREAM, end)], arrow=True)
        _add(axes, end)
        y = _norm_on_stream(axes, branch.after, end) + STEP
    return y - 0.2


def _parallel(axes: Axes, made: Sketch) -> float:
    y, middles = 0.6, [FIRST + WIDTH * i for i in range(len(made.branches))]
    _wire(axes, [(STREAM, y), (FIRST if made.shared else middles[-1], y)])
    if made.shared:
        tall = _box_height((made.shared,))
        _wire(axes, [(FIRST, y), (FIRST, y + STEP)])
        _box(axes, FIRST, y + STEP, (made.shared,), COLOURS["norm"])
        y += 2 * STEP + tall
        _wire(axes, [(FIRST, y - STEP), (FIRST, y)])
        _wire(axes, [(FIRST, y), (middles[-1], y)])
    end = y + max(map(_branch_height, made.branches))
    for branch, middle in zip(made.branches, middles, strict=True):
        stop = _column(axes, branch, middle, y)
        _wire(axes, [(middle, stop), (middle, end)])
    _wire(axes, [(middles[-1], end), (STREAM, end)], arrow=True)
    _add(axes, end)
    return _norm_on_stream(axes, made.after, end) + 0.2


def _column(axes: Axes, branch: Branch, middle: float, y: float) -> float:
    """The boxes of a branch from y down; where it ends."""
    for i, box in enumerate(branch.boxes):
        tall = _box_height(box)
        colour = COLOURS[branch.name] if i == branch.body else COLOURS["other" if "times" in box[0] else "norm"]
        _wire(axes, [(middle, y), (middle, y + STEP)])
        _box(axes, middle, y + STEP, box, colour)
        y += STEP + tall
    _wire(axes, [(middle, y), (middle, y + STEP)])
    return y + STEP


def _box(axes: Axes, middle: float, top: float, box: tuple[str, ...], colour: str) -> None:
    from matplotlib.patches import FancyBboxPatch

    lines, tall = broken(box, LETTERS), _box_height(box)
    wide = WIDTH - 0.5
    style = "round,pad=0,rounding_size=0.12"
    patch = FancyBboxPatch((middle - wide / 2, top), wide, tall, boxstyle=style, fc=colour, ec=INK, lw=1.0, zorder=3)
    axes.add_patch(patch)
    _text(axes, middle, top + tall / 2, "\n".join(lines), zorder=4, fontsize=8.6, linespacing=1.25)


def _norm_on_stream(axes: Axes, norm: str, y: float) -> float:
    if not norm:
        return y
    _box(axes, STREAM + 1.35, y + STEP, (norm,), COLOURS["norm"])
    return y + STEP + _box_height((norm,))


def _wire(axes: Axes, points: list[tuple[float, float]], *, arrow: bool = False) -> None:
    if arrow:
        style = {"arrowstyle": "-|>", "color": INK, "lw": 1.2, "shrinkA": 0, "shrinkB": 8}
        axes.annotate("", xy=points[-1], xytext=points[0], arrowprops=style, zorder=2)
    else:
        axes.plot(*zip(*points, strict=True), color=INK, lw=1.2, zorder=1, solid_capstyle="round")


def _add(axes: Axes, y: float) -> None:
    axes.plot([STREAM], [y], marker="o", ms=13, mfc=PAPER, mec=INK, mew=1.2, zorder=3)
    _text(axes, STREAM, y, "+", fontsize=11, zorder=4)


def _pattern(axes: Axes, drawn: Picture) -> None:
    _panels(axes, drawn)
    axes.set_xlabel("keys", fontsize=9, color=FAINT)
    axes.set_ylabel("queries", fontsize=9, color=FAINT)
    axes.set_title("\n".join(textwrap.wrap(drawn.caption, 46)), fontsize=9.5, color=INK)


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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    count, several = len(drawn.panels), len(drawn.panels) > 1
    width, height = side * (count + BETWEEN * (count - 1)) + 0.1, side + (0.3 if several else 0.1)
    figure = Figure(figsize=(width, height))
    FigureCanvasAgg(figure)
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
    sizes = report.sizes
    names, values = list(sizes.by_part), list(sizes.by_part.values())
    axes.barh(names, values, color=BARS[0], height=0.66)
    axes.invert_yaxis()
    for i, n in enumerate(values):
        label = f" {number_format.params(n)}  ({number_format.percent(n, sizes.params)})"
        _text(axes, n, i, label, ha="left", fontsize=9)
    axes.set_xlim(0, max(values, default=1) * 1.45)
    _bare(axes, f"Parameters: {number_format.params(sizes.params)}")


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
