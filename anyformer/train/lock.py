"""The lock of a run's folder: one process at a time writes there."""

import errno
import fcntl
import json
import os
import socket
import time
import warnings
from pathlib import Path
from typing import Any, Self
from weakref import WeakSet

from anyformer.errors import TrainingError

LOCK_FILE = ".lock"
LOCK_BYTES = 4096
"""Bytes that are read of what a holder wrote."""
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL)


class Lock:
    """Held for the duration of a `with`: one trainer at a time writes to a run folder; TrainingError, with the holder, if
    another process has it.

    The kernel holds it, not the file: it ends with the process that took it, however that ends, and the file stays. On a
    network file system it holds between machines if the server keeps locks (NFS does since Linux 2.6.12, unless it is
    mounted with `nolock` or `local_lock`); where there are no locks at all, a warning says so.
    """

    def __init__(self, run: Path) -> None:
        self.file = run / LOCK_FILE
        self._handle = -1

    def __enter__(self) -> Self:
        handle = os.open(self.file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.pread(handle, LOCK_BYTES, 0)
            os.close(handle)
            raise TrainingError(
                f"{self.file.parent}: {_holder(holder)} is training here, and two would spoil each other's files; wait "
                "for it, stop it, or give run.folder another name"
            ) from None
        except OSError as error:
            if error.errno not in NO_LOCKS:
                os.close(handle)
                raise
            warnings.warn(
                f"{self.file.parent}: its file system keeps no locks ({error.strerror}), so nothing stops a second "
                "trainer from writing here; make sure that there is none",
                stacklevel=2,
            )
        self._handle = handle
        _held.add(self)
        holder = {"pid": os.getpid(), "host": socket.gethostname(), "started": time.strftime("%Y-%m-%d %H:%M:%S")}
        # Not a rename: the lock belongs to this file, and another of the same name would have one of its own.
        os.ftruncate(handle, 0)
        os.pwrite(handle, json.dumps(holder).encode(), 0)
        return self

    def __exit__(self, *_: object) -> None:
        """Close our end of it; the lock ends when every process has that inherited it.

        The file stays: a trainer that has just opened it would otherwise lock a file that is no longer there.
        """
        if self._handle >= 0:
            os.close(self._handle)
            self._handle = -1
            _held.discard(self)


_held: WeakSet[Lock] = WeakSet()


def _holder(holder: bytes) -> str:
    """Who holds the lock, for people; what is in the file is only a hint."""
    try:
        found: Any = json.loads(holder)
        return f"process {int(found['pid'])} on {found['host']!s:.80} (since {found['started']!s:.40})"
    except (ValueError, TypeError, KeyError, RecursionError):
        return "another process"


# A forked child inherits the lock and would hold it on after its parent died.
os.register_at_fork(after_in_child=lambda: [lock.__exit__() for lock in list(_held)])
