"""Dilated window: a token sees every `dilation`-th of those before it, `size` in all with itself (Longformer, causal)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.parts.patterns.band import Near
from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


class Dilated(Near):
    """Every `dilation`-th token of those within `horizon()` and `ahead()`."""

    hints = {"size": "a window holds the token itself", "dilation": "1 is a window without gaps"}
    dilation: int

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.horizon() != 1 and self.dilation >= context > 1:
            yield "dilation", f"{self.dilation} leaves no key but itself in {context} tokens; make it smaller"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return super().allows(q, k) & ((q.pos - k.pos) % self.dilation == 0)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        return super().interval(pos, length) if self.dilation == 1 or self.horizon() == 1 else None

    def _smaller(self, by: float) -> int:
        """The dilation of a pattern that is so many times smaller."""
        return min(self.dilation, max(2, round(self.dilation / by)))


@dataclass(frozen=True, kw_only=True)
class DilatedWindow(Dilated, kind="dilated_window"):
    """0 <= q - k <= (size - 1) dilation, in steps of dilation."""

    causal = True
    minimum = {"size": 1, "dilation": 1}
    size: int
    """Tokens seen, itself included."""
    dilation: int
    """How far they are apart; 1 is a plain window."""

    def equation(self) -> str:
        return f"q - k in {{0, {self.dilation}, ..., {self.horizon() - 1}}}"

    def horizon(self) -> int:
        return (self.size - 1) * self.dilation + 1

    def sizes(self) -> tuple[int, ...]:
        return (self.horizon(),)

    def shrunk(self, by: float) -> Pattern:
        dilation = self._smaller(by)
        return DilatedWindow(size=max(2, round(self.horizon() / by) // dilation + 1), dilation=dilation)
