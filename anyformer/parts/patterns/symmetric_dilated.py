"""Symmetric dilated window: every `dilation`-th token on both sides, `radius` of them on each (Longformer)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class SymmetricDilated(Pattern, kind="symmetric_dilated"):
    """|q - k| <= radius dilation, in steps of dilation."""

    minimum = {"radius": 0, "dilation": 1}
    hints = {"dilation": "1 is a window without gaps"}
    radius: int
    """Tokens seen on each side."""
    dilation: int
    """How far they are apart; 1 is a plain symmetric window."""

    def __post_init__(self) -> None:
        self._flag(causal=self.radius == 0)

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.radius > 0 and self.dilation >= context > 1:
            yield "dilation", f"{self.dilation} leaves no key but itself in {context} tokens; make it smaller"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        far, back = self.ahead(), q.pos - k.pos
        return (back <= far) & (back >= -far) & (back % self.dilation == 0)

    def equation(self) -> str:
        return f"|q - k| in {{0, {self.dilation}, ..., {self.ahead()}}}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        if self.dilation > 1 and self.radius:
            return None
        return (pos - self.radius).clip(0), (pos + self.radius).clip(None, length - 1)

    def horizon(self) -> int:
        return self.radius * self.dilation + 1

    def ahead(self) -> int:
        return self.radius * self.dilation

    def sizes(self) -> tuple[int, ...]:
        return (self.ahead(),)

    def shrunk(self, by: float) -> Pattern:
        dilation = min(self.dilation, max(2, round(self.dilation / by)))
        return SymmetricDilated(radius=max(1, round(self.ahead() / by) // dilation), dilation=dilation)
