"""Writing that a kill can't break: a file or a folder is the old one or the new one, never something between.

Whatever anyformer saves goes through here. Each call into the file system is one function of `Disk`, so that a test
can stop the process, or fill the disk, at each of them in turn.
"""

import contextlib
import fnmatch
import hashlib
import math
import os
import re
import shutil
from collections.abc import Callable, Collection, Iterable
from pathlib import Path
from typing import Any, NamedTuple

from anyformer.errors import ADVICE, CheckpointError, InputError, file_fault, naming

Bytes = bytes | memoryview


def finite(value: Any) -> Any:
    """The same plain data, with None for every number that is not finite, as JSON has no other."""
    if isinstance(value, dict):
        return {name: finite(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


class Disk:
    """The calls into the file system that a save is made of."""

    def folder(self, path: Path) -> None:
        """Make a folder that is not there yet."""
        path.mkdir()

    def create(self, path: Path) -> int:
        """Open a file that is not there yet, to write it."""
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666)

    def write(self, handle: int, piece: Bytes) -> None:
        """Add a piece to an open file, all of it."""
        left = memoryview(piece).cast("B")
        while left:
            left = left[os.write(handle, left) :]

    def link(self, source: Path, target: Path) -> None:
        """Give a file a second name, which nothing has."""
        os.link(source, target)

    def sync(self, path: Path) -> None:
        """Wait until a file or a folder is on the disk."""
        handle = os.open(path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what has it; or a folder a name that nothing has."""
        os.replace(source, target)

    def remove(self, path: Path) -> None:
        """Delete a file or a folder that nobody looks at any more; if it can't be, it stays."""
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)


DISK = Disk()


class Written(NamedTuple):
    """What was written to a file."""

    size: int
    sha256: str


def write_new(place: Path, pieces: Iterable[Bytes]) -> Written:
    """Write a file that is not there yet, piece by piece, and wait until it is on the disk.

    It is seen while it grows: write it where nobody looks, and rename that.
    """
    size, digest = 0, hashlib.sha256()
    with naming(place):
        handle = DISK.create(place)
        try:
            for piece in pieces:
                DISK.write(handle, piece)
                digest.update(piece)
                size += memoryview(piece).nbytes
        finally:
            os.close(handle)
        DISK.sync(place)
    return Written(size, digest.hexdigest())


def share_file(source: Path, place: Path) -> None:
    """Let a place hold the same file as another, in one go: by a second name, or by a copy where that can't be."""
    beside = place.with_name(f".{place.name}.tmp-{os.getpid()}")
    sweep(place)
    DISK.remove(beside)
    with naming(place, instead=beside):
        try:
            try:
                DISK.link(source, beside)
            except OSError:
                # Some file systems know no second names, and some allow only so many.
                with source.open("rb") as stored:
                    write_new(beside, iter(lambda: stored.read(2**24), b""))
            DISK.rename(beside, place)
            DISK.sync(place.parent)
        finally:
            DISK.remove(beside)


def replace_file(place: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, sync it, and rename it over the old one."""
    beside = place.with_name(f".{place.name}.tmp-{os.getpid()}")
    with naming(place, instead=beside):
        try:
            # Some writers make files that only their owner can read; it should be as readable as any other new file.
            beside.touch()
            mode = beside.stat().st_mode
            write(beside)
            beside.chmod(mode)
            DISK.sync(beside)
            DISK.rename(beside, place)
            DISK.sync(place.parent)
        finally:
            DISK.remove(beside)


class NewFolder:
    """A folder that is filled out of sight and takes its place at once, as a whole.

    Used in a `with`: the folder that had the place stays until `commit`, and an error leaves it as it was. While it
    is filled it is called `.NAME.tmp-PID`, complete `.NAME.new-PID`, and the one that it replaces `.NAME.old-PID`.
    A kill between two renames leaves the place empty; `settle` then finishes the move.

    Only a folder that holds nothing but `names` is replaced: what somebody else put there is never deleted. In a name,
    `*` and `?` stand for any characters.
    """

    def __init__(self, place: str | Path, names: Collection[str]) -> None:
        if Path(place).name in ("", ".."):
            raise InputError(f"{str(place)!r} names no new folder; give one such as runs/mine")
        # Behind a link it is the folder itself that is replaced, not the link.
        self.place, self.names = Path(place).resolve(), frozenset(names)
        self.path = self._beside("tmp")

    def _beside(self, state: str) -> Path:
        return self.place.with_name(f".{self.place.name}.{state}-{os.getpid()}")

    def __enter__(self) -> "NewFolder":
        self._check()
        try:
            self.place.parent.mkdir(parents=True, exist_ok=True)
            settle(self.place)
            sweep(self.place)
            DISK.remove(self.path)
            DISK.folder(self.path)
        except OSError as error:
            # The folder that is filled first is nobody's business.
            named = None if error.filename in (None, str(self.path)) else error.filename
            fault = file_fault(OSError(error.errno, error.strerror or str(error), named))
            advice = "" if (error.errno or 0) in ADVICE else "; choose another place"
            raise InputError(f"{self.place}: can't be written: {fault}{advice}") from error
        return self

    def _check(self) -> None:
        """Refuse a place that holds what is not ours to replace."""
        if not self.place.is_dir():
            if os.path.lexists(self.place):
                raise InputError(f"{self.place}: is a file; give the name of a folder")
            return
        held = sorted(file.name for file in self.place.iterdir())
        strange = [name for name in held if not any(fnmatch.fnmatchcase(name, known) for known in self.names)]
        if strange:
            raise InputError(
                f"{self.place}: holds {', '.join(strange[:3])}{' and more' if len(strange) > 3 else ''}, which would be "
                "lost; move it, or pick another folder"
            )

    def __exit__(self, *_: object) -> None:
        new, old = self._beside("new"), self._beside("old")
        if not os.path.lexists(self.place) and old.exists():
            DISK.rename(old, self.place)
        for left in (self.path, new, old):
            DISK.remove(left)

    def commit(self) -> None:
        """Take the place."""
        self._check()
        for file in sorted(self.path.iterdir()):
            DISK.sync(file)
        DISK.sync(self.path)
        new, old = self._beside("new"), self._beside("old")
        DISK.rename(self.path, new)
        if self.place.exists():
            DISK.rename(self.place, old)
        DISK.rename(new, self.place)
        DISK.sync(self.place.parent)


def settle(place: str | Path) -> Path:
    """Finish a move that a kill interrupted: if nothing has the place, a complete new folder takes it, else the old one."""
    place = Path(place)
    if not os.path.lexists(place):
        for left in [*_left_beside(place, "new"), *_left_beside(place, "old")][:1]:
            DISK.rename(left, place)
    return place


def inside(file: Path, folder: Path) -> Path:
    """The file, unless it is a link that leads out of its folder.

    In the local cache of the Hugging Face hub the files of a snapshot are links into the repository's own `blobs`.
    """
    root, real = folder.resolve(), file.resolve()
    # The folder may be one within the snapshot.
    snapshots = [place for place in (root, root.parent) if place.parent.name == "snapshots"]
    homes = [root, *(place.parent.parent / "blobs" for place in snapshots)]
    if not any(real.is_relative_to(home) for home in homes):
        raise CheckpointError(
            f"{file}: is a link to {real}, outside of its folder; copy the file there if you trust it"
        )
    return file


def sweep(place: Path) -> None:
    """Remove what dead processes left beside a place that is taken."""
    for left in _left_beside(place, "tmp", "new", "old"):
        DISK.remove(left)


def _left_beside(place: Path, *states: str) -> list[Path]:
    """What processes that are dead have left beside a place."""
    named = re.compile(rf"\.{re.escape(place.name)}\.({'|'.join(states)})-(\d+)")
    if not place.parent.is_dir():
        return []
    found = [(left, named.fullmatch(left.name)) for left in sorted(place.parent.iterdir())]
    return [left for left, match in found if match and not alive(int(match[2]))]


def alive(process: int) -> bool:
    """Whether a process of this machine has the number."""
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to someone else, so it is there.
        return True
    return True
