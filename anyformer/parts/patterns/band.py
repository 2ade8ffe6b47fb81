"""Band: a token sees so many before it, so many after it, and itself."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


@dataclass(frozen=True, kw_only=True)
class Band(Pattern, kind="band"):
    """-after <= q - k <= before."""

    formula = "-{after} <= q - k <= {before}"
    minimum = {"before": 0, "after": 0}
    before: int
    """Tokens seen before it."""
    after: int
    """Tokens seen after it."""

    def __post_init__(self) -> None:
        self._flag(causal=self.after == 0)

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos <= self.before) & (k.pos - q.pos <= self.after)

    def interval(self, pos: Any, length: int) -> tuple[Any, Any]:
        return (pos - self.before).clip(0), (pos + self.after).clip(None, length - 1)

    def horizon(self) -> int:
        return self.before + 1

    def ahead(self) -> int:
        return self.after
