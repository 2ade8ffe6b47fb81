"""Writing shards: arrays that grow on the disk and appear whole, one shard after the other."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from anyformer import files
from anyformer.data.dataset import Ragged
from anyformer.data.shards import file_sha256
from anyformer.errors import naming

BUFFER = 2**20
"""Values that are collected before they go to the disk."""
HEADER = 128
"""Bytes of the header of an array: always the same, so that the length can be filled in at the end."""


def npy_header(dtype: str, length: int) -> bytes:
    """The header of a one-dimensional .npy file, padded to a fixed size."""
    told = f"{{'descr': '{np.dtype(dtype).newbyteorder('<').str}', 'fortran_order': False, 'shape': ({length},), }}"
    magic = b"\x93NUMPY\x01\x00"
    room = HEADER - len(magic) - 2
    return magic + room.to_bytes(2, "little") + told.encode().ljust(room - 1) + b"\n"


class GrowingArray:
    """A .npy file that is written piece by piece under another name, and takes its own when it is whole."""

    def __init__(self, place: Path, dtype: str) -> None:
        self.place, self.dtype, self.length = place, dtype, 0
        self._beside = place.with_name(f".{place.name}.tmp-{os.getpid()}")
        self._kept: list[Any] = []
        self._waiting = 0
        files.DISK.remove(self._beside)
        with self._naming():
            self._handle: int | None = files.DISK.create(self._beside)
            try:
                files.DISK.write(self._handle, npy_header(dtype, 0))
            except BaseException:
                self.drop()
                raise

    def _naming(self) -> AbstractContextManager[None]:
        """Errors name the file that is being made."""
        return naming(self.place, instead=self._beside)

    def add(self, values_N: Any) -> None:
        """More values at the end."""
        self._kept.append(values_N)
        self._waiting += len(values_N)
        self.length += len(values_N)
        if self._waiting >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        if self._waiting and self._handle is not None:
            whole_N: Any = np.ascontiguousarray(np.concatenate(self._kept), np.dtype(self.dtype).newbyteorder("<"))
            with self._naming():
                files.DISK.write(self._handle, memoryview(whole_N).cast("B"))
        self._kept, self._waiting = [], 0

    def finish(self) -> dict[str, Any]:
        """Take the place: what an index says of the file."""
        self._flush()
        with self._naming():
            if self._handle is not None:
                os.lseek(self._handle, 0, os.SEEK_SET)
                files.DISK.write(self._handle, npy_header(self.dtype, self.length))
                os.close(self._handle)
                self._handle = None
            files.DISK.sync(self._beside)
            told = {"file": self.place.name, "size": self._beside.stat().st_size, "sha256": file_sha256(self._beside)}
            files.DISK.rename(self._beside, self.place)
        return told

    def drop(self) -> None:
        """Forget what is not finished."""
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
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
        finished: list[dict[str, Any]],
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
        told: dict[str, Any] = {
            "examples": sum(map(len, next(iter(self._bounds.values())))) - 1,
            "bytes": self._bytes,
            "values": {c: array.length for c, array in self._arrays.items()},
            "files": {},
        }
        for column, array in self._arrays.items():
            bounds = GrowingArray(self._place(column, ".bounds"), "int64")
            try:
                bounds.add(np.concatenate(self._bounds[column]))
                told["files"][column] = {"values": array.finish(), "bounds": bounds.finish()}
            finally:
                bounds.drop()
        files.DISK.sync(self.folder)
        self._arrays, self._bounds, self._bytes = {}, {}, 0
        self.finished.append(told)
        self.done()

    def drop(self) -> None:
        """Forget the shard that has begun."""
        for array in self._arrays.values():
            array.drop()
        self._arrays = {}
