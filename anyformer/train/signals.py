"""Stopping in good order: the first SIGTERM or Ctrl-C asks for a stop after the current step, a second one is at once.

What is saved before the end is the run's business; here a signal only becomes something that a loop can ask for.
"""

import os
import signal
import threading
import time
from types import FrameType
from typing import Any, Self

SIGNALS = (signal.SIGTERM, signal.SIGINT)
APART = 1.0
"""Seconds within which a second signal is the first one again: torchrun passes on a Ctrl-C that everyone got already."""


class StopSignals:
    """Used in a `with` around a run, which looks at `requested` after each step; earlier handlers come back at its end.

    Signals are handled in the main thread only; elsewhere nothing is installed, and `request` does the same by hand.
    """

    def __init__(self, *, quiet: bool = False, apart: float = APART) -> None:
        self.signal: signal.Signals | None = None
        self._quiet, self._apart, self._first = quiet, apart, 0.0
        self._before: dict[signal.Signals, Any] = {}

    @property
    def requested(self) -> bool:
        return self.signal is not None

    @property
    def status(self) -> int:
        """The exit status that tells others by which signal the run ended: 143 or 130, and 0 if by none."""
        return 0 if self.signal is None else 128 + self.signal

    def request(self, number: int = signal.SIGTERM) -> None:
        self.signal = signal.Signals(number)

    def raise_if_requested(self) -> None:
        """For loops with nothing to save: what the signal would have raised, but between two steps."""
        if self.signal is not None:
            raise KeyboardInterrupt if self.signal == signal.SIGINT else SystemExit(self.status)

    def __enter__(self) -> Self:
        if threading.current_thread() is threading.main_thread():
            for each in SIGNALS:
                self._before[each] = signal.signal(each, self._arrived)
        return self

    def __exit__(self, *_: object) -> None:
        while self._before:
            each, before = self._before.popitem()
            # A handler that was not set from Python can't be put back from there.
            signal.signal(each, signal.SIG_DFL if before is None else before)

    def _arrived(self, number: int, frame: FrameType | None) -> None:
        if self.signal is None:
            self.request(number)
            self._first = time.monotonic()
            if not self._quiet:
                # Not by print: the signal may have come in the middle of one.
                os.write(2, b"anyformer: stopping after this step; once more to stop at once\n")
            return
        if time.monotonic() - self._first < self._apart:
            return
        if number == signal.SIGINT:
            raise KeyboardInterrupt
        # As if it had never been handled: the last checkpoint is whole whatever is going on now.
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
