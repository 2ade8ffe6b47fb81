"""Raw files and texts, unpacked on the fly and read as UTF-8; corpora of documents to train on and held-out ones."""

import gzip
import hashlib
import io
import re
import sys
import sysconfig
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from anyformer.data.sources import Format
from anyformer.errors import DataError, InputError, nearest

STDIN = "-"


@dataclass(frozen=True)
class RawFile:
    """A file to read; `archive.zip/inside/name.txt` is a file in an archive."""

    path: Path
    label: str | None = None
    """The class that all its examples belong to."""

    @property
    def name(self) -> str:
        return self.path.name

    def lines(self) -> Iterator[str]:
        """Its lines, each with its newline; only a line feed ends a line, so that no character is lost."""
        # An unpacker by itself looks for the end of a line in Python, which is slow.
        with self.opened() as file, io.BufferedReader(file, 2**16) as lines:
            yield from _decoded(lines, str(self.path))

    def sha256(self) -> tuple[int, str]:
        """Size and SHA-256 of the file as it is stored, or of a file of an archive unpacked."""
        with self.opened(packed=True) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return file.tell(), digest

    @contextmanager
    def opened(self, *, packed: bool = False) -> Iterator[Any]:
        try:
            archive = _archive(self.path)
            with ExitStack() as stack:
                if archive is None:
                    file: Any = stack.enter_context(self.path.open("rb"))
                else:
                    folder = stack.enter_context(zipfile.ZipFile(archive))
                    inside = self.path.relative_to(archive).as_posix()
                    if inside not in folder.namelist():
                        files = [name for name in folder.namelist() if not name.endswith("/")]
                        raise DataError(f"{archive}: has no file {inside!r}{nearest(inside, files)}")
                    file = stack.enter_context(folder.open(inside))
                yield gzip.GzipFile(fileobj=file) if self.path.suffix == ".gz" and not packed else file
        except FileNotFoundError as error:
            raise DataError(f"{self.path}: there is no such file; check the path (here it is {Path.cwd()})") from error
        except (gzip.BadGzipFile, zipfile.BadZipFile, zlib.error, EOFError) as error:
            kind = "zip" if isinstance(error, zipfile.BadZipFile) or self.path.suffix != ".gz" else "gzip"
            raise DataError(f"{self.path}: is not a whole {kind} file: {error}; fetch or write it again") from error
        except RuntimeError as error:
            # An archive with a password, or packed in a way that Python does not know.
            raise DataError(f"{self.path}: can't be unpacked: {error}; unpack the archive yourself") from error
        except OSError as error:
            raise DataError(f"{self.path}: can't be read: {error.strerror or error}") from error


def _decoded(file: Iterable[bytes], name: str) -> Iterator[str]:
    """Lines of UTF-8, each with its newline."""
    seen = 0
    for line in file:
        try:
            text = line.decode()
        except UnicodeDecodeError as error:
            what = f"byte {seen + error.start} is 0x{line[error.start]:02X}"
            way = "convert it first, e.g. with iconv -f latin1 -t utf-8"
            raise DataError(f"{name}: is not UTF-8 text: {what}; {way}") from error
        yield text if seen else text.removeprefix("\ufeff")
        seen += len(line)


def read_text(path: str | Path) -> str:
    """The text of a file, of a gzip file ending in .gz, or of standard input if the path is `-`; newlines as they are."""
    stdin = str(path) == STDIN
    name = "standard input" if stdin else str(path)
    if not stdin and ("\0" in name or Path(path).is_dir()):
        what = "can't be read: no name has a null byte" if "\0" in name else "is a directory; give the text files in it"
        raise DataError(f"{name}: {what}")
    with nullcontext(sys.stdin.buffer) if stdin else RawFile(Path(path)).opened() as file:
        text = "".join(_decoded(file, name))
    if not text.strip():
        raise DataError(f"{name}: has no text" if text else f"{name}: is empty")
    return text


def _archive(path: Path) -> Path | None:
    """The zip file that a path leads into."""
    return next((parent for parent in path.parents if parent.suffix == ".zip" and parent.is_file()), None)


def find_files(inputs: Iterable[str | Path], label: str | None = None) -> list[RawFile]:
    """Files by name, and every file below a folder in sorted order, without hidden ones."""
    found: list[RawFile] = []
    for given in inputs:
        path = Path(given)
        if path.is_dir():
            files = [file for file in sorted(path.rglob("*")) if file.is_file()]
            inside = [f for f in files if not any(part.startswith(".") for part in f.relative_to(path).parts)]
            if not inside:
                raise DataError(f"{path}: holds no files; give one that does")
            found += [RawFile(file, label) for file in inside]
        elif path.is_file() or _archive(path) is not None:
            if path.suffix == ".zip":
                raise InputError(f"{path}: is an archive; name a file in it, such as {path / _first_of(path)}")
            found.append(RawFile(path, label))
        else:
            raise DataError(f"{path}: there is no such file or folder; check the path (here it is {Path.cwd()})")
    return found


def _first_of(archive: Path) -> str:
    """The name of a file in an archive."""
    try:
        with zipfile.ZipFile(archive) as folder:
            return next((name for name in folder.namelist() if not name.endswith("/")), "name")
    except (zipfile.BadZipFile, OSError) as error:
        raise DataError(f"{archive}: is not a whole zip file: {error}; fetch or write it again") from error


def guess_format(files: Iterable[RawFile]) -> str:
    """The format that the endings of files speak of; what nobody claims is text."""
    claimed = {ending: kind for kind in Format.kinds() for ending in format_named(kind).endings}
    kinds: dict[str, str] = {}
    for file in files:
        ending = Path(file.name.removesuffix(".gz")).suffix.lower()
        kinds.setdefault(claimed.get(ending, "text"), file.name)
    if len(kinds) > 1:
        some = ", ".join(f"{name} looks like {kind}" for kind, name in sorted(kinds.items()))
        raise InputError(f"the files have more than one format: {some}; give files of one, or say --format")
    return next(iter(kinds), "text")


def format_named(kind: str) -> type[Format]:
    """The class of a format."""
    leaf = Format.named(kind)
    if leaf is None:
        raise InputError(f"there is no format {kind!r}{nearest(kind, Format.kinds())}")
    return leaf


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
