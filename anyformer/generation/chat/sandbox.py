"""Where chat templates run: beside us, in a process that can neither read our memory nor fill it.

A template comes with a model that somebody else published. minijinja gives it no way to files or to Python, and counts
its instructions, but not its bytes. So it runs in a process with a limit on memory, which is ended if it takes long.
"""

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.errors import CapabilityError, InputError

PROGRAM = Path(__file__).with_name("render_worker.py")
PATIENCE = 2.0
"""Seconds after which a rendering is given up. Endless loops end much earlier, by their count of instructions."""


class Sandbox:
    """One such process, started when it is first asked and again if it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._parent = 0

    def render(self, template: str, names: Mapping[str, Any]) -> str:
        """The text of a template."""
        question = json.dumps({"template": template, "names": dict(names)}).encode() + b"\n"
        with self._lock:
            said = self._ask(question)
        if "stopped" in said:
            why = said["stopped"]
            raise InputError(f"the chat template {why}, and was stopped; give the model's folder another one")
        if "missing" in said:
            raise CapabilityError(f"chat templates need the package {said['missing']}: pip install 'anyformer[chat]'")
        if "refused" in said:
            raise InputError(f"the chat template refuses these messages: {said['refused']}")
        if said.get("kind") == "OutOfFuel":
            raise InputError(
                "the chat template runs without end (it used up the instructions that a template may take), and was stopped"
            )
        if "failed" in said:
            raise InputError(f"the chat template can't be rendered: {said['failed']}")
        return said["text"]

    def close(self) -> None:
        """End the process, if there is one."""
        process, self._process = self._process, None
        # A copy of us that was forked off does not own it.
        if process is None or self._parent != os.getpid():
            return
        process.kill()
        process.communicate()

    def _ask(self, question: bytes) -> dict[str, str]:
        """The answer, or why the process was stopped."""
        process, began = self._running(), time.monotonic()
        timer = threading.Timer(PATIENCE, process.kill)
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
        self.close()
        late = time.monotonic() - began >= PATIENCE
        return {"stopped": f"took more than {PATIENCE:g} seconds" if late else "took more memory than it may"}

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._parent == os.getpid() and self._process.poll() is None:
            return self._process
        self.close()
        self._parent = os.getpid()
        self._process = subprocess.Popen(
            # Its own folder is not searched for modules.
            [sys.executable, "-P", str(PROGRAM)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            # Ctrl-C is for us.
            start_new_session=True,
        )  # fmt: skip
        return self._process


SANDBOX = Sandbox()
"""The one that all templates share."""
atexit.register(SANDBOX.close)
