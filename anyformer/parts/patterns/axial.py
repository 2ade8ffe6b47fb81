"""Axial: tokens are cells of a grid, row by row, and a token sees its row, its column or both (axial attention)."""

from dataclasses import dataclass
from typing import Any, Literal

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Axial(Pattern, kind="axial"):
    """Same row (q // columns = k // columns) or same column ((q - k) mod columns = 0) of a grid."""

    counted = ("columns",)
    minimum = {"columns": 1}
    columns: int
    """Tokens in a row of the grid."""
    along: Literal["both", "row", "column"] = "both"
    """What of the grid a token sees."""

    def __post_init__(self) -> None:
        one = self.columns == 1
        self._flag(shift_invariant=one or self.along == "column", causal=one and self.along == "row")

    def allows(self, q: Tokens, k: Tokens) -> Any:
        row = q.pos // self.columns == k.pos // self.columns
        column = (q.pos - k.pos) % self.columns == 0
        return row if self.along == "row" else column if self.along == "column" else row | column

    def equation(self) -> str:
        row, column = f"q // {self.columns} = k // {self.columns}", f"(q - k) mod {self.columns} = 0"
        return row if self.along == "row" else column if self.along == "column" else f"{row} or {column}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        if self.along == "row":
            first = pos // self.columns * self.columns
            return first, (first + self.columns - 1).clip(None, length - 1)
        return (pos * 0, pos * 0 + length - 1) if self.columns == 1 else None

    def horizon(self) -> int | None:
        return self.columns if self.along == "row" else None

    def ahead(self) -> int | None:
        return self.columns - 1 if self.along == "row" else None

    def spelled(self) -> Pattern:
        if self.along != "both":
            return self
        return Axial(columns=self.columns, along="row") | Axial(columns=self.columns, along="column")

    def sizes(self) -> tuple[int, ...]:
        return (2 * self.columns,)

    def shrunk(self, by: float) -> Pattern:
        return Axial(columns=max(2, round(self.columns / by)), along=self.along)
