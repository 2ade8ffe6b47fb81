"""A job of a study as plain data, so that any engine can carry it: a local process, a Slurm array, a Ray cluster.

A job is done when its folder has a result. Reading one loads no torch.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from anyformer.lab.results import RunResult
from anyformer.specs.codec import write
from anyformer.train.config import Config

RESULT = "result.json"


@dataclass(frozen=True, kw_only=True)
class Job:
    """One run of a variant with a seed."""

    id: str
    folder: str
    """Of the run."""
    variant: str
    seed: int
    config: dict[str, Any]
    """Of the run, as plain data; seed, folder and device are filled in when it is executed."""
    after: str = ""
    """The id of the job whose weights it begins from; that one must be finished first."""
    start: str = ""
    """The folder of those weights."""
    convert: dict[str, Any] = field(default_factory=dict)
    """Surgery on them."""
    shared: bool = False
    """Whether it is only there for others to begin from."""
    measure: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def from_data(cls, data: Mapping[str, Any]) -> Self:
        return cls(**data)

    def to_data(self) -> dict[str, Any]:
        return asdict(self)

    def result(self) -> RunResult | None:
        """What it left, if it is done."""
        return read_result(Path(self.folder))


def read_result(folder: Path) -> RunResult | None:
    """The result in a run's folder; None if there is none that can be read."""
    try:
        data = json.loads((folder / RESULT).read_text(encoding="utf-8"))
        return RunResult(**{**data, "curve": [tuple(point) for point in data.get("curve", [])]})
    except (OSError, ValueError, TypeError):
        return None


def config_data(config: Config) -> dict[str, Any]:
    """A config as the plain data of a job, without what is filled in when it is executed."""
    data = write(config)
    data["run"] = {name: value for name, value in data["run"].items() if name not in ("folder", "seed")}
    return data
