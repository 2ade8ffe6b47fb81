"""What a run tells while it goes on, one value for each thing that happened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


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
    """Factor on the peak learning rates."""
    tokens: int
    """Real tokens learned from so far."""
    seconds: float
    """Time spent in steps so far."""
    batch: str
    """Digest of the batch."""
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
    """Rows that were read."""
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
