"""metrics.jsonl: what a run measured, one JSON object on a line, in the order in which it happened."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import naming
from anyformer.files import replace_file
from anyformer.train.loggers import Told

FILE = "metrics.jsonl"


class Metrics:
    """Appends records to metrics.jsonl, flushed one by one, and tells loggers; quiet on all ranks but the first."""

    def __init__(self, folder: Path, told: Told | None = None, *, quiet: bool = False) -> None:
        self._file = None if quiet else (folder / FILE).open("a", encoding="utf-8")
        self._told = Told([]) if told is None or quiet else told

    def write(self, event: str, **values: Any) -> None:
        """Add one record. JSON has no NaN: a number that is not finite is written as null."""
        if self._file is None:
            return
        with naming(self._file.name):
            self._file.write(json.dumps({"event": event, **sound(values)}, allow_nan=False) + "\n")
            self._file.flush()
        self._told.log(event, values)

    def tell(self, event: str, **values: Any) -> None:
        """Tell loggers of something that is no measurement."""
        self._told.log(event, values)

    def __enter__(self) -> Metrics:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._told.end()


def sound(value: Any) -> Any:
    """The same, with None for every number that is not finite."""
    if isinstance(value, dict):
        return {name: sound(inner) for name, inner in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def read_metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    """All records of one event. Lines that are no records, such as a last one cut short, are passed over."""
    return [record for record in records(folder) if record.get("event") == event]


def is_final(record: Mapping[str, Any]) -> bool:
    """Whether a record is of the whole held-out part: the event `final`, or in older runs a marked `look`."""
    return record.get("event") == "final" or (record.get("event") == "look" and bool(record.get("final")))


def points(folder: Path) -> list[dict[str, Any]]:
    """The held-out curve: measurements on a sample of the rows."""
    return [record for record in read_metrics(folder, "look") if not is_final(record)]


def finals(folder: Path) -> list[dict[str, Any]]:
    """Measurements on the whole held-out part: one, and one more for each time that a finished run was given steps."""
    return [record for record in records(folder) if is_final(record)]


def trim(folder: Path, step: int) -> None:
    """Forget what was measured after a step: a run that goes on from there will measure it again."""
    kept = [record for record in records(folder) if not (isinstance(at := record.get("step"), int) and at > step)]
    lines = "".join(json.dumps(record, allow_nan=False) + "\n" for record in kept)
    replace_file(folder / FILE, lambda beside: beside.write_text(lines, encoding="utf-8"))


def records(folder: Path) -> list[dict[str, Any]]:
    """All records, in the order in which they were written."""
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []
    return [record for line in lines if isinstance(record := _parsed(line), dict)]


def _parsed(line: str) -> Any:
    try:
        return json.loads(line)
    except json.JSONDecodeError:
        return None
