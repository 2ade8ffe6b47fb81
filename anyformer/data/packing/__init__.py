"""Packing: which documents share a row."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from anyformer.errors import DataError
from anyformer.files import replace_file
from anyformer.registry import OpenAxis

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@dataclass(frozen=True)
class Packed:
    """What each row holds: row r has the items `items_P[starts[r]:starts[r + 1]]`, in this order."""

    items_P: Any
    starts: Any
    """int64, one more than there are rows."""
    capacity: int
    used: int
    """Cells that hold something."""

    def __len__(self) -> int:
        return len(self.starts) - 1

    def row(self, row: int) -> Any:
        return self.items_P[self.starts[row] : self.starts[row + 1]]

    @property
    def waste(self) -> float:
        """Fraction of all cells that hold nothing."""
        return 1 - self.used / (len(self) * self.capacity) if len(self) else 0.0


class Packing(OpenAxis, axis="packing", leaves="anyformer.data.packing"):
    """Base of the ways to choose which items share a row. The same lengths always give the same rows."""

    def rows_of(self, lengths_P: Any, capacity: int) -> Any:
        """The row of each item, numbered from 0 without gaps: int64, (items,). Lengths are from 1 to the capacity."""
        raise TypeError(f"{type(self).__name__} defines no rows_of()")

    def pack(self, lengths_P: Any, capacity: int) -> Packed:
        """Rows of `capacity` cells that hold every item once. Items of a row keep the order in which they were given."""
        lengths_P = np.asarray(lengths_P, np.int64)
        if capacity < 1:
            raise DataError(f"rows of {capacity} cells hold nothing; give at least 1")
        if len(lengths_P) and not (lengths_P.min() >= 1 and lengths_P.max() <= capacity):
            wrong = int(np.flatnonzero((lengths_P < 1) | (lengths_P > capacity))[0])
            what = f"item {wrong} has {lengths_P[wrong]} cells, and a row holds 1 to {capacity}"
            raise DataError(f"{what}; cut what is longer first, and leave out what is empty")
        row_P = self.rows_of(lengths_P, capacity)
        starts = np.concatenate([np.zeros(1, np.int64), np.cumsum(np.bincount(row_P))])
        return Packed(np.argsort(row_P, kind="stable"), starts, capacity, int(lengths_P.sum()))


COLOURS = ("#4c72b0", "#dd8452", "#55a868", "#c44e52", "#8172b3", "#937860", "#da8bc3", "#ccb974", "#64b5cd")
"""Neighbours in a row have different ones; a colour means nothing else."""
ROWS = 24
"""So many rows of each packing are drawn, evenly spread over all of them."""


def save_figure(path: str | Path, packed: Mapping[str, Packed], lengths_P: Any, *, rows: int = ROWS) -> None:
    """Draw some rows of each packing of the same pieces into a PNG file."""
    figure = draw(packed, lengths_P, rows=rows)
    replace_file(Path(path), lambda beside: figure.savefig(beside, dpi=130, format="png"))


def draw(packed: Mapping[str, Packed], lengths_P: Any, *, rows: int = ROWS) -> "Figure":
    """The figure: one panel for each packing, fullest rows on top; rows that one piece fills are left out."""
    from matplotlib.figure import Figure

    lengths_P = np.asarray(lengths_P)
    figure = Figure(figsize=(3.4 * len(packed), 4.2), layout="constrained")
    panels: Any = figure.subplots(1, len(packed), squeeze=False, sharey=True)
    for axes, (name, each) in zip(panels[0], packed.items(), strict=True):
        filled = np.add.reduceat(lengths_P[each.items_P], each.starts[:-1])
        order = np.argsort(-filled, kind="stable")
        order = order[((np.diff(each.starts) > 1) | (filled < each.capacity))[order]]
        shown = np.unique(np.linspace(0, len(order) - 1, min(rows, len(order))).astype(int))
        for line, row in enumerate(order[shown].tolist()):
            place = 0
            for i, length in enumerate(lengths_P[each.row(row)].tolist()):
                axes.barh(-line, length, left=place, height=0.82, color=COLOURS[i % len(COLOURS)], linewidth=0)
                place += length
        axes.set_title(f"{name}: {len(each):,} rows, {each.waste:.2%} blank", fontsize=10)
        axes.set_xlim(0, each.capacity)
        axes.set_xlabel("cell of the row", fontsize=9)
        axes.tick_params(labelsize=8)
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_yticks([])
    panels[0][0].set_ylabel("rows that no single document fills, a sample by how full they are", fontsize=8)
    return figure
