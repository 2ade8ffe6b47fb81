"""A corpus: documents to learn from, and documents held out to be measured on."""

from __future__ import annotations

import gzip
import hashlib
import re
import sysconfig
import zlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.raw import read_text
from anyformer.errors import DataError

SEPARATOR = "<|endoftext|>"
"""Stands between the documents of a text file that holds several."""

HELD_OUT_FILES = 20
"""One in so many files of the standard library is held out."""

NO_SOURCE = {"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"}
"""Folders below the standard library that hold tests or other people's packages."""


@dataclass(frozen=True, kw_only=True)
class Document:
    """A text with a name."""

    name: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """Documents in a fixed order, split once and for all."""

    title: str
    train: tuple[Document, ...]
    held_out: tuple[Document, ...]

    @property
    def train_bytes(self) -> int:
        return sum(len(document.text.encode()) for document in self.train)

    @property
    def held_out_bytes(self) -> int:
        return sum(len(document.text.encode()) for document in self.held_out)

    def fingerprint(self) -> str:
        """A hash of every document and of the split: equal for equal corpora."""
        digest = hashlib.sha256()
        for part in (self.train, self.held_out):
            for document in part:
                for piece in (document.name.encode(), document.text.encode()):
                    digest.update(len(piece).to_bytes(8, "little") + piece)
            digest.update(b"|")
        return digest.hexdigest()


def standard_library() -> Corpus:
    """The .py files of the running Python without tests; a file's name alone decides whether it is held out."""
    root = Path(sysconfig.get_path("stdlib"))
    train, held_out = list[Document](), list[Document]()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root)
        if NO_SOURCE & set(place.parts[:-1]) or path.name.startswith("test_"):
            continue
        try:
            text = path.read_bytes().decode()
        except (OSError, UnicodeDecodeError):
            # A few old files have another encoding; what can't be read is simply no part of the corpus.
            continue
        if text.strip():
            side = train if zlib.crc32(place.as_posix().encode()) % HELD_OUT_FILES else held_out
            side.append(Document(name=place.as_posix(), text=text))
    if not train or not held_out:
        advice = "give a text of your own with --text"
        raise DataError(f"the Python standard library in {root} has no source files to learn from; {advice}")
    return Corpus(title="the Python standard library", train=tuple(train), held_out=tuple(held_out))


def documents(text: str) -> list[str]:
    """The documents of a text: lines of `<|endoftext|>` stand between them. Elsewhere the same words are text."""
    pieces = re.split(rf"^{re.escape(SEPARATOR)}[ \t]*\r?$", text, flags=re.MULTILINE)
    if len(pieces) == 1:
        return pieces
    return [piece.strip("\r\n") for piece in pieces if piece.strip()]


def text_corpus(path: str | Path) -> Corpus:
    """A text file of your own: the last tenth is held out. Lines of `<|endoftext|>` separate documents."""
    text = read_text(path)
    name = "standard input" if str(path) == "-" else Path(path).name
    pieces = documents(text)
    if not pieces:
        raise DataError(f"{name}: has separators, but no document between them")
    if len(pieces) == 1:
        cut = len(pieces[0]) * 9 // 10
        train, held_out = [pieces[0][:cut]], [pieces[0][cut:]]
    else:
        # From the end, documents are held out until they are a tenth; the first one is always learned from.
        first, held, tenth = len(pieces), 0, sum(map(len, pieces)) / 10
        while first > 1 and held < tenth:
            first -= 1
            held += len(pieces[first])
        train, held_out = pieces[:first], pieces[first:]

    def named(part: list[str]) -> tuple[Document, ...]:
        return tuple(Document(name=f"{name}:{i}", text=piece) for i, piece in enumerate(part) if piece)

    return Corpus(title=name, train=named(train), held_out=named(held_out))


def gzip_bits_per_byte(documents: Iterable[Document]) -> float:
    """What `cat FILES | gzip -9` needs for each byte: the yardstick that everybody has at hand."""
    whole = b"".join(document.text.encode() for document in documents)
    return len(gzip.compress(whole, 9, mtime=0)) * 8 / len(whole)


def unigram_nats(learned_from: Any, measured_on: Any, vocab: int) -> float:
    """Sum of -ln p over the tokens measured on; every token counts once more than it occurs, so that none has p = 0."""
    learned_V, measured_V = (np.bincount(np.asarray(ids_N), minlength=vocab) for ids_N in (learned_from, measured_on))
    return counted_nats(learned_V, measured_V)


def counted_nats(learned_V: Any, measured_V: Any) -> float:
    """The same from how often each token of the vocabulary occurs."""
    counts_V = np.asarray(learned_V) + 1.0
    return float(-np.log(counts_V / counts_V.sum()) @ np.asarray(measured_V))
