"""JSON Lines: one object in each line."""

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from anyformer.data.sources import Format, Record
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class JsonLines(Format, kind="jsonl"):
    """Fields are the keys of the objects."""

    endings: ClassVar[tuple[str, ...]] = (".jsonl", ".ndjson")

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                found = json.loads(line)
            except (ValueError, RecursionError) as error:
                place = f"column {error.colno}: {error.msg}" if isinstance(error, json.JSONDecodeError) else f"{error}"
                raise DataError(f"{name}:{number}: is not JSON: {place}; every line holds one object") from error
            if not isinstance(found, dict):
                kind = type(found).__name__
                raise DataError(f'{name}:{number}: is {kind}, and should be an object such as {{"text": "..."}}')
            yield Record(found, f"{name}:{number}")
