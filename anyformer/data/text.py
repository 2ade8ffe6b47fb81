"""Reading a text file: UTF-8, newlines as they are, so that bytes can be counted."""

from __future__ import annotations

import gzip
import sys
import zlib
from pathlib import Path

from anyformer.errors import DataError

STDIN = "-"


def read_text(path: str | Path) -> str:
    """The text of a file, of a gzip file ending in .gz, or of standard input if the path is `-`."""
    name = "standard input" if str(path) == STDIN else str(path)
    try:
        data = _bytes(path)
    except FileNotFoundError as error:
        raise DataError(f"{name}: there is no such file; check the path (here it is {Path.cwd()})") from error
    except IsADirectoryError as error:
        raise DataError(f"{name}: is a directory; give the text files in it") from error
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise DataError(f"{name}: is not a whole gzip file: {error}; fetch or write it again") from error
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise DataError(f"{name}: can't be read: {why}") from error
    try:
        text = data.decode().removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{name}: is not UTF-8 text: byte {error.start} is 0x{data[error.start]:02X}; "
            "convert it first, e.g. with iconv -f latin1 -t utf-8"
        ) from error
    if not text.strip():
        raise DataError(f"{name}: has no text" if text else f"{name}: is empty")
    return text


def _bytes(path: str | Path) -> bytes:
    if str(path) == STDIN:
        return sys.stdin.buffer.read()
    place = Path(path)
    if place.is_dir():
        raise IsADirectoryError(place)
    if place.suffix == ".gz":
        with gzip.open(place, "rb") as packed:
            return packed.read()
    return place.read_bytes()
