"""Sliding window: a token sees the last `size` tokens, itself included (Mistral)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.specs.axes import Problem
from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Window(Pattern, kind="window"):
    """0 <= q - k < size."""

    causal = True
    size: int

    def problems(self) -> Iterator[Problem]:
        if self.size < 1:
            yield "size", f"{self.size} is not at least 1; a window holds the token itself"

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (k.pos <= q.pos) & (q.pos - k.pos < self.size)

    def equation(self) -> str:
        return f"0 <= q - k < {self.size}"

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return (pos - self.size + 1).clip(0), pos

    def horizon(self) -> int:
        return self.size
