"""Writing that a kill can't break: a file or a folder is the old one or the new one, never something between.

Whatever anyformer saves goes through here. Each call into the file system is one function of `Disk`, so that a test
can stop the process, or fill the disk, at each of them in turn.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import TracebackType


class Disk:
    """The calls into the file system that a save is made of."""

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


def replace_file(place: Path, write: Callable[[Path], object]) -> None:
    """Write a file beside its place, sync it, and rename it over the old one."""
    beside = place.with_name(f".{place.name}.tmp-{os.getpid()}")
    try:
        write(beside)
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
    """

    def __init__(self, place: str | Path) -> None:
        self.place = Path(place)
        self.path = self._beside("tmp")

    def _beside(self, state: str) -> Path:
        return self.place.with_name(f".{self.place.name}.{state}-{os.getpid()}")

    def __enter__(self) -> NewFolder:
        self.place.parent.mkdir(parents=True, exist_ok=True)
        settle(self.place)
        _sweep(self.place)
        DISK.remove(self.path)
        self.path.mkdir()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        DISK.remove(self.path)

    def commit(self) -> None:
        """Take the place."""
        for file in sorted(self.path.iterdir()):
            DISK.sync(file)
        DISK.sync(self.path)
        new, old = self._beside("new"), self._beside("old")
        DISK.rename(self.path, new)
        if self.place.exists():
            DISK.rename(self.place, old)
        DISK.rename(new, self.place)
        DISK.sync(self.place.parent)
        DISK.remove(old)


def settle(place: str | Path) -> Path:
    """Finish a move that a kill interrupted: if nothing has the place, a complete new folder takes it, else the old one."""
    place = Path(place)
    if not os.path.lexists(place):
        for state in ("new", "old"):
            for left in sorted(place.parent.glob(f".{place.name}.{state}-*")):
                DISK.rename(left, place)
                return place
    return place


def _sweep(place: Path) -> None:
    """Remove what dead processes left beside a place that is taken."""
    for left in place.parent.glob(f".{place.name}.*-*"):
        owner = left.name.rpartition("-")[2]
        states = {f".{place.name}.{state}-{owner}" for state in ("tmp", "new", "old")}
        if left.name in states and owner.isdigit() and not _alive(int(owner)):
            DISK.remove(left)


def _alive(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except OSError:
        # It belongs to someone else, so it is there.
        return True
    return True
