"""Symmetric window: a token sees `radius` tokens on each side, and itself (Longformer, ModernBERT)."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class SymmetricWindow(Pattern, kind="symmetric_window"):
    """|q - k| <= radius."""

    formula = "|q - k| <= {radius}"
    minimum = {"radius": 0}
    radius: int

    def __post_init__(self) -> None:
        self._flag(causal=self.radius == 0)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos <= self.radius) & (k.pos - q.pos <= self.radius)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return (pos - self.radius).clip(0), (pos + self.radius).clip(None, length - 1)

    def horizon(self) -> int:
        return self.radius + 1

    def ahead(self) -> int:
        return self.radius
