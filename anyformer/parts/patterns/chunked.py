"""Chunked: a token sees its own chunk of `size` tokens and no other (Llama 4's local layers, with `causal &`)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Chunked(Pattern, kind="chunked"):
    """q // size == k // size."""

    shift_invariant = False
    size: int

    def problems(self) -> Iterator[Problem]:
        if self.size < 1:
            yield "size", f"{self.size} is not at least 1; a chunk holds the token itself"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return q.pos // self.size == k.pos // self.size

    def equation(self) -> str:
        return f"q // {self.size} = k // {self.size}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        first = pos // self.size * self.size
        return first, (first + self.size - 1).clip(None, length - 1)

    def horizon(self) -> int:
        return self.size
