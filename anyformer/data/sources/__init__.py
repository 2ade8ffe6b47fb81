"""Formats of raw files, one a file. See `anyformer.data.sources.Format`."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from anyformer.registry import OpenAxis


@dataclass(frozen=True, slots=True)
class Record:
    """One example as it stands in a file: its fields by name, and where it is."""

    fields: Mapping[str, Any]
    where: str
    more: bool = False
    """Whether the next record goes on with the text of this one: long documents come in pieces."""
    verbatim: bool = False
    """Whether the text stands in the file as it is, so that each newline of it ends a line there."""

    def after(self, text: str) -> str:
        """File and line of what comes after some of its text."""
        if not self.verbatim:
            return self.where
        name, _, line = self.where.rpartition(":")
        return f"{name}:{int(line) + text.count(chr(10))}"


@dataclass(frozen=True, kw_only=True)
class Format(OpenAxis, axis="format", leaves="anyformer.data.sources"):
    """How records stand in a file."""

    endings: ClassVar[tuple[str, ...]] = ()
    """How names of such files end, without .gz."""

    ordered: ClassVar[bool] = False
    """Whether neighbours belong together, so that a held-out part is the end of it and not drawn."""

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        """Records of the lines of a file, each with the newline that ends it."""
        raise TypeError(f"format {self.kind!r} can't be read")
