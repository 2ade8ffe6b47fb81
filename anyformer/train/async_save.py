"""Saving while a run goes on: at most one save is under way, and one that failed is heard of at the next step."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from types import TracebackType

from anyformer.train.checkpoint import Contents, write


class Saver:
    """Saves checkpoints of one run, at once or in a thread of its own.

    On a CPU a save takes less time than the copy that a thread would need, so it is done at once. What an accelerator
    holds is copied to the host first, and written while the next steps run.
    """

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

    def __enter__(self) -> Saver:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            # An error that is on its way out must not be hidden by that of a save.
            if error is None:
                self.wait()
        finally:
            if self._pool is not None:
                self._pool.shutdown(wait=True)
