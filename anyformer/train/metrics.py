"""metrics.jsonl: what a run measured, one JSON object on a line, in the order in which it happened."""

from __future__ import annotations

import json
import math
from pathlib import Path
from types import TracebackType
from typing import Any

FILE = "metrics.jsonl"


class Metrics:
    """Appends records to a file. Each is written out at once, so that a reader can follow a run."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / FILE).open("a", encoding="utf-8")

    def write(self, event: str, **values: Any) -> None:
        """Add one record. JSON has no NaN: a number that is not finite is written as null."""
        sound = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in values.items()}
        self._file.write(json.dumps({"event": event, **sound}, allow_nan=False) + "\n")
        self._file.flush()

    def __enter__(self) -> Metrics:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()


def read_metrics(folder: Path, event: str) -> list[dict[str, Any]]:
    """All records of one event. Lines that are no records, such as a last one cut short, are passed over."""
    found: list[dict[str, Any]] = []
    try:
        lines = (folder / FILE).read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return found
    for line in lines:
        try:
            record = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(record, dict) and record.get("event") == event:
            found.append(record)
    return found
