"""Strided: a token sees every `stride`-th one, counted from itself (Sparse Transformer, with `causal &`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Strided(Pattern, kind="strided"):
    """(q - k) mod stride = 0: the second set of Child et al. 2019, section 4.3."""

    formula = "(q - k) mod {stride} = 0"
    minimum = {"stride": 1}
    hints = {"stride": "1 sees every token"}
    stride: int
    """How far the tokens that are seen are apart."""

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.stride >= context > 1:
            yield "stride", f"{self.stride} leaves no key but itself in {context} tokens; make it smaller"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos) % self.stride == 0

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        return (pos * 0, pos * 0 + length - 1) if self.stride == 1 else None
