"""The header of a GGUF file, checked before any tensor is touched: counts, lengths and offsets are claims.

The package gguf has a reader too, which believes a file: one that claims 2^60 values keeps it busy for years. Here a
fault is named with its key or tensor, and nothing is allocated on the word of a file. No torch.
"""

from __future__ import annotations

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.errors import CapabilityError, CheckpointError
from anyformer.files import inside

if TYPE_CHECKING:
    import gguf

SUFFIX = ".gguf"
MAGIC, VERSIONS, ALIGNMENT = b"GGUF", (2, 3), 32
SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""Types of values -> how `struct` names them."""
TEXT, ARRAY = 8, 9
MOST_NAMES, MOST_DIMS = 2**20, 4


@dataclass(frozen=True)
class Block:
    """What a header says of one tensor."""

    type: gguf.GGMLQuantizationType
    shape: tuple[int, ...]
    """As torch has it: the last dimension is contiguous."""
    begin: int
    """In the file."""
    end: int


@dataclass(frozen=True)
class Header:
    """A header that holds together."""

    file: Path
    metadata: dict[str, Any]
    tensors: dict[str, Block]


class _Fault(Exception):
    pass


def library() -> Any:
    """The package gguf, which is optional."""
    try:
        import gguf
    except ImportError as error:
        raise CapabilityError("GGUF files need the package gguf: pip install 'anyformer[gguf]'") from error
    return gguf


def is_gguf(path: str | Path) -> bool:
    """Whether a path names a GGUF file."""
    return Path(path).suffix.lower() == SUFFIX


def read_header(file: Path) -> Header:
    """The header of a file; CheckpointError, with the key or the tensor, if it can't be trusted."""
    library()
    try:
        inside(file, file.parent)
        with file.open("rb") as stored:
            if stored.read(4) != MAGIC:
                raise _Fault("it does not begin with GGUF, so it is another kind of file")
            with mmap.mmap(stored.fileno(), 0, access=mmap.ACCESS_READ) as held:
                return _read(file, held)
    except OSError as error:
        raise CheckpointError(f"{file}: can't be read: {error.strerror or error}") from error
    except _Fault as error:
        raise CheckpointError(f"{file}: is damaged, or no GGUF file that can be read: {error}") from error


class _Cursor:
    """A place in the file, from which values are read one after the other."""

    def __init__(self, held: mmap.mmap, at: int) -> None:
        self.held, self.at, self.size = held, at, len(held)

    def take(self, form: str, count: int = 1) -> tuple[Any, ...]:
        width = struct.calcsize(f"<{form}")
        # Before anything is allocated for them.
        if count > (self.size - self.at) // width:
            raise _Fault(f"it ends at {self.size} bytes, before {count} values that it announces; is it cut off?")
        found = struct.unpack_from(f"<{count}{form}", self.held, self.at)
        self.at += width * count
        return found

    def text(self) -> str:
        (length,) = self.take("Q")
        if length > self.size - self.at:
            raise _Fault(f"it ends at {self.size} bytes, before a text of {length}; is it cut off?")
        found = self.held[self.at : self.at + length]
        self.at += length
        try:
            return found.decode("utf-8")
        except UnicodeDecodeError as error:
            raise _Fault(f"a text at {self.at - length} is not UTF-8") from error

    def value(self, kind: int, *, nested: bool = False) -> Any:
        if kind in SCALARS:
            return self.take(SCALARS[kind])[0]
        if kind == TEXT:
            return self.text()
        if kind != ARRAY or nested:
            raise _Fault(f"a value is of type {kind}, which is unknown{' in a list' if nested else ''}")
        inner, count = self.take("I")[0], self.take("Q")[0]
        if inner in SCALARS:
            return list(self.take(SCALARS[inner], count))
        # The least that a text takes is its length.
        if count > (self.size - self.at) // 8:
            raise _Fault(f"it ends at {self.size} bytes, before {count} values that it announces; is it cut off?")
        return [self.value(inner, nested=True) for _ in range(count)]


def _read(file: Path, held: mmap.mmap) -> Header:
    cursor = _Cursor(held, 4)
    (version,) = cursor.take("I")
    if version not in VERSIONS:
        raise _Fault(f"it is of version {version}; {' and '.join(map(str, VERSIONS))} are read")
    tensors, keys = cursor.take("Q", 2)
    if max(tensors, keys) > MOST_NAMES:
        raise _Fault(f"it claims {tensors} tensors and {keys} keys; at most {MOST_NAMES} are read")
    metadata: dict[str, Any] = {}
    for _ in range(keys):
        key = cursor.text()
        if key in metadata:
            raise _Fault(f"{key!r:.200} occurs twice")
        try:
            metadata[key] = cursor.value(cursor.take("I")[0])
        except _Fault as error:
            raise _Fault(f"{key:.200}: {error}") from error
    told = [_info(cursor) for _ in range(tensors)]
    step = metadata.get("general.alignment", ALIGNMENT)
    if not isinstance(step, int) or step < 1 or step & (step - 1):
        raise _Fault(f"general.alignment: {step!r:.40} is no power of two")
    start = -(-cursor.at // step) * step
    return Header(file, metadata, _placed(told, start, len(held)))


def _info(cursor: _Cursor) -> tuple[str, tuple[int, ...], int, int]:
    name = cursor.text()
    (count,) = cursor.take("I")
    if count > MOST_DIMS:
        raise _Fault(f"{name:.200}: has {count} dimensions; at most {MOST_DIMS} are read")
    dims = cursor.take("Q", count)
    return name, tuple(reversed(dims)), cursor.take("I")[0], cursor.take("Q")[0]


def _placed(told: list[tuple[str, tuple[int, ...], int, int]], start: int, size: int) -> dict[str, Block]:
    """Where each tensor is, within the file."""
    package, found = library(), dict[str, Block]()
    for name, shape, number, offset in told:
        if name in found:
            raise _Fault(f"{name:.200}: occurs twice")
        try:
            kind = package.GGMLQuantizationType(number)
        except ValueError as error:
            raise _Fault(f"{name:.200}: is of type {number}, which this release of gguf does not know") from error
        elements, width = package.GGML_QUANT_SIZES[kind]
        last = shape[-1] if shape else 1
        if last % elements:
            raise _Fault(f"{name:.200}: has rows of {last}, and {kind.name} has blocks of {elements}")
        begin = start + offset
        end = begin + math.prod(shape) // elements * width
        if end > size:
            raise _Fault(f"{name:.200}: claims bytes {begin} to {end} of {size}; is the file cut off?")
        found[name] = Block(kind, shape, begin, end)
    return found
