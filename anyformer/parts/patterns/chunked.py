"""Chunked: a token sees its own chunk of `size` tokens (Llama 4's local layers, with `causal &`), and as many chunks
before and after as asked for (Reformer's local layers, the band of BigBird's blocks).
"""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Chunked(Pattern, kind="chunked"):
    """-after <= q // size - k // size <= before."""

    blocks = "size"
    shift_invariant = False
    counted = ("size",)
    minimum = {"size": 1, "before": 0, "after": 0}
    hints = {"size": "a chunk holds the token itself"}
    size: int
    before: int = 0
    """Chunks before its own that a token sees as well."""
    after: int = 0
    """Chunks after its own that a token sees as well."""

    def __post_init__(self) -> None:
        self._flag(causal=self.size == 1 and self.after == 0, shift_invariant=self.size == 1)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        own, other = q.pos // self.size, k.pos // self.size
        if self.before == self.after == 0:
            return own == other
        return (own - other <= self.before) & (other - own <= self.after)

    def equation(self) -> str:
        if self.before == self.after == 0:
            return f"q // {self.size} = k // {self.size}"
        return f"-{self.after} <= q // {self.size} - k // {self.size} <= {self.before}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        own = pos // self.size * self.size
        first, last = own - self.before * self.size, own + (self.after + 1) * self.size - 1
        return first.clip(0), last.clip(None, length - 1)

    def horizon(self) -> int:
        return self.size * (self.before + 1)

    def ahead(self) -> int:
        return self.size * (self.after + 1) - 1

    def sizes(self) -> tuple[int, ...]:
        return (self.size * (1 + self.before + self.after),)
