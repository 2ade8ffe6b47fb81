"""Grammars of requests, compiled beside the engine's steps before their requests are added."""

import json
import queue
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from anyformer.errors import InputError
from anyformer.generation.guided.compiled import CompiledGrammar, GrammarLimits, compile_grammar
from anyformer.generation.guided.fence import Fence
from anyformer.generation.pipelines.source import Source
from anyformer.serve.config import Limits
from anyformer.serve.engine.messages import Message

THREADS = 2
KNOWN = 16
"""Grammars that are kept, as many requests ask for the same."""


class Grammars:
    """Compiles descriptions in threads; `done` gets a message for each. All else is called by the worker's own thread."""

    def __init__(self, source: Source, limits: Limits, done: Callable[[Message], None]) -> None:
        self._source, self._done = source, done
        self._limits = GrammarLimits(source_bytes=limits.schema_bytes, seconds=limits.schema_seconds)
        self._threads: ThreadPoolExecutor | None = None
        self._fences: queue.SimpleQueue[Fence] = queue.SimpleQueue()
        """One for each thread, so that a hostile grammar holds up nobody but those that wait for its thread."""
        self._asked: dict[int, Message] = {}
        """Requests that wait for their grammar, by number."""
        self._known: OrderedDict[str, CompiledGrammar] = OrderedDict()

    def __len__(self) -> int:
        return len(self._asked)

    def compile(self, message: Message) -> CompiledGrammar | None:
        """The grammar of a request, if it is known; else it is begun with."""
        number, description = message["number"], message["params"]["guided"]
        name = json.dumps(description)
        if len(name) > 2 * self._limits.source_bytes:
            # Texts are longer in JSON, but not by that much: nothing of it is read.
            raise InputError(
                f"guided: {len(name):,} bytes; this server reads at most {self._limits.source_bytes:,}: make it shorter"
            )
        if name in self._known:
            self._known.move_to_end(name)
            return self._known[name]
        self._asked[number] = message
        if self._threads is None:
            self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="grammar")
            for _ in range(THREADS):
                self._fences.put(Fence())

        def work() -> None:
            if number not in self._asked:
                return
            fence, value, error = self._fences.get(), None, None
            try:
                value = compile_grammar(
                    description, self._source.tokenizer, self._source.model.spec.vocab, limits=self._limits, fence=fence
                )
            except BaseException as failed:
                error = failed
            finally:
                self._fences.put(fence)
            self._done({"type": "compiled", "number": number, "name": name, "value": value, "error": error})

        self._threads.submit(work)
        return None

    def taken(self, message: Message) -> Message | None:
        """The request whose grammar is done; None: it was dropped meanwhile."""
        if message["value"] is not None:
            self._known[message["name"]] = message["value"]
            while len(self._known) > KNOWN:
                self._known.popitem(last=False)
        return self._asked.pop(message["number"], None)

    def drop(self, number: int) -> None:
        """Nobody wants this one any more."""
        self._asked.pop(number, None)

    def close(self) -> None:
        """Wait for what is under way, and end the processes."""
        self._asked.clear()
        if self._threads is not None:
            self._threads.shutdown(wait=True, cancel_futures=True)
            for _ in range(THREADS):
                self._fences.get().close()
            self._threads = None
