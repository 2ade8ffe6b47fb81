"""What a study found: its variants with their sizes, costs and runs, as one JSON file that tables, plots and pages read.

Nothing here loads torch: a report can be made again from results.json alone, long after the runs are gone.
"""

import json
import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

from anyformer.errors import InputError
from anyformer.files import finite, replace_file

FILE = "results.json"
VERSION = 1
BASE = "base"
"""The name of the variant that nothing is changed in."""
Status = Literal["finished", "diverged", "failed", "out of memory"]
HIGHER_IS_BETTER = re.compile(r"(?:^|[^a-z])(?:accuracy|f1|bleu|per_second|edge)(?:$|[^a-z])")
"""A metric whose name has one of these words in it grows with quality; all others are losses and costs."""


def higher_is_better(metric: str) -> bool:
    """Whether a larger value of a metric is the better one."""
    return HIGHER_IS_BETTER.search(metric) is not None


@dataclass(frozen=True, kw_only=True)
class RunResult:
    """One training run: a variant with a seed."""

    seed: int
    status: Status
    reason: str = ""
    """Why it did not finish."""
    metrics: dict[str, float | None] = field(default_factory=dict)
    """By name: `loss` (held-out, nats per token), `bits_per_byte`, the objective's figures, and what the study measures
    besides, such as `loss@512`. None, or no entry, where there is no number."""
    curve: list[tuple[int, int, float]] = field(default_factory=list)
    """Held-out loss on the way: step, tokens, loss."""
    seconds: float = 0.0
    """Spent in training steps."""
    steps: int = 0
    tokens: int = 0

    def value(self, metric: str) -> float | None:
        """A metric, or None where this run has no finite value of it."""
        found = self.metrics.get(metric)
        return found if found is not None and math.isfinite(found) else None


@dataclass(frozen=True, kw_only=True)
class VariantResult:
    """A variant: what is different in it, what it costs, and its runs."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)
    """What was asked for, by dotted names of the spec and the config."""
    solved: dict[str, Any] = field(default_factory=dict)
    """What matching chose, by dotted names, such as {"ffn.width": 344}."""
    off_by: float | None = None
    """Relative distance from what was to be matched; None where nothing was."""
    params: int = 0
    train_flops: float = 0.0
    """Of one whole run."""
    kv_bytes_per_token: float | None = None
    """Of the KV cache in bfloat16; None for a model without one."""
    steps: int = 0
    tokens_per_step: int = 0
    speeds: dict[str, list[float]] = field(default_factory=dict)
    """Measured alone on the device, in rounds that take turns with the other variants: `train_tokens_per_second`,
    `decode_tokens_per_second`."""
    peak_memory: int | None = None
    """Bytes of a training step."""
    lr_factor: float | None = None
    """By which the learning rates were multiplied, if each variant was tuned; `tuning_flops` is what finding it took."""
    tuning_flops: float = 0.0
    runs: list[RunResult] = field(default_factory=list)

    def values(self, metric: str) -> dict[int, float]:
        """A metric by seed, for the runs that have it; of a measured speed, by round."""
        if metric in self.speeds:
            return dict(enumerate(self.speeds[metric]))
        found = ((run.seed, run.value(metric)) for run in self.runs)
        return {seed: value for seed, value in found if value is not None}

    @property
    def lost(self) -> list[RunResult]:
        """Runs that did not finish."""
        return [run for run in self.runs if run.status != "finished"]


@dataclass(frozen=True, kw_only=True)
class Claim:
    """A sentence of the literature that a study can judge: `better` has a better `metric` than `than`; or, with a `margin`,
    both differ by no more than that.
    """

    claim: str
    paper: str
    better: str
    """Name of a variant."""
    than: str = BASE
    metric: str = ""
    """Empty: the metric of the study."""
    margin: float | None = None
    """The claim is that the two are equal up to this much, in units of the metric (of a speed: relative)."""


@dataclass(frozen=True, kw_only=True)
class Results:
    """All of a study."""

    title: str
    metric: str = "loss"
    """What variants are compared by."""
    base: str = BASE
    """The name of the variant that others are compared with."""
    study: dict[str, Any] = field(default_factory=dict)
    """The study as it was asked for, as plain data."""
    command: str = ""
    """What repeats it."""
    budget: str = ""
    """In words, with the steps that it was converted to."""
    match: str = ""
    """What is equal between variants and how closely, in words."""
    machine: str = ""
    date: str = ""
    seconds: float = 0.0
    """From the first run to the last, over all parts of the study."""
    notes: list[str] = field(default_factory=list)
    """What a reader should know: variants that were left out, runs that failed."""
    variants: list[VariantResult] = field(default_factory=list)
    claims: list[Claim] = field(default_factory=list)

    def variant(self, name: str) -> VariantResult:
        """A variant by its name."""
        for each in self.variants:
            if each.name == name:
                return each
        from anyformer.errors import nearest

        raise InputError(f"there is no variant {name!r}{nearest(name, [each.name for each in self.variants])}")

    def to_data(self) -> dict[str, Any]:
        return {"version": VERSION, **finite(asdict(self))}

    def save(self, folder: Path) -> Path:
        """Write results.json."""
        text = json.dumps(self.to_data(), allow_nan=False)
        place = folder / FILE
        replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8"))
        return place

    @classmethod
    def from_data(cls, data: Mapping[str, Any], source: str = "") -> Self:
        """Read what `to_data` wrote."""
        if data.get("version") != VERSION:
            raise InputError(
                f"{source}: version {data.get('version')!r} of results is unknown; this one reads {VERSION}"
            )
        given = {name: value for name, value in data.items() if name != "version"}
        try:
            variants = [
                VariantResult(**each | {"runs": [_run(run) for run in each["runs"]]}) for each in given["variants"]
            ]
            return cls(**given | {"variants": variants, "claims": [Claim(**claim) for claim in given["claims"]]})
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{source}: is no {FILE} of a study: {error}") from error

    @classmethod
    def read(cls, folder: str | Path) -> Self:
        """The results of a study's folder."""
        place = Path(folder) / FILE
        try:
            data = json.loads(place.read_text(encoding="utf-8"))
        except OSError as error:
            raise InputError(
                f"{place}: can't be read: {error.strerror}; give the folder of a finished study"
            ) from error
        except ValueError as error:
            raise InputError(f"{place}: is not JSON: {error}") from error
        if not isinstance(data, dict):
            raise InputError(f"{place}: is no table")
        return cls.from_data(data, str(place))


def _run(data: Mapping[str, Any]) -> RunResult:
    return RunResult(**{**data, "curve": [tuple(point) for point in data.get("curve", [])]})
