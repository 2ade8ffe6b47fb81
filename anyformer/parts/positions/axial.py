"""Axial positions: position p on a grid, row table[p // columns] beside (Reformer) or plus column table[p % columns]."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from anyformer.specs.axes import Dims, Params, ParamSpec, Position, Problem, Tensor


@dataclass(frozen=True, kw_only=True)
class Axial(Position, kind="axial"):
    """Two small learned tables instead of one long one."""

    minimum = {"rows": 1, "columns": 1}
    rows: int = 64
    columns: int = 64
    row_width: int | None = None
    """Width of the row vectors; unset: half. The column vectors fill the rest."""
    join: Literal["beside", "sum"] = "beside"
    """Whether the two vectors stand side by side, or are both as wide as the model and added (Sparse Transformer)."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.join == "sum" and self.row_width is not None:
            yield "row_width", "has no effect: vectors that are added are as wide as the model; leave it out"

    def check(self, dims: Dims) -> Iterator[Problem]:
        if self.join == "beside" and not 0 < self._row_width(dims) < dims.embed_width:
            why = f"{self._row_width(dims)} leaves no room for both tables in a width of {dims.embed_width}"
            yield "row_width", why

    def equation(self) -> str:
        row, column = f"R[p // {self.columns}]", f"C[p % {self.columns}]"
        return f"x_p + {f'[{row}, {column}]' if self.join == 'beside' else f'{row} + {column}'}, R and C learned"

    def limit(self, context: int) -> int:
        return self.rows * self.columns

    def _row_width(self, dims: Dims) -> int:
        return dims.embed_width // 2 if self.row_width is None else self.row_width

    def weights(self, dims: Dims) -> dict[str, ParamSpec]:
        rows = columns = dims.embed_width
        if self.join == "beside":
            rows, columns = self._row_width(dims), dims.embed_width - self._row_width(dims)
        return {
            "rows": ParamSpec(shape=(self.rows, rows), role="position_embedding"),
            "columns": ParamSpec(shape=(self.columns, columns), role="position_embedding"),
        }

    def embed(self, own: Params, pos_BT: Tensor, like: Tensor) -> Tensor:
        import torch

        row, column = own["rows"][pos_BT // self.columns], own["columns"][pos_BT % self.columns]
        return (torch.cat((row, column), -1) if self.join == "beside" else row + column).to(like.dtype)
