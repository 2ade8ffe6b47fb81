"""CoNLL-U: sentences of words with their tags, as the Universal Dependencies have them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import chain
from typing import ClassVar

from anyformer.data.sources import Format, Record
from anyformer.errors import DataError

COLUMNS = 10
FORM, UPOS = 1, 3


@dataclass(frozen=True, kw_only=True)
class Conllu(Format, kind="conllu"):
    """Fields are `words` (FORM) and `tags` (UPOS); ranges of words (1-2) and empty nodes (1.1) are left out."""

    endings: ClassVar[tuple[str, ...]] = (".conllu", ".conll")

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        words: list[str] = []
        tags: list[str] = []
        first = 0
        for number, line in enumerate(chain(lines, [""]), 1):
            bare = line.rstrip("\r\n")
            if not bare.strip():
                if words:
                    yield Record({"words": words, "tags": tags}, f"{name}:{first}")
                words, tags = [], []
                continue
            if bare.startswith("#"):
                continue
            values = bare.split("\t")
            if len(values) != COLUMNS:
                counts = f"has {len(values)} tab-separated fields, and a word of CoNLL-U has {COLUMNS}"
                raise DataError(f"{name}:{number}: {counts}; sentences are separated by empty lines")
            if "-" in values[0] or "." in values[0]:
                continue
            first = first if words else number
            words.append(values[FORM])
            tags.append(values[UPOS])
