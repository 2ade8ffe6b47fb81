"""A child process in which grammars are compiled first: what takes too long, or would bring a process down, ends there."""

import atexit
import signal
from pathlib import Path
from typing import Any

from anyformer.generation.confined import ConfinedProcess, Ended

PROGRAM = Path(__file__).with_name("compile_worker.py")
PATIENCE = 30.0
"""Seconds on the clock after which the process is given up, however little it could compute in them."""
STUCK = "takes more than {seconds:g} seconds{where} to compile; make it simpler"
BROKEN = "nests too deeply, or takes too much memory to compile; make it simpler"
TIMER = getattr(signal, "SIGPROF", None)
"""With what the process ends that has computed for too long."""


class Fence:
    """One such process."""

    def __init__(self, memory: int = 2**29) -> None:
        self._child = ConfinedProcess(PROGRAM, str(memory))

    def ask(self, question: dict[str, Any], seconds: float) -> dict[str, str]:
        """The program's answer: `lark`, or `wrong`. It may compute for so many seconds."""
        said = self._child.ask(question | {"seconds": seconds}, PATIENCE)
        if not isinstance(said, Ended):
            return said
        if said.late:
            return {"wrong": STUCK.format(seconds=PATIENCE, where=" on the clock")}
        computed = TIMER is not None and said.status == -TIMER
        return {"wrong": STUCK.format(seconds=seconds, where="") if computed else BROKEN}

    def close(self) -> None:
        """End the process, if there is one."""
        self._child.close()


FENCE = Fence()
"""The one that all grammars share."""
atexit.register(FENCE.close)
