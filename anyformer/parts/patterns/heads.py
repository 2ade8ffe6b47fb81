"""Heads: true in some heads only, so that heads of a layer differ: `heads(0, 2) & window(64) | heads(2, 8) & causal`."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Heads(Pattern, kind="heads"):
    """first <= head < last."""

    formula = "{first} <= head < {last}"
    per_head = True
    counted = ()
    minimum = {"first": 0}
    first: int
    """The first head."""
    last: int
    """The head after the last one."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.last <= self.first:
            yield "last", f"{self.last} is not above first={self.first}; heads {self.first} to {self.last - 1} are none"

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.last > heads:
            yield "last", f"{self.last} is past the layer's heads, which are 0 to {heads - 1}"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        # Positions are named so that the answer has the shape of the pairs.
        return (q.head >= self.first) & (q.head < self.last) & (q.pos == q.pos) & (k.pos == k.pos)

    def in_head(self, head: int) -> bool:
        return self.first <= head < self.last

    def grains(self) -> tuple[int, int]:
        return 0, 0
