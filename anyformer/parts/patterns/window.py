"""Sliding window: a token sees the last `size` tokens, itself included (Mistral)."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Window(Pattern, kind="window"):
    """0 <= q - k < size."""

    formula = "0 <= q - k < {size}"
    causal = True
    minimum = {"size": 1}
    hints = {"size": "a window holds the token itself"}
    size: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (k.pos <= q.pos) & (q.pos - k.pos < self.size)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return (pos - self.size + 1).clip(0), pos

    def horizon(self) -> int:
        return self.size
