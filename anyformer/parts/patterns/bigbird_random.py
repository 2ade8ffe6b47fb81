"""BigBird's random blocks, drawn as its published code draws them while it trains, so that both see the same blocks."""

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.specs.random_choice import among

if TYPE_CHECKING:
    import numpy as np

PAPER = (1024, 3072, 4096)
"""Lengths in tokens for which the published code draws as it did for the paper; all others have the newer plan."""


@dataclass(frozen=True, kw_only=True)
class BigBirdRandom(Pattern, kind="bigbird_random"):
    """k // block is one of `count` blocks that the published code draws for (layer, head, q // block).

    A document of no more than 2 count + 5 blocks is seen whole, as the published model does. That model draws in
    training only: with `drawn="training"` a model in eval mode has `bigbird_eval` instead.
    """

    formula = "k // {block} in {count} blocks, drawn by (layer, head, q // {block})"
    blocks = "block"
    shift_invariant = False
    needs_length = True
    per_head = True
    per_layer = True
    minimum = {"block": 1, "count": 1, "heads": 1, "most": 1}
    block: int
    """Tokens in a block; the last block of a document may be shorter."""
    count: int
    """Blocks that are drawn for each block of queries."""
    heads: int
    """Heads of the layer, which the draws go through in turn."""
    most: int
    """Tokens of the longest document (the published model's number of positions)."""
    drawn: Literal["always", "training"] = "always"
    """In both modes, or in training only, as in the published code, which sees the first block again in eval mode."""
    _numbers: ClassVar[str]

    def __post_init__(self) -> None:
        # A text is always a constant to the compiler, while a number that differs between models may not be one.
        object.__setattr__(self, "_numbers", f"{self.most} {self.block} {self.count} {self.heads}")

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.heads != heads:
            yield "heads", f"{self.heads} are not the {heads} heads of the layer, by which the draws are counted"
        if self.most < context:
            yield "most", f"{self.most} is less than the {context} tokens that a document may have"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        own, other = q.pos // self.block, k.pos // self.block
        blocks = (q.length + self.block - 1) // self.block
        inner = (own > 0) & (own < blocks - 1)
        return (blocks <= 2 * self.count + 5) | (inner & among(other, self._drawn(own, blocks, q)))

    def _drawn(self, own: Any, blocks: Any, q: Tokens) -> list[Any]:
        tokens, rows = blocks * self.block, rows_of(self.most, self.block)
        old = (tokens == PAPER[0]) | (tokens == PAPER[1]) | (tokens == PAPER[2])
        row = own + (rows - 1 - own) * (own >= rows)
        place = (old * rows + row) * self.heads + q.head
        return [_look_up(self._numbers, q.layer, j, place) for j in range(self.count)]

    def evaluated(self) -> Pattern:
        from anyformer.parts.patterns.bigbird_eval import BigBirdEval

        return self if self.drawn == "always" else BigBirdEval(block=self.block, count=self.count)

    def shrunk(self, by: float) -> Pattern:
        block = max(1, round(self.block / by))
        most = self.most // self.block * block
        return BigBirdRandom(block=block, count=self.count, heads=self.heads, most=most, drawn=self.drawn)


def _look_up(numbers: str, layer: int, j: int, place: Any) -> Any:
    """What was drawn, for a number, an array or a tensor of places."""
    if isinstance(place, int):
        return int(draws(numbers, layer, j)[place])
    import numpy as np

    if isinstance(place, (np.ndarray, np.generic)):
        table: Any = draws(numbers, layer, j)
        return table[place]
    from anyformer.kernels.trace_constants import constant_table

    # A range has a definite length, also where the compiler would leave the layer open.
    return constant_table(draws, (numbers, len(range(layer)), j), place.device)[place]


def draws(numbers: str, layer: int, j: int) -> "np.ndarray":
    """The block drawn as number j for every row and head: first those of the newer plan, then those of the paper's."""
    most, block, count, heads = map(int, numbers.split())
    return _all_draws(rows_of(most, block), block, count, heads, layer)[j]


def rows_of(most: int, block: int) -> int:
    """Blocks of the longest document."""
    return max(1, most // block)


@functools.lru_cache(maxsize=256)
def _all_draws(rows: int, block: int, count: int, heads: int, layer: int) -> "np.ndarray":
    import numpy as np

    table = np.zeros((2, rows, heads, count), np.int64)
    dice = np.random.RandomState(layer)
    for row in range(1, rows):
        for head in range(heads):
            table[0, row, head] = _newer(dice, row, count)
    dice = np.random.RandomState(layer)
    for head in range(heads):
        for row in range(1, rows - 1):
            table[1, row, head] = _paper(dice, row, rows, block, count)
    return np.ascontiguousarray(table.reshape(-1, count).T)


def _newer(dice: "np.random.RandomState", row: int, count: int) -> list[int]:
    """The newer plan draws among the first 2 count + 5 blocks, whatever the length."""
    end = 2 * count + 5
    barred = {0, end - 1, row - 1, row, row + 1}
    # The second row must not choose the last block but one, nor the other way round.
    barred |= {end - 2} if row == 1 else {1} if row == end - 2 else set()
    return [block for block in dice.permutation(end).tolist() if block not in barred][:count]


def _paper(dice: "np.random.RandomState", row: int, rows: int, block: int, count: int) -> list[int]:
    """The paper's plan draws among the blocks of the first 1024 tokens, of a table for the longest document."""
    last = PAPER[0] // block - 1 if PAPER[0] > 2 * block else rows - 1
    middle = list(range(1, rows - 1))
    if row <= 2:
        free = middle[row + 1 : last]
    elif row >= rows - 3 or row - 2 > last:
        free = middle[:last]
    elif row + 1 == last:
        free = middle[: row - 2]
    else:
        free = middle[: row - 2] + middle[row + 1 : last]
    drawn = dice.permutation(free).tolist()[:count]
    # The first block is seen anyway: it stands in where there are too few.
    return [int(block) for block in drawn] + [0] * (count - len(drawn))
