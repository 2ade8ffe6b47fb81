"""Packed rows as a picture: documents in colours, padding blank."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.files import replace_file

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from anyformer.data.packing.packing import Packed

COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#ccb974", "#64b5cd")
"""Neighbours in a row have different ones; a colour means nothing else."""
ROWS = 24
"""So many rows of each packing are drawn, evenly spread over all of them."""


def save(path: str | Path, packed: Mapping[str, Packed], lengths_P: Any, *, rows: int = ROWS) -> None:
    """Draw some rows of each packing of the same pieces into a PNG file."""
    figure = make(packed, lengths_P, rows=rows)
    replace_file(Path(path), lambda beside: figure.savefig(beside, dpi=130, format="png"))


def make(packed: Mapping[str, Packed], lengths_P: Any, *, rows: int = ROWS) -> Figure:
    """The figure: one panel for each packing, fullest rows on top; rows that one piece fills are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.4 * len(packed), 4.2), layout="constrained")
    FigureCanvasAgg(figure)
    panels: Any = figure.subplots(1, len(packed), squeeze=False, sharey=True)
    for axes, (name, each) in zip(panels[0], packed.items(), strict=True):
        _draw(axes, each, np.asarray(lengths_P), rows)
        axes.set_title(f"{name}: {len(each):,} rows, {each.waste:.2%} blank", fontsize=10)
        axes.set_xlim(0, each.capacity)
        axes.set_xlabel("cell of the row", fontsize=9)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    panels[0][0].set_yticks([])
    panels[0][0].set_ylabel("rows that no single document fills, a sample by how full they are", fontsize=8)
    return figure


def _draw(axes: Any, packed: Packed, lengths_P: Any, rows: int) -> None:
    filled = np.add.reduceat(lengths_P[packed.items_P], packed.starts[:-1])
    shares = (np.diff(packed.starts) > 1) | (filled < packed.capacity)
    order = np.argsort(-filled, kind="stable")
    order = order[shares[order]]
    if not len(order):
        return
    shown = order[np.unique(np.linspace(0, len(order) - 1, min(rows, len(order))).astype(int))]
    for line, row in enumerate(shown):
        place = 0
        for i, length in enumerate(lengths_P[packed.row(int(row))].tolist()):
            axes.barh(-line, length, left=place, height=0.82, color=COLOURS[i % len(COLOURS)], linewidth=0)
            place += length
