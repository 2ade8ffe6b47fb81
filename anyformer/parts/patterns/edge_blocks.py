"""Edge blocks: the first and the last blocks of a document see all and are seen by all (BigBird)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Pattern, Reach, Tokens


@dataclass(frozen=True, kw_only=True)
class EdgeBlocks(Pattern, kind="edge_blocks"):
    """The block of q or of k is one of the first or of the last; `causal & edge_blocks(64, last=0)` are columns."""

    blocks = "block"
    shift_invariant = False
    needs_length = True
    counted = ("block",)
    minimum = {"block": 1, "first": 0, "last": 0}
    block: int
    """Tokens in a block; the last block of a document may be shorter."""
    first: int = 1
    """How many blocks at the beginning."""
    last: int = 1
    """How many blocks at the end."""

    def __post_init__(self) -> None:
        self._flag(needs_length=self.last != 0)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.first == self.last == 0:
            yield "first", "first and last are both 0, so that no block is meant"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        early = self.first * self.block
        allowed = (q.pos < early) | (k.pos < early)
        if self.last:
            late = ((q.length + self.block - 1) // self.block - self.last) * self.block
            allowed = allowed | (q.pos >= late) | (k.pos >= late)
        return allowed

    def equation(self) -> str:
        sides = [f"< {self.first}"] if self.first else []
        sides += [f">= blocks - {self.last}"] if self.last else []
        return " or ".join(f"{side} // {self.block} {test}" for test in sides for side in "qk")

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        if self.first and self.last:
            return None
        if self.last:
            late = max(0, (length + self.block - 1) // self.block - self.last) * self.block
            return late * (pos < late), pos * 0 + length - 1
        few = min(self.first * self.block, length)
        return pos * 0, few - 1 + (length - few) * (pos < few)

    def reach(self) -> Reach:
        return Reach(None, None) if self.last else Reach(1, 0, self.first * self.block)

    def keeps(self) -> CachePolicy:
        # The queries of a last block see everything.
        return CachePolicy() if self.last else CachePolicy(first=self.first * self.block, recent=1)

    def sizes(self) -> tuple[int, ...]:
        return (4 * self.block * max(self.first, self.last),)
