"""How long a run lasts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run lasts: by the clock, or by a number of steps, which repeats to the bit."""

    seconds: float | None = None
    steps: int | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise TypeError("a budget is either seconds or steps")

    @property
    def words(self) -> str:
        """The budget for people; equal for equal budgets."""
        return f"{self.seconds:g} s" if self.seconds is not None else f"{self.steps} steps"

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is over before a step, from 0 to 1."""
        spent = seconds / self.seconds if self.seconds is not None else step / (self.steps or 1)
        return min(spent, 1.0)
