"""Full: every token sees every token."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Full(Pattern, kind="full"):
    """Always."""

    formula = "always"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos == q.pos) & (k.pos == k.pos)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return pos * 0, pos * 0 + length - 1

    def grains(self) -> tuple[int, int]:
        return 0, 0
