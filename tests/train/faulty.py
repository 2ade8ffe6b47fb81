"""Disks that fail: the process dies, or an error comes, at the n-th call of a save."""

import errno
import os
import signal
import warnings
from collections.abc import Callable
from pathlib import Path

from anyformer import files


class QuickDisk(files.Disk):
    """A disk that never waits: a sync shows only when the machine loses its power, which no test does."""

    def sync(self, path: Path) -> None:
        path.stat()


class CountingDisk(QuickDisk):
    """A disk that counts its calls, and lets something happen at one of them."""

    def __init__(self, at: int = 0) -> None:
        self.calls, self.at = 0, at

    def now(self) -> bool:
        self.calls += 1
        return self.calls == self.at

    def happen(self) -> None:
        """What happens at the call."""

    def folder(self, path: Path) -> None:
        if self.now():
            self.happen()
        super().folder(path)

    def create(self, path: Path) -> int:
        if self.now():
            self.happen()
        return super().create(path)

    def write(self, handle: int, piece: files.Bytes) -> None:
        if self.now():
            # In the middle: half of it is there.
            super().write(handle, memoryview(piece).cast("B")[: memoryview(piece).nbytes // 2])
            self.happen()
        super().write(handle, piece)

    def link(self, source: Path, target: Path) -> None:
        if self.now():
            self.happen()
        super().link(source, target)

    def sync(self, path: Path) -> None:
        if self.now():
            self.happen()
        super().sync(path)

    def rename(self, source: Path, target: Path) -> None:
        if self.now():
            self.happen()
        super().rename(source, target)

    def remove(self, path: Path) -> None:
        if self.now():
            if path.is_dir():
                for file in sorted(path.iterdir())[:2]:
                    file.unlink()
            self.happen()
        super().remove(path)


class DeadlyDisk(CountingDisk):
    """SIGKILL at a call."""

    def happen(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)


class BrokenDisk(CountingDisk):
    """An error at a call, once or from then on. What can't be removed stays, as `Disk.remove` promises."""

    def __init__(self, at: int, error: int = errno.ENOSPC, *, lasting: bool = False) -> None:
        super().__init__(at)
        self.error, self.lasting = error, lasting

    def now(self) -> bool:
        self.calls += 1
        return self.calls == self.at or (self.lasting and self.calls > self.at)

    def happen(self) -> None:
        raise OSError(self.error, os.strerror(self.error))

    def remove(self, path: Path) -> None:
        if not self.now():
            files.Disk.remove(self, path)


def forked(work: Callable[[], object]) -> int:
    """Do something in a child of this process, which has everything imported; how it ended, as `waitpid` says."""
    with warnings.catch_warnings():
        # The child only writes files: no thread of the parent can hold what it needs.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitpid(child, 0)[1]
