"""What BigBird's published code sees in eval mode in place of its random blocks: the first block, several times over."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class BigBirdEval(Pattern, kind="bigbird_eval"):
    """k // block is 0, and such a key counts `count` more times in the softmax, for queries of all but the end blocks.

    The published code draws blocks in training only. In eval mode it puts block 0 in the place of each, beside the
    block 0 that every query sees anyway. A document of no more than 2 count + 5 blocks is seen whole, as the published
    model does.
    """

    formula = "k // {block} = 0, counted {count} more times, if 0 < q // {block} < blocks - 1"
    blocks = "block"
    shift_invariant = False
    needs_length = True
    counted = ("block",)
    minimum = {"block": 1, "count": 0}
    block: int
    """Tokens in a block; the last block of a document may be shorter."""
    count: int
    """Blocks that would be drawn for each block of queries."""

    def __post_init__(self) -> None:
        self._flag(repeats=self.count > 0)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        own, blocks = q.pos // self.block, (q.length + self.block - 1) // self.block
        return (blocks <= 2 * self.count + 5) | ((own > 0) & (own < blocks - 1) & (k.pos < self.block))

    def extra(self, q: Tokens) -> Any:
        own, blocks = q.pos // self.block, (q.length + self.block - 1) // self.block
        return self.count * ((own > 0) & (own < blocks - 1) & (blocks > 2 * self.count + 5))

    def is_repeated(self, k: Tokens) -> Any:
        return k.pos < self.block
