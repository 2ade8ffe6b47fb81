"""Block-sparse: the `local` blocks that end with its own, and every `stride`-th block, shifted by head (Phi-3-small)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.chunked import Chunked
from anyformer.specs.axes import Problem
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Stripes(Pattern):
    """Every `stride`-th key block, shifted by head."""

    shift_invariant = False
    per_head = True
    block: int
    stride: int
    shift: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return ((k.pos // self.block + q.head * self.shift + 1) % self.stride == 0) & (q.pos == q.pos)

    def grains(self) -> tuple[int, int]:
        return 0, self.block


@dataclass(frozen=True, kw_only=True)
class BlockSparse(Pattern, kind="block_sparse"):
    """k <= q, and the block of k is less than `local` blocks back, or (k // block + head shift + 1) mod stride = 0."""

    causal = True
    shift_invariant = False
    minimum = {"block": 1, "local": 1, "stride": 1, "shift": 0}
    per_head = True
    block: int
    """Tokens in a block."""
    local: int
    """Blocks that are seen whole, the token's own included."""
    stride: int
    """Beyond those, every so many blocks one is seen."""
    shift: int
    """By how many blocks the next head's are shifted; 0: heads are alike."""

    def __post_init__(self) -> None:
        whole = self.stride == 1
        self._flag(per_head=not whole and self.shift != 0, shift_invariant=whole)

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.shift > 0 and self.stride > 1 and self.shift % self.stride == 0:
            yield "shift", f"{self.shift} is a multiple of stride={self.stride}, so heads would be alike; write 0"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        key = k.pos // self.block
        near = q.pos // self.block - key < self.local
        stripe = (key + q.head * self.shift + 1) % self.stride == 0
        return (k.pos <= q.pos) & (near | stripe)

    def equation(self) -> str:
        head = f" + {self.shift} head" if self.shift > 1 else " + head" if self.shift else ""
        key = f"k // {self.block}"
        return f"k <= q and (q // {self.block} - {key} < {self.local} or ({key}{head} + 1) mod {self.stride} = 0)"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        return (pos * 0, pos) if self.stride == 1 else None

    def keeps(self) -> CachePolicy:
        # Heads that differ need different blocks, and a cache has one set of slots for all.
        if self.per_head:
            return CachePolicy()
        return CachePolicy(recent=self.local * self.block, block=self.stride * self.block, columns=self.block)

    def spelled(self) -> Pattern:
        near = Chunked(size=self.block, before=self.local - 1)
        return Causal() & (near | Stripes(block=self.block, stride=self.stride, shift=self.shift))

    def sizes(self) -> tuple[int, ...]:
        return self.block * self.local, self.block * self.stride

    def shrunk(self, by: float) -> Pattern:
        block = min(self.block, max(2, round(self.block / by)))
        local, stride = (round(n * self.block / by / block) for n in (self.local, self.stride))
        return BlockSparse(block=block, local=max(1, local), stride=max(min(2, self.stride), stride), shift=self.shift)
