"""Writing shards: arrays that grow on the disk and appear whole, one shard after the other."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np

from anyformer import files
from anyformer.data.dataset import Ragged
from anyformer.data.scan import Layout, Survey
from anyformer.data.shards import (
    INDEX,
    JOURNAL,
    NAMED,
    SOURCE,
    TOKENIZER,
    VERSION,
    Index,
    arrays_of,
    check_array,
    file_sha256,
    open_index,
)
from anyformer.data.tokenizer import Tokenizer, tokenizer
from anyformer.errors import DataError, InputError, naming

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
        self._kept, self._waiting = list[Any](), 0
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
        examples = sum(map(len, next(iter(self._bounds.values())))) - 1
        values = {c: array.length for c, array in self._arrays.items()}
        told: dict[str, Any] = {"examples": examples, "bytes": self._bytes, "values": values, "files": {}}
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


LEFT = re.compile(r"\..+\.tmp-\d+")
"""Names of files that a killed process had not finished."""


class Journal:
    """What is done so far, in the folder itself: whole shards, and what they were made of."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.shards: dict[str, list[dict[str, Any]]] = {}
        self._told: dict[str, Any] = {}
        _check_ours(folder)
        place, self._found = folder / JOURNAL, _state(folder)
        if place.is_file():
            try:
                found = json.loads(place.read_bytes())
                self._told = {key: found[key] for key in ("asked", "survey", "tokenizer", "shards")}
                self._told["source_tokenizer"] = found.get("source_tokenizer")
            except (ValueError, KeyError, TypeError) as error:
                raise DataError(f"{place}: is damaged; remove the folder {folder} and begin anew") from error

    def finished(self, asked: Mapping[str, Any]) -> Index | None:
        """The index of a folder that is complete already."""
        if not (self.folder / INDEX).is_file():
            return None
        index = open_index(self.folder)
        self._compare({"inputs": [dict(i) for i in index.inputs], "options": dict(index.options)}, asked)
        if (self.folder / JOURNAL).is_file():
            files.DISK.remove(self.folder / JOURNAL)
        return index

    def survey(self, asked: Mapping[str, Any]) -> Survey | None:
        """What an interrupted run found, if the files and what is asked for are still the same."""
        if not self._told:
            return None
        try:
            self._compare(self._told["asked"], asked)
        except InputError:
            if any(self._told["shards"].values()):
                raise
            # Nothing is lost: no shard was finished, as when the first try had an option wrong.
            self._told = {}
            return None
        found = dict(self._told["survey"])
        names = {role: tuple(known) for role, known in found.pop("names").items()}
        return Survey(layout=Layout(fields=found.pop("fields")), names=names, **found)

    def _compare(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        was, now = old["options"], new["options"]
        differs = [f"{key} was {was.get(key)!r} and is {now[key]!r}" for key in now if was.get(key) != now[key]]
        before, given = ({(i["part"], i["name"], i["label"], i["sha256"]) for i in one["inputs"]} for one in (old, new))
        differs += [f"the {part} file {name} is another" for part, name, *_ in sorted(given - before, key=str)]
        differs += [f"the {part} file {name} was there" for part, name, *_ in sorted(before - given, key=str)]
        if not differs and old["inputs"] != new["inputs"]:
            differs.append("the order of the files is another")
        if differs:
            what = "; ".join(differs)
            raise InputError(f"{self.folder}: was made of something else: {what}; pick another folder, or remove it")

    def tokenizer(self, name: str) -> Tokenizer | None:
        """A tokenizer of an interrupted run, by the name of its file."""
        place = self.folder / name
        whole = self._told and place.is_file() and file_sha256(place) == self._told[place.stem]
        return tokenizer(place) if whole else None

    @contextlib.contextmanager
    def begun(
        self, asked: Any, survey: Survey, made: Tokenizer | None, source: Tokenizer | None, parts: Iterable[str]
    ) -> Iterator[dict[str, list[dict[str, Any]]]]:
        """The shards of each part so far, in a folder that nobody else writes to meanwhile."""
        self.folder.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.folder, os.O_RDONLY)
        try:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise InputError(f"{self.folder}: another process writes to it; wait, or pick another") from error
            if _state(self.folder) != self._found:
                # Going on from what was read before would remove shards that were finished since.
                raise InputError(f"{self.folder}: another process wrote to it meanwhile; run the command again")
            sha256: dict[str, str | None] = {"tokenizer": None, "source_tokenizer": None}
            for place, one in ((self.folder / TOKENIZER, made), (self.folder / SOURCE, source)):
                if one is not None:
                    one.save(place)
                    sha256[place.stem] = file_sha256(place)
            same = all(self._told.get(name) == digest for name, digest in sha256.items())
            told = self._told.get("shards", {}) if same else {}
            self.shards = {part: self._whole(told.get(part, [])) for part in parts}
            found = {name: getattr(survey, name) for name in ("names", "documents", "characters")}
            found["fields"] = dict(survey.layout.fields)
            self._told = {"asked": asked, "survey": found, **sha256, "shards": self.shards}
            self._sweep()
            self.note()
            yield self.shards
        finally:
            os.close(handle)

    def _whole(self, shards: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """The shards up to the first that is damaged."""
        for i, shard in enumerate(shards):
            try:
                for array in arrays_of([shard]):
                    check_array(self.folder, array, verify=True)
            except DataError:
                return shards[:i]
        return list(shards)

    def _sweep(self) -> None:
        """Remove what a killed process left: arrays that no journal speaks of."""
        known = {array["file"] for some in self.shards.values() for array in arrays_of(some)}
        for file in self.folder.iterdir():
            if (NAMED.fullmatch(file.name) and file.name not in known) or LEFT.fullmatch(file.name):
                files.DISK.remove(file)

    def note(self) -> None:
        _write_json(self.folder / JOURNAL, {"version": VERSION, **self._told})

    def finish(self, index: dict[str, Any]) -> Index:
        """The index, last of all."""
        _write_json(self.folder / INDEX, index)
        files.DISK.remove(self.folder / JOURNAL)
        return open_index(self.folder)


def _state(folder: Path) -> list[Any]:
    """What tells one state of a folder from another: every note of progress is a new file."""
    state: list[Any] = []
    for name in (INDEX, JOURNAL):
        with contextlib.suppress(FileNotFoundError):
            found = (folder / name).stat()
            state.append((name, found.st_ino, found.st_mtime_ns, found.st_size))
    return state


def _check_ours(folder: Path) -> None:
    """Refuse a folder that holds what is not ours, or nothing of ours."""
    if not folder.is_dir():
        if os.path.lexists(folder):
            raise InputError(f"{folder}: is a file; give the name of a folder")
        return
    ours = {INDEX, JOURNAL, TOKENIZER, SOURCE}
    names = sorted({file.name for file in folder.iterdir()} - ours)
    strange = [name for name in names if not NAMED.fullmatch(name) and not LEFT.fullmatch(name)]
    if strange:
        raise InputError(f"{folder}: holds {', '.join(strange[:3])}, which is not ours; pick another folder")


def _write_json(place: Path, value: Any) -> None:
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    files.replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8"))
