"""Plain text: one document, or several with something between them."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from anyformer.data.corpus import SEPARATOR
from anyformer.data.sources import Format, Record
from anyformer.errors import InputError

PIECE = 2**16
"""Characters after which a document is cut at a line that begins with a word: long texts are read, encoded on all cores
and written piece by piece."""

Split = Literal["separator", "lines", "blank_lines", "start"]


@dataclass(frozen=True, kw_only=True)
class Text(Format, kind="text"):
    """Documents between lines of `<|endoftext|>`, one in each line, one in each paragraph, or from heading to heading."""

    endings: ClassVar[tuple[str, ...]] = (".txt", ".text", ".md")
    ordered: ClassVar[bool] = True

    split: Split = "separator"
    start: str = ""
    """With split "start": a document begins with each line in which this regular expression is found."""

    def __post_init__(self) -> None:
        try:
            re.compile(self.start)
        except re.error as error:
            raise InputError(f"{self.start!r} is no regular expression: {error}") from error

    def read(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        if self.split == "lines":
            for number, line in enumerate(lines, 1):
                if text := line.rstrip():
                    yield Record({"text": text}, f"{name}:{number}")
        else:
            yield from self._documents(lines, name)

    def _documents(self, lines: Iterable[str], name: str) -> Iterator[Record]:
        starts = re.compile(self.start).search
        kept: list[str] = []
        # A whole file is kept as it is; documents that something separates lose the newlines around them.
        size, first, cut, whole = 0, 1, False, self.split in ("separator", "start")
        number = 0
        for number, line in enumerate(lines, 1):
            if self.split == "start":
                ends, content = bool(kept) and starts(line) is not None, line
            else:
                bare = line.rstrip()
                ends = bare == SEPARATOR if self.split == "separator" else not bare
                content = "" if ends else line
            if ends:
                yield from _document(kept, f"{name}:{first}", cut=cut, strip=self.split != "start")
                kept, size, first, cut = [], 0, number, False
                whole = self.split == "start"
            if not content or (not kept and not cut and not whole and not content.strip()):
                continue
            # No token of a usual tokenizer reaches from a newline into such a line; whoever encodes it makes sure.
            if size >= PIECE and content[:2].strip():
                yield Record({"text": "".join(kept)}, f"{name}:{first}", more=True, verbatim=True)
                kept, size, cut = [], 0, True
            if not kept:
                first = number
            kept.append(content)
            size += len(content)
        yield from _document(kept, f"{name}:{first}", cut=cut, strip=not whole)


def _document(kept: list[str], where: str, *, cut: bool, strip: bool) -> Iterator[Record]:
    text = "".join(kept)
    if strip:
        text = text.rstrip("\r\n")
    if cut or text.strip():
        yield Record({"text": text}, where, verbatim=True)
