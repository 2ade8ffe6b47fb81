"""How far a run has come."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anyformer.data.batch import Batch


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run has behind it."""

    step: int = 0
    tokens: int = 0
    """Real tokens learned from."""
    seconds: float = 0.0
    """Time spent in steps."""
    batch: str = ""
    """Digest of the last batch."""

    def after(self, batch: Batch) -> Progress:
        """A step later."""
        return replace(self, step=self.step + 1, tokens=self.tokens + batch.tokens, batch=batch.digest)

    def later(self, seconds: float) -> Progress:
        """So much time later."""
        return replace(self, seconds=self.seconds + seconds)
