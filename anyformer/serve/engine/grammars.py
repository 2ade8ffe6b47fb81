"""Grammars of requests, compiled beside the engine's steps before their requests are added."""

import json
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from anyformer.errors import InputError
from anyformer.generation.pipelines.source import Source
from anyformer.serve.config import Limits
from anyformer.serve.engine.messages import Message

THREADS = 2


class Grammars:
    """Compiles descriptions in threads; `done` gets a message for each. All else is called by the worker's own thread."""

    def __init__(
        self,
        source: Source,
        limits: Limits,
        done: Callable[[Message], None],
        compiler: Callable[[Any], Any] | None = None,
    ) -> None:
        self._source, self._limits, self._done = source, limits, done
        self._compiler = self._compile if compiler is None else compiler
        self._threads: ThreadPoolExecutor | None = None
        self._asked: dict[int, Message] = {}
        """Requests that wait for their grammar, by number."""
        self._started: dict[int, float] = {}

    def __len__(self) -> int:
        return len(self._asked)

    def compile(self, message: Message) -> None:
        """Begin with the grammar of a request."""
        size = len(json.dumps(message["params"]["guided"]))
        if size > self._limits.schema_bytes:
            raise InputError(f"the grammar has {size:,} bytes; this server takes {self._limits.schema_bytes:,}: make it smaller")
        number, description = message["number"], message["params"]["guided"]
        self._asked[number] = message
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")

        def work() -> None:
            if number not in self._asked:
                return
            self._started[number] = time.monotonic()
            value, error = None, None
            try:
                value = self._compiler(description)
            except BaseException as failed:
                error = failed
            self._done({"type": "compiled", "number": number, "value": value, "error": error})

        self._threads.submit(work)

    def taken(self, number: int) -> Message | None:
        """The request whose grammar is done; None: it was dropped meanwhile."""
        self._started.pop(number, None)
        return self._asked.pop(number, None)

    def drop(self, number: int) -> None:
        """Nobody wants this one any more."""
        self._asked.pop(number, None)

    def patience(self) -> float | None:
        """Seconds after which `overdue` is worth a call; None: nothing is under way."""
        return self._limits.schema_seconds if self._asked else None

    def overdue(self) -> list[Any]:
        """Refusals of requests whose grammar takes too long."""
        if not self._asked:
            return []
        late = time.monotonic() - self._limits.schema_seconds
        found = [number for number, began in list(self._started.items()) if began < late and number in self._asked]
        words = f"its grammar took more than {self._limits.schema_seconds:g} s to compile; make it simpler"
        for number in found:
            del self._asked[number]
        return [[number, 400, words, "grammar_too_complex"] for number in found]

    def close(self) -> None:
        """Wait for what is under way."""
        self._asked.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)

    def _compile(self, description: Any) -> Any:
        return description
