"""Symmetric dilated window: every `dilation`-th token on both sides, `radius` of them on each (Longformer)."""

from dataclasses import dataclass

from anyformer.parts.patterns.dilated_window import Dilated
from anyformer.specs.patterns import Pattern


@dataclass(frozen=True, kw_only=True)
class SymmetricDilated(Dilated, kind="symmetric_dilated"):
    """|q - k| <= radius dilation, in steps of dilation."""

    minimum = {"radius": 0, "dilation": 1}
    radius: int
    """Tokens seen on each side."""
    dilation: int
    """How far they are apart; 1 is a plain symmetric window."""

    def __post_init__(self) -> None:
        self._flag(causal=self.radius == 0)

    def equation(self) -> str:
        return f"|q - k| in {{0, {self.dilation}, ..., {self.ahead()}}}"

    def horizon(self) -> int:
        return self.radius * self.dilation + 1

    def ahead(self) -> int:
        return self.radius * self.dilation

    def sizes(self) -> tuple[int, ...]:
        return (self.ahead(),)

    def shrunk(self, by: float) -> Pattern:
        dilation = self._smaller(by)
        return SymmetricDilated(radius=max(1, round(self.ahead() / by) // dilation), dilation=dilation)
