"""A child process in which grammars are compiled first: what takes too long, or would bring a process down, ends there."""

import atexit
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

PROGRAM = Path(__file__).with_name("compile_worker.py")
PATIENCE = 30.0
"""Seconds on the clock after which the process is given up, however little it could compute in them."""
STUCK = "takes more than {seconds:g} seconds{where} to compile; make it simpler"
BROKEN = "nests too deeply, or takes too much memory to compile; make it simpler"
TIMER = getattr(signal, "SIGPROF", None)
"""With what the process ends that has computed for too long."""


class Fence:
    """One such process, which is started when it is first asked, and again after it died."""

    def __init__(self, memory: int = 2**29) -> None:
        self._memory = memory
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._parent = 0

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, str]:
        """The program's answer: `lark`, or `wrong`. It may compute for so many seconds."""
        line = json.dumps(question | {"seconds": seconds}).encode() + b"\n"
        with self._lock:
            said, ended = self._ask(line)
        if said is not None:
            return said
        if ended is None:
            return {"wrong": STUCK.format(seconds=PATIENCE, where=" on the clock")}
        computed = TIMER is not None and ended == -TIMER
        return {"wrong": STUCK.format(seconds=seconds, where="") if computed else BROKEN}

    def close(self) -> int | None:
        """End the process, if there is one; how it had ended before, if it had."""
        process, self._process = self._process, None
        # A copy of us that was forked off does not own it.
        if process is None or self._parent != os.getpid():
            return None
        ended = process.poll()
        process.kill()
        process.communicate()
        return ended

    def _ask(self, question: bytes) -> tuple[dict[str, str] | None, int | None]:
        """The answer; or None and how the process ended, if it did so by itself."""
        process = self._running()
        late = threading.Event()
        timer = threading.Timer(PATIENCE, lambda: (late.set(), process.kill()))
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
            return json.loads(line), None
        # It has closed its end, so it is about to be gone.
        ended = process.wait()
        self.close()
        return None, None if late.is_set() else ended

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._parent == os.getpid() and self._process.poll() is None:
            return self._process
        self.close()
        self._parent = os.getpid()
        self._process = subprocess.Popen(
            # Its own folder is not searched for modules.
            [sys.executable, "-P", str(PROGRAM), str(self._memory)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            # Ctrl-C is for us.
            start_new_session=True,
        )  # fmt: skip
        return self._process


FENCE = Fence()
"""The one that all grammars share."""
atexit.register(FENCE.close)
