"""Band: a token sees so many before it, so many after it, and itself."""

from dataclasses import dataclass
from typing import Any

from anyformer.specs.patterns import Pattern, Tokens


class Near(Pattern):
    """All tokens within `horizon()` and `ahead()`."""

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos < self.horizon()) & (k.pos - q.pos <= self.ahead())

    def interval(self, pos: Any, length: int) -> tuple[Any, Any] | None:
        return (pos - self.horizon() + 1).clip(0), (pos + self.ahead()).clip(None, length - 1)


@dataclass(frozen=True, kw_only=True)
class Band(Near, kind="band"):
    """-after <= q - k <= before."""

    formula = "-{after} <= q - k <= {before}"
    minimum = {"before": 0, "after": 0}
    before: int
    """Tokens seen before it."""
    after: int
    """Tokens seen after it."""

    def __post_init__(self) -> None:
        self._flag(causal=self.after == 0)

    def horizon(self) -> int:
        return self.before + 1

    def ahead(self) -> int:
        return self.after
