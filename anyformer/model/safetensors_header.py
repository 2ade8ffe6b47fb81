"""The header of a safetensors file, checked before any tensor is touched: sizes, names and offsets are claims.

The library checks most of this too; here a fault is named with its tensor, a name may occur once only, and nothing is
allocated on the word of a file. No torch.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.errors import CheckpointError

MOST = 2**25
"""Bytes of the longest header that is parsed; a thousand layers need less than one million."""
SIZES = {
    "BOOL": 1, "U8": 1, "I8": 1, "F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I16": 2, "U16": 2, "F16": 2, "BF16": 2, "I32": 4, "U32": 4,
    "F32": 4, "I64": 8, "U64": 8, "F64": 8,
}  # fmt: skip
"""Bytes of an element."""


@dataclass(frozen=True)
class Place:
    """What a header says of one tensor."""

    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


@dataclass(frozen=True)
class Header:
    """A header that holds together."""

    tensors: dict[str, Place]
    metadata: dict[str, str]
    start: int
    """Where in the file the tensors begin: their offsets count from here."""


class _Fault(Exception):
    pass


def read_header(file: Path) -> Header:
    """The header of a file; CheckpointError, with the tensor, if it can't be trusted."""
    try:
        size = file.stat().st_size
        with file.open("rb") as stored:
            length = int.from_bytes(stored.read(8), "little")
            if size < 8 or length > size - 8:
                raise _Fault(f"{size} bytes are too few for it; is it cut off?")
            if length > MOST:
                raise _Fault(f"its header claims {length} bytes; at most {MOST} are read")
            text = stored.read(length)
        return _checked(json.loads(text, object_pairs_hook=_once), 8 + length, size)
    except OSError as error:
        raise CheckpointError(f"{file}: can't be read: {error.strerror}") from error
    except _Fault as error:
        raise CheckpointError(f"{file}: is damaged: {error}") from error
    except (ValueError, RecursionError) as error:
        raise CheckpointError(f"{file}: is damaged: its header is not JSON: {error}") from error


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A table, in which no name occurs twice: readers would disagree on which one counts."""
    table = dict(pairs)
    if len(table) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _Fault(f"{twice!r:.200} occurs twice in its header")
    return table


def _checked(header: Any, start: int, size: int) -> Header:
    room = size - start
    if not isinstance(header, Mapping):
        raise _Fault(f"its header holds {type(header).__name__}, not a table")
    found = dict(header)
    metadata = found.pop("__metadata__", {})
    if not isinstance(metadata, Mapping) or not all(isinstance(value, str) for value in metadata.values()):
        raise _Fault("__metadata__ is not a table of texts")
    tensors = {name: _place(name, told, room) for name, told in found.items()}
    end = 0
    for name, place in sorted(tensors.items(), key=lambda pair: (pair[1].begin, pair[1].end)):
        if place.begin != end:
            why = "overlaps the one before it" if place.begin < end else f"leaves {place.begin - end} bytes before it"
            raise _Fault(f"{name:.200}: begins at {place.begin} and {why}")
        end = place.end
    if end != room:
        raise _Fault(f"its tensors end at {end}, and its data at {room}")
    return Header(tensors, dict(metadata), start)


def _place(name: str, told: Any, room: int) -> Place:
    fields: Any = told if isinstance(told, Mapping) else {}
    dtype: Any = fields.get("dtype")
    shape: Any = fields.get("shape")
    offsets: Any = fields.get("data_offsets")
    if not isinstance(dtype, str) or not _wholes(shape) or not _wholes(offsets) or len(offsets) != 2:
        raise _Fault(f"{name:.200}: its header entry needs a dtype, a shape and two data_offsets")
    if dtype not in SIZES:
        raise _Fault(f"{name:.200}: is of dtype {dtype!r:.40}, which is none of {', '.join(SIZES)}")
    begin, end = offsets
    if not begin <= end <= room:
        raise _Fault(f"{name:.200}: claims bytes {begin} to {end} of {room}; is the file cut off?")
    size = math.prod(shape) * SIZES[dtype]
    if size != end - begin:
        raise _Fault(f"{name:.200}: its shape takes {size} bytes, its offsets {end - begin}")
    return Place(dtype, tuple(shape), begin, end)


def _wholes(value: Any) -> bool:
    """Whether it is a short list of sizes."""
    fits = isinstance(value, list) and len(value) <= 8
    return fits and all(isinstance(n, int) and not isinstance(n, bool) and 0 <= n < 2**62 for n in value)
