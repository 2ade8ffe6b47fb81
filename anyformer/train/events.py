"""What a run tells while it goes on, one value for each thing that happened."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anyformer.data.batch import Batch


@dataclass(frozen=True, kw_only=True)
class Step:
    """A batch was learned from."""

    step: int
    """Counted from 1."""
    stage: int
    loss: float
    """Mean over the labels that count, before the update, without anything that is only added."""
    terms: dict[str, float]
    """All terms of the loss, and their weighted sum as `total`."""
    gradient_norm: float
    rate: float
    tokens: int
    seconds: float
    batch: str
    skipped: bool
    """The weights were left as they were: a number was not finite, or far out of line."""
    memory: int
    """Bytes of the device that were in use at most so far; on a CPU, of the process."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Held-out examples were measured on."""

    step: int
    tokens: int
    loss: float
    figures: dict[str, float]
    labels: int
    bits_per_byte: float | None
    rows: int
    all_rows: int
    """Rows of the held-out part: two points are of one curve if both numbers are the same."""
    final: bool = False
    """Whether it is the word on the whole held-out part, at the end, and no point of the curve."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The model said something."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint is on the disk; of what an accelerator holds, it is copied and being written."""

    step: int
    place: Path
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on from a checkpoint."""

    step: int
    place: Path


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Somebody asked for a stop; everything is saved."""

    step: int
    status: int
    """The exit status that tells by which signal."""


Event = Step | Evaluated | Sampled | Saved | Resumed | Stopped


@dataclass(frozen=True, kw_only=True)
class Progress:
    """What a run has behind it."""

    step: int = 0
    tokens: int = 0
    seconds: float = 0.0
    batch: str = ""

    def after(self, batch: Batch) -> Progress:
        return replace(self, step=self.step + 1, tokens=self.tokens + batch.tokens, batch=batch.digest)

    def later(self, seconds: float) -> Progress:
        return replace(self, seconds=self.seconds + seconds)


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
