"""Random tokens: a token sees `count` tokens of its document, drawn once for all (the random graph of BigBird's theory)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.specs.random_choice import LARGEST, among, draw


@dataclass(frozen=True, kw_only=True)
class RandomTokens(Pattern, kind="random_tokens"):
    """k is one of `count` tokens drawn from (seed, layer, head, the document's length, q)."""

    shift_invariant = False
    needs_length = True
    per_head = True
    per_layer = True
    counted = ()
    minimum = {"count": 1}
    count: int
    """Tokens that are drawn for each query."""
    seed: int = 0
    """Another seed draws other tokens."""
    past: bool = False
    """Draw among the tokens up to itself, as a decoder needs it; the document's length is not read then."""

    def __post_init__(self) -> None:
        self._flag(needs_length=not self.past, causal=self.past)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not 0 <= self.seed <= LARGEST:
            yield "seed", f"{self.seed} is not between 0 and {LARGEST}"

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.count > context:
            yield "count", f"{self.count} is more than the {context} tokens that a document may have"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return among(k.pos, self.chosen(q))

    def chosen(self, q: Tokens) -> list[Any]:
        tokens = q.pos + 1 if self.past else q.length
        return draw(self.count, tokens, (self.seed, q.layer, q.head, tokens, q.pos))

    def equation(self) -> str:
        among = "tokens 0 to q" if self.past else "all tokens"
        return f"k in {self.count} of {among}, drawn by (seed {self.seed}, layer, head, length)"
