"""A folder of shards: examples as memory-mapped arrays, and an index that says what they are and how to check them.

Arrays grow on the disk and appear whole, one shard after the other.
"""

import contextlib
import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from anyformer import files
from anyformer.data.dataset import Examples, Ragged
from anyformer.data.tokenizer import FILE as TOKENIZER
from anyformer.data.tokenizer import SOURCE, Tokenizer, tokenizer
from anyformer.errors import DataError, naming, nearest

INDEX = "index.json"
JOURNAL = "journal.json"
VERSION = 1
TWO = 2
"""Version of an index with two tokenizers: who reads version 1 alone would take the target's for both."""
PARTS = ("train", "valid", "test")
NAMED = re.compile(r"(train|valid|test)-\d{5,}\.[a-z]+(\.bounds)?\.npy")
"""Names of the arrays of shards. Nothing else is opened, so an index can't lead out of its folder."""
CHECKED = 2**30
"""Bytes up to which a part is hashed whenever it is opened; of a larger one only sizes are compared unless asked."""
LARGEST = 256 * 2**20
"""Bytes of the largest index that is read."""


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of the examples: those to learn from, those to watch, those to be judged on."""

    examples: int
    values: Mapping[str, int]
    """How many numbers each column has in all."""
    bytes: int
    fingerprint: str
    shards: tuple[Mapping[str, Any], ...]
    """For each shard: examples, bytes, and for each column the arrays `values` and `bounds` (file, size, sha256)."""


@dataclass(frozen=True, kw_only=True)
class Index:
    """What is in a folder of shards."""

    folder: Path
    format: str
    columns: Mapping[str, str]
    """The dtype of each column."""
    names: Mapping[str, tuple[str, ...]]
    """Names of the classes of columns that hold labels or tags."""
    parts: Mapping[str, Part]
    vocab: int
    """How many ids the tokenizer has, 0 if there is none."""
    ids: Mapping[str, int]
    """Ids of special tokens by their role: pad, bos, eos, unk, mask, cls, sep."""
    sentinels: tuple[int, ...]
    """Ids of <extra_id_0>, <extra_id_1> and so on."""
    tokenizer_sha256: str | None
    inputs: tuple[Mapping[str, Any], ...]
    """Name, size and sha256 of each file that the examples came from."""
    options: Mapping[str, Any]
    source_vocab: int = 0
    """How many ids the tokenizer of the column `source` has, 0 if it has none of its own; `vocab` is then the target's."""
    source_ids: Mapping[str, int] = field(default_factory=dict)
    """Ids of its special tokens by their role."""
    source_sha256: str | None = None

    def tokenizer(self) -> Tokenizer:
        """The tokenizer that made the ids, checked against the index."""
        if self.tokenizer_sha256 is None:
            raise DataError(f"{self.folder}: holds numbers, which have no tokenizer")
        return self._checked(TOKENIZER, self.tokenizer_sha256)

    def source_tokenizer(self) -> Tokenizer | None:
        """The tokenizer that made the ids of the column `source`, if that has one of its own."""
        return None if self.source_sha256 is None else self._checked(SOURCE, self.source_sha256)

    def _checked(self, name: str, sha256: str) -> Tokenizer:
        place = self.folder / name
        if not place.is_file() or file_sha256(place) != sha256:
            what = "is not the one that the ids were made with" if place.is_file() else "is missing"
            raise DataError(f"{place}: {what}; bring back the file, or run anyformer tokenize into a new folder")
        return tokenizer(place)


def file_sha256(path: Path) -> str:
    """The SHA-256 of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_index(folder: str | Path) -> Index:
    """Read and check the index of a folder of shards."""
    folder = Path(folder)
    place = folder / INDEX
    if not place.is_file():
        unfinished = (folder / JOURNAL).is_file()
        what = "is unfinished" if unfinished else f"holds no {INDEX}" if folder.is_dir() else "there is no such folder"
        way = "run its command again, it goes on where it stopped" if unfinished else "make one with anyformer tokenize"
        raise DataError(f"{folder}: {what}; {way}")
    if place.stat().st_size > LARGEST:
        raise DataError(f"{place}: has {place.stat().st_size:,} bytes; an index of more than {LARGEST:,} is not read")
    try:
        found = json.loads(place.read_bytes())
        version = found["version"]
        if version not in (VERSION, TWO):
            raise DataError(f"{place}: is of version {version!r}; this anyformer reads versions {VERSION} and {TWO}")
        made = found["tokenizer"] or {"sha256": None, "vocab": 0}
        own = found.get("source_tokenizer") or {"sha256": None, "vocab": 0, "ids": {}}
        index = Index(
            folder=folder, format=str(found["format"]), columns=dict(found["columns"]),
            names={c: tuple(map(str, names)) for c, names in found["names"].items()},
            parts={name: _part(part, list(found["columns"])) for name, part in found["parts"].items()},
            vocab=int(made["vocab"]), ids={r: int(i) for r, i in found["ids"].items()},
            sentinels=tuple(map(int, found["sentinels"])), tokenizer_sha256=made["sha256"],
            inputs=tuple(found["inputs"]), options=dict(found["options"]), source_vocab=int(own["vocab"]),
            source_ids={r: int(i) for r, i in own["ids"].items()}, source_sha256=own["sha256"],
        )  # fmt: skip
        for dtype in set(index.columns.values()) - {"uint16", "uint32", "int32", "float32"}:
            raise ValueError(f"a column of {dtype!r}")
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        if isinstance(error, DataError):
            raise
        what = f"{error} is missing" if isinstance(error, KeyError) else error
        raise DataError(f"{place}: is damaged: {what}; run anyformer tokenize into a new folder") from error
    return index


def _part(found: Any, columns: list[str]) -> Part:
    for shard in found["shards"]:
        for name in [shard["files"][column][what]["file"] for column in columns for what in ("values", "bounds")]:
            if not NAMED.fullmatch(name):
                raise ValueError(f"{name!r} is no name of a shard")
    return Part(
        examples=int(found["examples"]), values={c: int(found["values"][c]) for c in columns},
        bytes=int(found["bytes"]), fingerprint=str(found["fingerprint"]), shards=tuple(found["shards"]),
    )  # fmt: skip


def open_examples(folder: str | Path, part: str, *, verify: bool | None = None) -> Examples:
    """A part of a tokenized folder, memory-mapped; sizes are always checked, hashes if `verify` or up to 1 GiB."""
    index = open_index(folder)
    if part not in index.parts:
        raise DataError(f"{folder}: has no part {part!r}{nearest(part, index.parts)}")
    chosen = index.parts[part]
    arrays = arrays_of(chosen.shards)
    if verify is None:
        verify = sum(int(array["size"]) for array in arrays) <= CHECKED
    for array in arrays:
        check_array(index.folder, array, verify=verify)
    pieces = {
        column: [_ragged(index.folder, shard, column, dtype) for shard in chosen.shards]
        for column, dtype in index.columns.items()
    }
    return Examples(pieces, names=index.names, fingerprint=chosen.fingerprint, bytes=chosen.bytes)


def arrays_of(shards: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What an index says of every array of some shards."""
    return [array for shard in shards for both in shard["files"].values() for array in both.values()]


def check_array(folder: Path, array: Mapping[str, Any], *, verify: bool) -> None:
    """Compare a file with what the index says of it."""
    place = folder / array["file"]
    if not place.is_file():
        raise DataError(f"{place}: is missing; run anyformer tokenize into a new folder")
    size = place.stat().st_size
    if size != array["size"]:
        raise DataError(f"{place}: is damaged: it has {size:,} bytes and should have {array['size']:,}; make it again")
    if verify and file_sha256(place) != array["sha256"]:
        raise DataError(f"{place}: is damaged: its bytes are not those that were written (SHA-256); make it again")


def _ragged(folder: Path, shard: Mapping[str, Any], column: str, dtype: str) -> Ragged:
    values, ends = (folder / shard["files"][column][what]["file"] for what in ("values", "bounds"))
    values_N, bounds = _mapped(values, dtype), _mapped(ends, "int64")
    if len(bounds) != shard["examples"] + 1 or bounds[0] != 0 or bounds[-1] != len(values_N):
        raise DataError(f"{ends}: is damaged: its bounds don't fit the values")
    return Ragged(values_N, bounds)


def _mapped(place: Path, dtype: str) -> Any:
    try:
        # As a plain array: an element of a memmap takes ten times as long to read.
        array = np.asarray(np.load(place, mmap_mode="r", allow_pickle=False))
    except (ValueError, OSError, EOFError) as error:
        raise DataError(f"{place}: is damaged: {error}; make it again") from error
    if array.dtype != np.dtype(dtype) or array.ndim != 1:
        raise DataError(f"{place}: is damaged: it holds {array.ndim}-dimensional {array.dtype}, not {dtype}")
    return array


Shards = list[dict[str, Any]]
HEADER = 128
"""Bytes of the header of an array: always the same, so that the length can be filled in at the end."""


def npy_header(dtype: str, length: int) -> bytes:
    """The header of a one-dimensional .npy file, which numpy pads to a fixed size."""
    header = io.BytesIO()
    told = {"descr": np.dtype(dtype).newbyteorder("<").str, "fortran_order": False, "shape": (length,)}
    np.lib.format.write_array_header_1_0(header, told)
    return header.getvalue()


class GrowingArray:
    """A .npy file that is written piece by piece under another name, and takes its own when it is whole."""

    def __init__(self, place: Path, dtype: str) -> None:
        self.place, self.dtype, self.length = place, dtype, 0
        self._beside = place.with_name(f".{place.name}.tmp-{os.getpid()}")
        # Errors name the file that is being made.
        self._naming = partial(naming, place, instead=self._beside)
        files.DISK.remove(self._beside)
        with self._naming():
            self._handle = files.DISK.create(self._beside)
        os.lseek(self._handle, HEADER, os.SEEK_SET)

    def add(self, values_N: Any) -> None:
        self.length += len(values_N)
        stored_N = np.ascontiguousarray(values_N, np.dtype(self.dtype).newbyteorder("<"))
        if len(stored_N):
            with self._naming():
                files.DISK.write(self._handle, stored_N.data)

    def finish(self) -> dict[str, Any]:
        """Take the place: what an index says of the file."""
        with self._naming():
            os.lseek(self._handle, 0, os.SEEK_SET)
            files.DISK.write(self._handle, npy_header(self.dtype, self.length))
            files.DISK.sync(self._beside)
            told = {"file": self.place.name, "size": self._beside.stat().st_size, "sha256": file_sha256(self._beside)}
            files.DISK.rename(self._beside, self.place)
        return told

    def close(self) -> None:
        """Forget what is not finished."""
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
        files.DISK.remove(self._beside)


class ShardWriter:
    """The shards of one part. A shard ends with the example that fills it, so an example is never in two shards."""

    def __init__(
        self,
        folder: Path,
        part: str,
        dtypes: Mapping[str, str],
        *,
        size: int,
        finished: Shards,
        done: Callable[[], None],
    ) -> None:
        """`size` is how many values fill a shard; `finished` grows by each shard, and then `done` is called."""
        self.folder, self.part, self.dtypes, self.size = folder, part, dict(dtypes), size
        self.finished, self.done = finished, done
        self._arrays: dict[str, GrowingArray] = {}
        self._bounds: dict[str, list[Any]] = {}
        self._bytes = 0

    def add(self, columns: Mapping[str, Ragged], *, bytes: Any, more: Any) -> None:
        """Examples in order, with the bytes of each; one that goes on (`more`) is finished by the next."""
        totals, start = np.sum([np.diff(columns[column].bounds) for column in self.dtypes], axis=0), 0
        while start < len(bytes):
            if not self._arrays:
                self._bounds = {c: [np.zeros(1, np.int64)] for c in self.dtypes}
                for column, dtype in self.dtypes.items():
                    self._arrays[column] = GrowingArray(self._place(column), dtype)
            before = sum(array.length for array in self._arrays.values())
            full = np.flatnonzero((before + np.cumsum(totals[start:]) >= self.size) & ~more[start:])
            stop = start + int(full[0]) + 1 if len(full) else len(bytes)
            ends = ~more[start:stop]
            for column, array in self._arrays.items():
                bounds = columns[column].bounds[start : stop + 1]
                self._bounds[column].append((array.length + bounds[1:] - bounds[0])[ends])
                array.add(columns[column].values_N[bounds[0] : bounds[-1]])
            self._bytes += int(bytes[start:stop].sum())
            if len(full):
                self.finish()
            start = stop

    def _place(self, column: str, what: str = "") -> Path:
        return self.folder / f"{self.part}-{len(self.finished):05d}.{column}{what}.npy"

    def finish(self) -> None:
        """End the shard, if one has begun."""
        if not self._arrays:
            return
        examples = sum(map(len, next(iter(self._bounds.values())))) - 1
        values = {c: array.length for c, array in self._arrays.items()}
        told: dict[str, Any] = {"examples": examples, "bytes": self._bytes, "values": values, "files": {}}
        for column, array in self._arrays.items():
            with contextlib.closing(GrowingArray(self._place(column, ".bounds"), "int64")) as bounds:
                bounds.add(np.concatenate(self._bounds[column]))
                told["files"][column] = {"values": array.finish(), "bounds": bounds.finish()}
        files.DISK.sync(self.folder)
        self.close()
        self.finished.append(told)
        self.done()

    def close(self) -> None:
        """Forget the shard that has begun."""
        for array in self._arrays.values():
            array.close()
        self._arrays, self._bounds, self._bytes = {}, {}, 0
