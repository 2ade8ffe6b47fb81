"""Global tokens: the first of a document, and those marked with `global_mask`, see all and are seen by all (Longformer)."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.patterns import Pattern, Reach, Tokens


@dataclass(frozen=True, kw_only=True)
class GlobalTokens(Pattern, kind="global_tokens"):
    """q or k is one of the first tokens, or marked."""

    shift_invariant = False
    reads_marks = True
    counted = ("first",)
    first: int = 0
    """How many of a document's first tokens are global."""
    marks: bool = True
    """Whether tokens marked with `global_mask` are global too. Without marks a cache keeps the first ones only."""

    def __post_init__(self) -> None:
        self._flag(reads_marks=self.marks)

    def problems(self) -> Iterator[Problem]:
        if self.first < 0:
            yield "first", f"{self.first} is not at least 0"
        elif self.first == 0 and not self.marks:
            yield "first", "no token is global: give the number of first ones, or leave marks on"

    def check(self, heads: int, context: int) -> Iterator[Problem]:
        if self.first > context:
            yield "first", f"{self.first} is past the end of {context} tokens"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        early = (q.pos < self.first) | (k.pos < self.first)
        return early | q.marked | k.marked if self.marks else early

    def is_global(self, q: Tokens) -> Any:
        return (q.pos < self.first) | q.marked if self.marks else q.pos < self.first

    def equation(self) -> str:
        first = [f"q < {self.first} or k < {self.first}"] if self.first else []
        return " or ".join([*first, *(["q or k is marked"] if self.marks else [])])

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        # Counting knows of no marks.
        few = min(self.first, length)
        return pos * 0, few - 1 + (length - few) * (pos < self.first)

    def reach(self) -> Reach:
        return Reach(1, 0, self.first, self.marks)

    def keeps(self) -> CachePolicy:
        return CachePolicy() if self.marks else CachePolicy(first=self.first, recent=1)
