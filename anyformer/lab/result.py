"""What a run reached, and how two runs compare."""

from dataclasses import dataclass, fields
from pathlib import Path

from anyformer.errors import AnyformerError
from anyformer.explain.difference import Difference, difference
from anyformer.files import settle
from anyformer.specs.model import ModelSpec
from anyformer.train.loggers import FILE, read_metrics

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
    budget: str
    """How long it was to last: figures of runs with other budgets don't say which model is better."""
    device: str


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """A run beside an earlier one on the same text."""

    before: Result
    after: Result
    difference: Difference

    @property
    def fair(self) -> bool:
        """Whether both had the same budget, on the same kind of machine."""
        return (self.before.budget, self.before.device) == (self.after.budget, self.after.device)

    @property
    def gain(self) -> float:
        """By what share the bits per byte fell; negative if they rose."""
        return 1 - self.after.bits_per_byte / self.before.bits_per_byte


def read_result(folder: Path) -> Result | None:
    """The result of a run folder, or None if it has none that we can read."""
    kinds = {"int": int, "float": (int, float), "str": str}
    wanted = {f.name: kinds[str(f.type)] for f in fields(Result)}
    for record in reversed(read_metrics(folder, RESULT)):
        if all(isinstance(record.get(name), kind) for name, kind in wanted.items()):
            return Result(**{name: record[name] for name in wanted})
    return None


def earlier(base: Path, place: Path) -> Path | None:
    """The run with which one is compared: the plain run on the same text, or else the oldest one beside it."""
    after = read_result(place)
    beside = [folder for folder in place.parent.iterdir() if folder.is_dir() and folder.name[0] != "."]
    found = {folder: read_result(folder) for folder in (settle(base), *sorted(beside))}
    others = {folder: result for folder, result in found.items() if result and folder.resolve() != place.resolve()}
    same = [folder for folder, result in others.items() if after and result.fingerprint == after.fingerprint]
    if base in same:
        return base
    return min(same, key=lambda folder: (folder / FILE).stat().st_mtime, default=None)


def compare(first: Path, second: Path) -> Comparison | None:
    """Two run folders side by side; None if one has no result, or if they were measured on different texts."""
    before, after = read_result(first), read_result(second)
    if before is None or after is None or before.fingerprint != after.fingerprint:
        return None
    try:
        old, new = (ModelSpec.from_file(folder / "spec.toml") for folder in (first, second))
    except AnyformerError:
        return None
    return Comparison(before=before, after=after, difference=difference(old, new, (first.name, second.name)))
