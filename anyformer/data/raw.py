"""Raw files: found in folders, unpacked on the fly, read line by line as UTF-8."""

from __future__ import annotations

import codecs
import gzip
import hashlib
import io
import sys
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.data.sources import Format
from anyformer.errors import DataError, InputError, nearest

BLOCK = 2**20
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

    @property
    def ending(self) -> str:
        """How its name ends, without .gz."""
        return Path(self.name.removesuffix(".gz")).suffix.lower()

    def lines(self) -> Iterator[str]:
        """Its lines, each with its newline; only a line feed ends a line, so that no character is lost."""
        with self.opened() as file:
            # Errors of decoding name a byte of a block, so the place in the file is looked for once there is one.
            text = io.TextIOWrapper(file, encoding="utf-8", newline="\n")
            try:
                for number, line in enumerate(text):
                    yield line.removeprefix("\ufeff") if number == 0 else line
            except UnicodeDecodeError as error:
                raise self._not_utf8() from error
            finally:
                text.detach()

    def sha256(self) -> tuple[int, str]:
        """Size and SHA-256 of the file as it is stored, or of a file of an archive unpacked."""
        digest, size = hashlib.sha256(), 0
        with self.opened(packed=True) as file:
            while block := file.read(BLOCK):
                digest.update(block)
                size += len(block)
        return size, digest.hexdigest()

    def _not_utf8(self) -> DataError:
        decoder, seen = codecs.getincrementaldecoder("utf-8")(), 0
        with self.opened() as file:
            while True:
                block = file.read(BLOCK)
                # The decoder keeps the bytes of a character that a block cuts in two, and counts from them.
                held = len(decoder.getstate()[0])
                try:
                    decoder.decode(block, final=not block)
                except UnicodeDecodeError as error:
                    return _not_utf8(str(self.path), error, seen - held)
                seen += len(block)
                if not block:
                    return DataError(f"{self.path}: changed while it was read; run the command again")

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


def _not_utf8(name: str, error: UnicodeDecodeError, before: int = 0) -> DataError:
    return DataError(
        f"{name}: is not UTF-8 text: byte {before + error.start} is 0x{error.object[error.start]:02X}; "
        "convert it first, e.g. with iconv -f latin1 -t utf-8"
    )


def read_text(path: str | Path) -> str:
    """The text of a file, of a gzip file ending in .gz, or of standard input if the path is `-`; newlines as they are."""
    name = "standard input" if str(path) == STDIN else str(path)
    if "\0" in name or Path(path).is_dir():
        what = "can't be read: no name has a null byte" if "\0" in name else "is a directory; give the text files in it"
        raise DataError(f"{name}: {what}")
    with nullcontext(sys.stdin.buffer) if str(path) == STDIN else RawFile(Path(path)).opened() as file:
        data: bytes = file.read()
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from error
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
        kinds.setdefault(claimed.get(file.ending, "text"), file.name)
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
