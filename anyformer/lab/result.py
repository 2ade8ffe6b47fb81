"""What a run reached, and how two runs compare."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from anyformer.errors import AnyformerError
from anyformer.explain.difference import Difference, difference
from anyformer.specs.model import ModelSpec
from anyformer.train.metrics import read_metrics

RESULT = "result"
"""The event under which metrics.jsonl holds it, last."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """The figures of a finished run."""

    loss: float
    """Mean nats per token on the held-out text."""
    perplexity: float
    bits_per_byte: float
    gzip_bits_per_byte: float
    unigram_bits_per_byte: float
    params: int
    steps: int
    tokens: int
    seconds: float
    corpus: str
    fingerprint: str
    """A hash of the text and its split: figures compare only where it is equal."""
    seed: int
    threads: int


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run beside an earlier one on the same text."""

    before: Result
    after: Result
    difference: Difference

    @property
    def gain(self) -> float:
        """By what share the bits per byte fell; negative if they rose."""
        return 1 - self.after.bits_per_byte / self.before.bits_per_byte


def read_result(folder: Path) -> Result | None:
    """The result of a run folder, or None if it has none that we can read."""
    names = {f.name for f in fields(Result)}
    for record in reversed(read_metrics(folder, RESULT)):
        if names <= record.keys():
            return Result(**{name: record[name] for name in names})
    return None


def compare(first: Path, second: Path) -> Comparison | None:
    """Two run folders side by side; None if there is no earlier run, or if it was measured on another text."""
    before, after = read_result(first), read_result(second)
    if before is None or after is None or before.fingerprint != after.fingerprint or first == second:
        return None
    try:
        old, new = (ModelSpec.from_file(folder / "spec.toml") for folder in (first, second))
    except AnyformerError:
        return None
    return Comparison(before=before, after=after, difference=difference(old, new, (first.name, second.name)))
