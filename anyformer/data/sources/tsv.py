"""Tab-separated values: one record in each line, no quoting."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from anyformer.data.sources import Format, Record
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Tsv(Format, kind="tsv"):
    """Fields are called 1, 2, 3 and so on, or what the first line says."""

    endings: ClassVar[tuple[str, ...]] = (".tsv", ".tab")

    header: bool = False
    """Whether the first line holds the names of the fields."""

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        names: list[str] = []
        for number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            values = line.rstrip("\r\n").split("\t")
            if not names:
                names = values if self.header else [f"{i}" for i in range(1, len(values) + 1)]
                if len(set(names)) != len(names):
                    raise DataError(f"{name}:{number}: two fields have the same name: {', '.join(names)}")
                if self.header:
                    continue
            if len(values) != len(names):
                counts = f"has {len(values)} tab-separated fields, and the first line has {len(names)}"
                raise DataError(f"{name}:{number}: {counts}; every line needs as many")
            yield Record(dict(zip(names, values, strict=True)), f"{name}:{number}")
