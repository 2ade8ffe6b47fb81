"""Random blocks: a block of queries sees `count` blocks of keys of its document, drawn once for all (BigBird)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.specs.random_choice import LARGEST, among, draw


class Drawn(Pattern):
    """A query sees `count` blocks of keys, drawn from (seed, layer, head, the number of blocks, its own block)."""

    shift_invariant = False
    needs_length = True
    per_head = True
    per_layer = True
    words: ClassVar[str]
    """What is drawn, in the plural."""
    block: int
    count: int
    seed: int
    past: bool

    def __post_init__(self) -> None:
        self._flag(needs_length=not self.past, causal=self.past and self.block == 1)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if not 0 <= self.seed <= LARGEST:
            yield "seed", f"{self.seed} is not between 0 and {LARGEST}"

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        room = -(-context // self.block)
        if self.count > room:
            yield "count", f"{self.count} is more than the {room} {self.words} that a document may have"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return among(k.pos // self.block, self.chosen(q))

    def chosen(self, q: Tokens) -> list[Any]:
        own = q.pos // self.block
        blocks = own + 1 if self.past else (q.length + self.block - 1) // self.block
        return draw(self.count, blocks, (self.seed, q.layer, q.head, blocks, own))

    def ahead(self) -> int | None:
        return self.block - 1 if self.past else None


@dataclass(frozen=True, kw_only=True)
class RandomBlocks(Drawn, kind="random_blocks"):
    """k // block is one of `count` blocks drawn from (seed, layer, head, the number of blocks, q // block)."""

    words, blocks = "blocks", "block"
    counted = ("block",)
    minimum = {"block": 1, "count": 1}
    block: int
    """Tokens in a block; the last block of a document may be shorter."""
    count: int
    """Blocks that are drawn for each block of queries."""
    seed: int = 0
    """Another seed draws other blocks."""
    past: bool = False
    """Draw among the blocks up to the query's own, as a decoder needs it; the document's length is not read then."""

    def equation(self) -> str:
        among = f"blocks 0 to q // {self.block}" if self.past else "all blocks"
        return f"k // {self.block} in {self.count} of {among}, drawn by (seed {self.seed}, layer, head, blocks)"
