"""Checkpoints of a run: folders that are whole or not there, each with a manifest that proves it.

    RUN/checkpoints/step-00000100/   model.safetensors, spec.toml, optimizer.safetensors, ema.safetensors, state.json,
                                     manifest.json
    RUN/model.safetensors            the newest one's weights

A folder is filled as `step-N.tmp-PID`, every file synced, the manifest with sizes and SHA-256 last; then it is renamed.
Only after that are older ones deleted. Nothing but safetensors and JSON is read back, and none of it before its hash
is right.
"""

import contextlib
import hashlib
import json
import os
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

import torch
from torch import Tensor

from anyformer import files
from anyformer.data.shards import file_sha256
from anyformer.errors import CheckpointError, file_fault
from anyformer.families.shards import read_json
from anyformer.files import Bytes, Written, alive, inside, share_file, sweep, write_new
from anyformer.model.native_checkpoint import WEIGHTS
from anyformer.model.safetensors_file import DTYPES, TensorFile

NAMES = {dtype: name for name, dtype in DTYPES.items()}
"""How safetensors calls a dtype."""


@dataclass(frozen=True)
class Table:
    """What one safetensors file holds: tensors by name, and texts beside them."""

    tensors: Mapping[str, Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)

    def on_host(self) -> Self:
        """A copy on the host, which later steps don't change."""
        return replace(self, tensors={name: t.detach().to("cpu", copy=True) for name, t in self.tensors.items()})

    def pieces(self) -> Iterator[Bytes]:
        """The file from its first byte to its last. Tensors leave their device one at a time."""
        strange = sorted(f"{name} ({t.dtype})" for name, t in self.tensors.items() if t.dtype not in NAMES)
        if strange:
            raise CheckpointError(f"no place for {', '.join(strange)} in a file; known are {', '.join(DTYPES)}")
        # Wide elements first, as the library does it: each tensor then begins at a multiple of its element's size.
        order = sorted(self.tensors, key=lambda name: (-self.tensors[name].element_size(), name))
        header: dict[str, object] = {"__metadata__": dict(self.metadata)} if self.metadata else {}
        end = 0
        for name in order:
            tensor = self.tensors[name]
            begin, end = end, end + tensor.numel() * tensor.element_size()
            header[name] = {"dtype": NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
        text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % 8)
        yield len(text).to_bytes(8, "little") + text
        for name in order:
            flat = self.tensors[name].detach().cpu().contiguous().reshape(-1)
            if flat.numel():
                raw: Any = flat.view(torch.uint8).numpy()
                yield memoryview(raw)


FOLDER, MANIFEST, STATE = "checkpoints", "manifest.json", "state.json"
VERSION = 1
TEXT = 2**24
"""Bytes of the largest JSON file that is read."""
STEP = re.compile(r"step-(\d{8,15})")
LEFT = re.compile(r"step-\d{8,15}\.tmp-(\d+)")
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,99}")


@dataclass(frozen=True, kw_only=True)
class Contents:
    """What a checkpoint holds: tables and texts by the names of their files, and the state of the run."""

    tables: Mapping[str, Table]
    state: Mapping[str, Any]
    texts: Mapping[str, str]
    public: str = WEIGHTS
    """The table that the run's folder shows as its model; empty if no table is one."""
    beside: Callable[[Path], Mapping[str, Written]] = lambda _: {}
    """Called with the folder while it is filled: what other processes wrote there."""

    def on_host(self) -> Self:
        return replace(self, tables={name: table.on_host() for name, table in self.tables.items()})


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """A checkpoint whose every file is as it was written."""

    folder: Path
    step: int
    state: dict[str, Any]
    public: str
    files: tuple[str, ...]

    def read(self, name: str) -> Table:
        """A table of tensors, in memory of its own."""
        if name not in self.files:
            raise CheckpointError(f"{self.folder}: holds no {name}, only {', '.join(self.files)}")
        with TensorFile(self.folder / name) as stored:
            return Table({each: stored.read(each) for each in stored.header.tensors}, stored.header.metadata)


def name_of(step: int) -> str:
    """What the folder of a step is called."""
    return f"step-{step:08d}"


def steps_in(run: Path) -> dict[int, Path]:
    """The folders that are called checkpoints, newest first; whether they are whole is another question."""
    place = run / FOLDER
    named = [(STEP.fullmatch(each.name), each) for each in place.iterdir()] if place.is_dir() else []
    return dict(sorted(((int(match[1]), each) for match, each in named if match), reverse=True))


def last_state(run: Path) -> dict[str, Any] | None:
    """What state.json of the newest checkpoint says, before anything else of it is looked at; None: there is none."""
    for folder in steps_in(run).values():
        with contextlib.suppress(CheckpointError):
            return read_json(folder / STATE, TEXT)
    return None


def write(run: Path, step: int, contents: Contents, keep: int = 2) -> Path:
    """Save a checkpoint; its folder. Whatever goes wrong, the ones before it are as they were."""
    if keep < 2:
        raise CheckpointError(f"keep: {keep} is not at least 2: a damaged checkpoint must have one before it")
    place = run / FOLDER / name_of(step)
    made = place.with_name(f"{place.name}.tmp-{os.getpid()}")
    try:
        if not place.parent.is_dir():
            files.DISK.folder(place.parent)
            files.DISK.sync(run)
        clear(run)
        files.DISK.folder(made)
        try:
            _fill(made, step, contents)
            for later, folder in steps_in(run).items():
                if later >= step:
                    # A run that wrote this one could not use it, so it gets another name.
                    names = (f"damaged-{folder.name}{f'-{i}' if i else ''}" for i in range(10_000))
                    free = next(name for name in names if not (folder.parent / name).exists())
                    files.DISK.rename(folder, folder.parent / free)
            files.DISK.rename(made, place)
        except BaseException:
            files.DISK.remove(made)
            raise
        files.DISK.sync(place.parent)
        if contents.public:
            share_file(place / contents.public, run / WEIGHTS)
        for old in [*steps_in(run).values()][keep:]:
            # It loses its name first: a half of it is never taken for a checkpoint.
            gone = old.with_name(f"{old.name}.tmp-{os.getpid()}")
            files.DISK.rename(old, gone)
            files.DISK.remove(gone)
    except OSError as error:
        held = [each for each in steps_in(run) if each <= step]
        before = f"The one of step {held[0]} is as it was." if held else "There is none before it."
        fault = f"{place}: the checkpoint can't be saved: {file_fault(error)}. {before}"
        raise CheckpointError(f"{fault} After that the same command continues") from error
    return place


def _fill(made: Path, step: int, contents: Contents) -> None:
    written = {name: write_new(made / name, table.pieces()) for name, table in contents.tables.items()}
    texts = {**contents.texts, STATE: _json(contents.state)}
    written |= {name: write_new(made / name, [text.encode()]) for name, text in texts.items()}
    written |= contents.beside(made)
    listed = {name: {"size": each.size, "sha256": each.sha256} for name, each in sorted(written.items())}
    head = {"version": VERSION, "step": step, "public": contents.public, "files": listed}
    write_new(made / MANIFEST, [_signed(head)])
    files.DISK.sync(made)


def _signed(head: Mapping[str, Any]) -> bytes:
    """The one text that says this, with a hash of itself, so that a changed byte anywhere in it shows."""
    return _json({**head, "sha256": hashlib.sha256(_json(head).encode()).hexdigest()}).encode()


def _json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def clear(run: Path) -> None:
    """Remove what killed processes left unfinished. One that this process left has failed already."""
    place = run / FOLDER
    for each in sorted(place.iterdir()) if place.is_dir() else []:
        match = LEFT.fullmatch(each.name)
        if match and (int(match[1]) == os.getpid() or not alive(int(match[1]))):
            files.DISK.remove(each)
    sweep(run / WEIGHTS)


def newest(run: Path, warn: Callable[[str], None] | None = None) -> Checkpoint | None:
    """The newest whole checkpoint, None if there is none; damaged ones are warned of, and an error if all are."""
    faults: list[str] = []
    held = steps_in(run)
    for step, folder in held.items():
        try:
            return verify(folder, step)
        except CheckpointError as error:
            faults.append(str(error))
            (warn or warnings.warn)(f"{error}; going back to the one before it")
    if faults:
        raise CheckpointError(
            "\n  ".join([f"{run / FOLDER}: none of {len(held)} checkpoints is whole:", *faults])
            + "\nPut a good copy back, or move the folder away to begin anew"
        )
    return None


def resume(run: Path) -> Checkpoint | None:
    """The newest whole checkpoint, for the holder of the lock: leftovers of killed processes go, its model is shown."""
    clear(run)
    found = newest(run)
    if found is not None and found.public:
        try:
            share_file(found.folder / found.public, run / WEIGHTS)
        except OSError as error:
            raise CheckpointError(f"{run / WEIGHTS}: can't be written: {file_fault(error)}") from error
    return found


def verify(folder: Path, step: int, *, hashes: bool = True) -> Checkpoint:
    """Check every file of a checkpoint; `hashes=False`: another process of the run has checked their contents."""
    head = _manifest(folder / MANIFEST)
    if head["step"] != step:
        raise CheckpointError(f"{folder}: its {MANIFEST} is of step {head['step']}")
    for name, listed in head["files"].items():
        if not NAME.fullmatch(name) or name == MANIFEST:
            raise CheckpointError(f"{folder / MANIFEST}: names {name!r:.120}, which is no file of a checkpoint")
        file = inside(folder / name, folder)
        if hashes:
            _check(file, listed)
    missing = sorted({STATE, head["public"] or STATE} - head["files"].keys())
    if missing:
        raise CheckpointError(f"{folder / MANIFEST}: names no {', '.join(missing)}")
    state = read_json(folder / STATE, TEXT)
    return Checkpoint(folder=folder, step=step, state=state, public=head["public"], files=tuple(head["files"]))


def _manifest(file: Path) -> dict[str, Any]:
    data = read_json(file, TEXT)
    head = {name: value for name, value in data.items() if name != "sha256"}
    if file.read_bytes() != _signed(head):
        raise CheckpointError(f"{file}: is damaged: it is not what its own hash was made of")
    if head.get("version") != VERSION:
        raise CheckpointError(f"{file}: is of version {head.get('version')!r:.40}; this anyformer reads {VERSION}")
    fields = {"step": int, "public": str, "files": dict}
    if any(not isinstance(head.get(name), kind) for name, kind in fields.items()):
        raise CheckpointError(f"{file}: is damaged: it needs {', '.join(fields)}")
    return head


def _check(file: Path, listed: Any) -> None:
    """Refuse a file that is not what the manifest says."""
    wants: dict[str, Any] = listed if isinstance(listed, dict) else {}
    try:
        size = file.stat().st_size
        if size != wants.get("size"):
            raise CheckpointError(f"{file}: is damaged: it has {size} bytes, not {wants.get('size')!r:.40}")
        sha256 = file_sha256(file)
    except OSError as error:
        raise CheckpointError(f"{file}: can't be read: {error.strerror}") from error
    if sha256 != wants.get("sha256"):
        raise CheckpointError(f"{file}: is damaged: its SHA-256 is not the one that was written down")


class Saver:
    """Saves at once what a CPU holds; in a thread, after a copy to the host, what an accelerator holds."""

    def __init__(self, run: Path, *, keep: int = 2, background: bool = False) -> None:
        self.run, self.keep = run, keep
        self.last: int | None = None
        """The step of the last save that is complete."""
        self._pool = ThreadPoolExecutor(1, "save") if background else None
        self._flying: Future[Path] | None = None
        self._step = 0

    def save(self, step: int, contents: Contents) -> None:
        """Save a step, after the save before it. In the background this returns when all is copied."""
        self.wait()
        if step == self.last:
            return
        self._step = step
        if self._pool is None:
            write(self.run, step, contents, self.keep)
            self.last = step
        else:
            self._flying = self._pool.submit(write, self.run, step, contents.on_host(), self.keep)

    def check(self) -> None:
        """Raise what went wrong with a save that has ended since. Costs nothing: call it at every step."""
        if self._flying is not None and self._flying.done():
            self.wait()

    def wait(self) -> None:
        """Until the save that is under way is on the disk; raise what went wrong with it."""
        flying, self._flying = self._flying, None
        if flying is not None:
            flying.result()
            self.last = self._step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        try:
            # An error that is on its way out must not be hidden by that of a save.
            if error is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
