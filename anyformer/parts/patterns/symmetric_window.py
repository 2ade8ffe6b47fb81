"""Symmetric window: a token sees `radius` tokens on each side, and itself (Longformer, ModernBERT)."""

from dataclasses import dataclass

from anyformer.parts.patterns.band import Near


@dataclass(frozen=True, kw_only=True)
class SymmetricWindow(Near, kind="symmetric_window"):
    """|q - k| <= radius."""

    formula = "|q - k| <= {radius}"
    minimum = {"radius": 0}
    radius: int

    def __post_init__(self) -> None:
        self._flag(causal=self.radius == 0)

    def horizon(self) -> int:
        return self.radius + 1

    def ahead(self) -> int:
        return self.radius
