"""Learning-rate schedules: a factor on the peak for each point of a run, from 0 (begin) to 1 (end)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Trapezoid:
    """Warm up, stay, and go down in a straight line to zero (WSD: warm-up, stable, decay)."""

    warmup: float = 0.02
    decay: float = 0.5

    def factor(self, progress: float) -> float:
        """The factor at a point of the run. The first step is not wasted: it already has a little."""
        up = (progress + 1e-3) / self.warmup if self.warmup else 1.0
        down = (1.0 - progress) / self.decay if self.decay else 1.0
        return max(0.0, min(1.0, up, down))
