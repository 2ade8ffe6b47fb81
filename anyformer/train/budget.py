"""How long a run lasts."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Budget:
    """How long a run lasts: by the clock, or by a number of steps, which repeats to the bit.

    By the clock it may ask for `least_steps`: a machine that has not made them when the seconds are over goes on until it
    has, for `most_seconds` in all.
    """

    seconds: float | None = None
    steps: int | None = None
    least_steps: int = 0
    most_seconds: float | None = None

    def __post_init__(self) -> None:
        if (self.seconds is None) == (self.steps is None):
            raise TypeError("a budget is either seconds or steps")
        if bool(self.least_steps) != (self.most_seconds is not None) or (self.least_steps and self.seconds is None):
            raise TypeError("least_steps and most_seconds go together, with seconds")

    @property
    def words(self) -> str:
        """The budget for people; equal for equal budgets."""
        if self.seconds is None:
            return f"{self.steps} steps"
        more = f", or {self.least_steps} steps in at most {self.most_seconds:g} s" if self.least_steps else ""
        return f"{self.seconds:g} s{more}"

    def progress(self, step: int, seconds: float) -> float:
        """How much of the run is over before a step, from 0 to 1."""
        if self.seconds is None:
            return min(step / (self.steps or 1), 1.0)
        spent = seconds / self.seconds
        if self.least_steps and self.most_seconds:
            # A slow machine goes by its steps, and one that is slower still by the longer time: each of the three only
            # grows, and so does what is made of them, so that a schedule reaches its end when the run does.
            spent = max(min(spent, step / self.least_steps), seconds / self.most_seconds)
        return min(spent, 1.0)

    def expected(self, step: int, seconds: float) -> float:
        """The seconds of the whole run, at the speed so far."""
        return seconds / max(self.progress(step, seconds), 1e-9)
