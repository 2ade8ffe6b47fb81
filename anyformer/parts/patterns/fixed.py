"""Fixed: a token sees its own block, and the last `columns` tokens of every block (Sparse Transformer, with `causal &`)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.parts.patterns.chunked import Chunked
from anyformer.specs.axes import Problem
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Columns(Pattern):
    """k mod block >= block - columns: the tokens that sum a block up."""

    shift_invariant = False
    block: int
    columns: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (k.pos % self.block >= self.block - self.columns) & (q.pos == q.pos)

    def grains(self) -> tuple[int, int]:
        return 0, 1


@dataclass(frozen=True, kw_only=True)
class Fixed(Pattern, kind="fixed"):
    """q // block = k // block or k mod block >= block - columns: both sets of Child et al. 2019, section 4.3.

    The paper's sets hold earlier tokens only, so its models write `causal & fixed(128, 8)`.
    """

    shift_invariant = False
    minimum = {"block": 1}
    block: int
    """Tokens in a block."""
    columns: int
    """How many at the end of every block are seen by all."""

    def __post_init__(self) -> None:
        # Columns that fill their block are all tokens.
        self._flag(shift_invariant=self.columns == self.block)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.columns < 1:
            yield "columns", f"{self.columns} is not at least 1; without columns write chunked({self.block})"
        elif self.columns > self.block > 0:
            yield "columns", f"{self.columns} is more than a block of {self.block} has"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos // self.block == k.pos // self.block) | (k.pos % self.block >= self.block - self.columns)

    def equation(self) -> str:
        return f"q // {self.block} = k // {self.block} or k mod {self.block} >= {self.block - self.columns}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        return (pos * 0, pos * 0 + length - 1) if self.columns == self.block else None

    def keeps(self) -> CachePolicy:
        return CachePolicy(recent=self.block, block=self.block, columns=self.columns)

    def spelled(self) -> Pattern:
        return Chunked(size=self.block) | Columns(block=self.block, columns=self.columns)
