"""Measurements of attention as a picture: time and peak bytes over the length, one line for each kernel."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from anyformer.errors import InputError, naming

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from anyformer.evals.attention import Row, Table

INK, FAINT, PAPER = "#1f2933", "#c9d0d6", "#ffffff"
COLOURS = ("#3b6ea5", "#c8803a", "#4f9d69", "#8767b0", "#b5504d", "#7d8894")
MARKS = "osD^vP"


def check_path(path: str | Path) -> None:
    """Refuse a file that could not be written, before hours of measuring and not after them."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    file = Path(path)
    known = sorted(FigureCanvasAgg.get_supported_filetypes())
    if file.suffix.removeprefix(".").lower() not in known:
        raise InputError(f"{str(path)!r} ends in no picture format; write e.g. {file.stem or 'attention'}.png")
    if not file.parent.is_dir():
        raise InputError(f"{path}: there is no directory {str(file.parent)!r}")


def save(table: Table, path: str | Path) -> None:
    """Draw a table into a file; its ending says the format."""
    check_path(path)
    with naming(path):
        make(table).savefig(path, dpi=150, facecolor=PAPER)


def make(table: Table) -> Figure:
    """The figure: a column for each number of kv heads, time above bytes."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    setting = table.setting
    attentions, names = setting.attentions(), list(dict.fromkeys(row.way for row in table.rows))
    figure = Figure(figsize=(1.2 + 3.6 * len(attentions), 7.2), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(2, len(attentions), sharex=True, sharey="row", squeeze=False)
    for column, (attention, kv_heads) in enumerate(attentions.items()):
        rows = [row for row in table.rows if row.attention == attention and row.seconds is not None]
        _panel(axes[0][column], rows, names, setting.lengths, seconds=True)
        _panel(axes[1][column], rows, names, setting.lengths, seconds=False)
        axes[0][column].set_title(f"{attention}: {setting.heads} heads, {kv_heads} of keys", fontsize=11, color=INK)
        axes[1][column].set_xlabel("tokens", color=INK)
    axes[0][0].set_ylabel("time", color=INK)
    axes[1][0].set_ylabel("peak bytes", color=INK)
    handles, labels = axes[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(len(names), 4), frameon=False)
    what = "forward and backward" if setting.backward else "forward"
    dtype = str(setting.dtype).removeprefix("torch.")
    figure.suptitle(f"Attention step, {what}, {dtype}, head dimension {setting.head_dim}, {table.machine}", color=INK)
    return figure


def _panel(axes: Axes, rows: list[Row], names: list[str], lengths: tuple[int, ...], *, seconds: bool) -> None:
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, NullLocator

    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    for i, name in enumerate(names):
        found = [(row.length, row.seconds if seconds else row.peak) for row in rows if row.way == name]
        axes.plot(
            [length for length, _ in found], [value or float("nan") for _, value in found], label=name,
            color=COLOURS[i % len(COLOURS)], marker=MARKS[i % len(MARKS)], markersize=5, linewidth=1.6,
        )  # fmt: skip
    axes.set_xticks(list(lengths), [f"{length:,}" for length in lengths], fontsize=9, color=INK)
    axes.xaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=12))
    axes.yaxis.set_major_formatter(FuncFormatter(shown_seconds if seconds else _bytes))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.tick_params(labelsize=9, labelcolor=INK)
    axes.grid(which="major", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def shown_seconds(value: float, _: int | None = None) -> str:
    """10 ms."""
    for unit, name in ((1.0, "s"), (1e-3, "ms"), (1e-6, "us")):
        if value >= unit * 0.999:
            return f"{value / unit:g} {name}"
    return f"{value / 1e-9:g} ns"


def _bytes(value: float, _: int | None = None) -> str:
    """100 MB."""
    for unit, name in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= unit * 0.999:
            return f"{value / unit:g} {name}"
    return f"{value:g} B"
