"""Axial positions (Reformer): position p on a grid, row table[p // columns] beside column table[p % columns]."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.specs.axes import Dims, Position, Problem, Weight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Axial(Position, kind="axial"):
    """Two small learned tables instead of one long one; their vectors stand side by side."""

    rows: int = 64
    columns: int = 64
    row_width: int | None = None
    """Width of the row vectors; unset: half. The column vectors fill the rest."""

    def problems(self) -> Iterator[Problem]:
        for name in ("rows", "columns"):
            if getattr(self, name) < 1:
                yield name, f"{getattr(self, name)} is not at least 1"

    def check(self, dims: Dims) -> Iterator[Problem]:
        if not 0 < self._row_width(dims) < dims.embed_width:
            yield (
                "row_width",
                f"{self._row_width(dims)} leaves no room for both tables in a width of {dims.embed_width}",
            )

    def equation(self) -> str:
        return f"x_p + [R[p // {self.columns}], C[p % {self.columns}]], R and C learned"

    def limit(self, context: int) -> int:
        return self.rows * self.columns

    def _row_width(self, dims: Dims) -> int:
        return dims.embed_width // 2 if self.row_width is None else self.row_width

    def weights(self, dims: Dims) -> dict[str, Weight]:
        rows = self._row_width(dims)
        return {
            "rows": Weight(shape=(self.rows, rows), role="position_embedding"),
            "columns": Weight(shape=(self.columns, dims.embed_width - rows), role="position_embedding"),
        }

    def embed(self, own: Mapping[str, Tensor], pos_BT: Tensor, like: Tensor) -> Tensor:
        import torch

        row, column = pos_BT // self.columns, pos_BT % self.columns
        return torch.cat((own["rows"][row], own["columns"][column]), -1).to(like.dtype)
