"""A program in a child process that answers one line of JSON with another: what goes wrong in it ends there."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple


class Ended(NamedTuple):
    """Instead of an answer: the process is gone."""

    late: bool
    """Whether it was ended because it took too long."""
    status: int
    """How it ended."""


class ConfinedProcess:
    """Such a process, which is started when it is first asked, and again after it died. It limits itself what it takes;
    how long it may take is seen to here.
    """

    def __init__(self, program: Path, *arguments: str) -> None:
        self._words = [str(program), *arguments]
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._parent = 0

    def ask(self, question: Mapping[str, Any], seconds: float) -> dict[str, Any] | Ended:
        """The answer, if it comes within so many seconds."""
        line = json.dumps(question).encode() + b"\n"
        with self._lock:
            return self._ask(line, seconds)

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        # A copy of us that was forked off does not own it.
        if process is None or self._parent != os.getpid():
            return
        process.kill()
        process.communicate()

    def _ask(self, question: bytes, seconds: float) -> dict[str, Any] | Ended:
        process, late = self._running(), threading.Event()
        timer = threading.Timer(seconds, lambda: (late.set(), process.kill()))
        timer.daemon = True
        timer.start()
        line = b""
        try:
            if process.stdin is not None and process.stdout is not None:
                process.stdin.write(question)
                process.stdin.flush()
                line = process.stdout.readline()
        except OSError:
            pass
        except BaseException:
            # Ctrl-C: the answer that is still to come would be taken for that of the next question.
            self.close()
            raise
        finally:
            timer.cancel()
        if line.endswith(b"\n"):
            return json.loads(line)
        # It has closed its end, so it is about to be gone.
        status = process.wait()
        self.close()
        return Ended(late.is_set(), status)

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._parent == os.getpid() and self._process.poll() is None:
            return self._process
        self.close()
        self._parent = os.getpid()
        self._process = subprocess.Popen(
            # Its own folder is not searched for modules.
            [sys.executable, "-P", *self._words],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            # Ctrl-C is for us.
            start_new_session=True,
        )  # fmt: skip
        return self._process
