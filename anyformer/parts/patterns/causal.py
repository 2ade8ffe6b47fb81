"""Causal: a token sees itself and what came before."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Causal(Pattern, kind="causal"):
    """k <= q."""

    formula = "k <= q"
    causal = True

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return k.pos <= q.pos

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return pos * 0, pos
