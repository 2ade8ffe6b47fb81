"""Prefix: the first `length` tokens see each other both ways (prefix-LM, written `causal | prefix(n)`)."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Prefix(Pattern, kind="prefix"):
    """q < length and k < length."""

    formula = "q < {length} and k < {length}"
    shift_invariant = False
    minimum = {"length": 1}
    hints = {"length": "without a prefix leave it out"}
    length: int
    """Tokens of the prefix."""

    def __post_init__(self) -> None:
        self._flag(causal=self.length == 1)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos < self.length) & (k.pos < self.length)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return pos * 0, min(self.length, length) * (pos < self.length) - 1

    def horizon(self) -> int:
        return self.length

    def ahead(self) -> int:
        return self.length - 1

    def prefix(self) -> int:
        return self.length
