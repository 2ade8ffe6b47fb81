"""The engine as the front end sees it, on the event loop's thread: requests, their outputs, and who may come in."""

import abc
import asyncio
import itertools
import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from anyformer.errors import AnyformerError, CapabilityError, CheckpointError, DataError, InputError
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.messages import EngineFacts, GenerateRequest, Message, Output, unpack_floats
from anyformer.serve.errors import ApiError, busy
from anyformer.serve.metrics import Metrics

if TYPE_CHECKING:
    from anyformer.generation.pipelines.source import Source

__all__ = ["EngineClient", "EngineFacts", "GenerateRequest", "Generation", "Output", "Times", "open_engine"]

LOGGER = logging.getLogger("anyformer.serve.engine")
KNOWN = {kind.__name__: kind for kind in (InputError, CapabilityError, CheckpointError, DataError)} | {
    "SpecError": InputError
}
"""Errors of a model that can't be read, told by their messages alone."""
WINDOW = 10.0
"""Seconds over which the rate of tokens is taken."""
GAP = 1.0
"""Longer silence is none of the engine's work."""
ANSWER = 128.0
"""Tokens of an answer, as long as none was seen."""
SHARE = 1 / 32
"""How much one answer changes what is taken for the usual length."""


class Rate:
    """Tokens for each second of work, lately."""

    def __init__(self) -> None:
        self._tokens = self._seconds = 0.0
        self._last = -math.inf

    def add(self, tokens: int, now: float) -> None:
        """Count tokens that have come now."""
        gap, self._last = now - self._last, now
        if gap > GAP:
            # What came after silence says nothing about how long it took.
            return
        fade = math.exp(-gap / WINDOW)
        self._tokens, self._seconds = self._tokens * fade + tokens, self._seconds * fade + gap

    def seconds_for(self, tokens: int) -> float:
        """How long so many take; a second if nothing is known."""
        return tokens * self._seconds / self._tokens if self._tokens else 1.0


@dataclass(slots=True)
class Times:
    """When what happened to a request, by time.monotonic()."""

    arrival: float
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None


class Generation:
    """One request of the engine: an async iterator of all outputs that came since the last time, which ends with the last
    of them, or raises ApiError.
    """

    def __init__(self, client: "EngineClient", number: int, request: GenerateRequest, n: int, max_tokens: int) -> None:
        self._client, self._number, self.request, self.n, self.max_tokens = client, number, request, n, max_tokens
        self.expected_tokens = len(request.prompt) + n * max(1, round(min(max_tokens, client.usual_answer)))
        """Tokens that it will come to if its answers are as long as those of others: few take all that they may."""
        self.num_cached_tokens = 0
        """Tokens of the prompt that were not computed, as the prefix cache held them."""
        self.times = Times(time.monotonic())
        self.generated = [0] * n
        """New tokens of each sequence."""
        self.reasons: list[str] = []
        self._last = [0.0] * n
        self._pending: list[Output] = []
        self._error: ApiError | None = None
        self._done = False
        self._waiter: asyncio.Future[None] | None = None
        self._begun = False
        """Whether somebody reads; only a reader can be too slow."""

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> list[Output]:
        self._begun = True
        while not self._pending:
            if self._error is not None:
                error, self._error = self._error, None
                raise error
            if self._done:
                raise StopAsyncIteration
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        found, self._pending = self._pending, []
        return found

    def cancel(self) -> None:
        """End it; whatever it held is given back within a step of the engine."""
        if not self._done:
            self._client._cancel(self)

    def _push(self, row: Any, now: float, metrics: Metrics) -> None:
        index, ids = row[1], row[2]
        if ids:
            if self.times.first_token is None:
                self.times.first_token = now
                metrics.first_token(now - self.times.arrival)
            elif self._last[index]:
                metrics.next_token(now - self._last[index], len(ids))
            self.times.last_token = self._last[index] = now
            self.generated[index] += len(ids)
        if len(row) == 3:
            self._pending.append(Output(index, list(ids)))
        else:
            self._push_details(index, ids, row[3])
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
        elif self._begun and len(self._pending) > self._client.config.limits.stream_events * self.n:
            self._pending.clear()
            self._client._cancel(self, ApiError(408, "the client reads too slowly", code="slow_client"))

    def _push_details(self, index: int, ids: Any, more: Message) -> None:
        reason = more.get("finish_reason")
        if reason is not None:
            self.reasons.append(reason)
        if reason == "failed":
            status = more.get("status", 500)
            code = "engine_failed" if status >= 500 else "nothing_left"
            error = ApiError(status, more["error"], code=code, headers={"x-should-retry": "false"})
            self._client._end(self, error)
            return
        self._pending.append(
            Output(
                index, list(ids), logprobs=more.get("logprobs"), top=more.get("top"), prompt_logprobs=more.get("prompt_logprobs"),
                finish_reason=reason, stop_text=more.get("stop_text"),
            )
        )  # fmt: skip
        if more.get("done"):
            self._client._end(self)

    def _finish(self, error: ApiError | None) -> None:
        self._done, self._error = True, error
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class EngineClient(abc.ABC):
    """An engine, wherever it runs. All of it is used on the event loop's thread only."""

    facts: EngineFacts
    metrics: Metrics

    def __init__(self, config: ServeConfig) -> None:
        self.config = config
        self.snapshot: dict[str, Any] = {}
        """What the engine said last of itself: running, waiting, kv_cache_usage, num_blocks, free_blocks and counters."""
        self.on_death: Callable[[str], None] = lambda why: None
        """Called with the reason when an engine that ran is lost, after all requests were told."""
        self.rate = Rate()
        self.usual_answer = ANSWER
        """Tokens of an answer, lately."""
        self._numbers = itertools.count(1)
        self._live: dict[int, Generation] = {}
        self._jobs: dict[int, asyncio.Future[Any]] = {}
        self._unscheduled: dict[int, Generation] = {}
        """Requests without a first step, the oldest first."""
        self._sequences = self._looking = 0
        """Sequences that have not ended, and looks that were asked for."""
        self._ready: asyncio.Future[None] | None = None
        self._closed: asyncio.Event = asyncio.Event()
        """Set when the engine has said its last word."""
        self._gone: str | None = "the engine was not started"
        """Why nothing can be served; None: all is well."""

    @abc.abstractmethod
    def _send(self, message: Message) -> None:
        """Hand a message to the engine."""

    @abc.abstractmethod
    async def start(self) -> None:
        """Load the model; raises what is wrong with the settings."""

    @abc.abstractmethod
    async def close(self) -> None:
        """End everything; nothing runs any more afterwards."""

    @property
    def healthy(self) -> bool:
        """Whether the engine runs."""
        return self._gone is None

    # Requests

    def generate(self, request: GenerateRequest, *, joins: bool = False) -> Generation:
        """Ask for a continuation; raises ApiError 429 where too many wait, and 503 where the engine is gone.

        `joins`: it belongs to others that were let in just now, and so is let in too. Who asks for several at once would
        otherwise be in their own way, however often they came again.
        """
        self._check_alive()
        facts, limits, params = self.facts, self.config.limits, request.params
        n, room = params.get("n") or 1, facts.max_model_len
        new = params.get("max_new_tokens") or max(1, room - len(request.prompt) + 1)
        generation = Generation(self, next(self._numbers), request, n, new)
        waiting = [] if joins else self._waiting()
        most = limits.queue_pools * max(room, facts.num_blocks * facts.block_size)
        tokens = sum(each.expected_tokens for each in waiting)
        if len(waiting) >= limits.queue or (waiting and tokens + generation.expected_tokens > most):
            self.metrics.refused += 1
            who = "1 request waits" if len(waiting) == 1 else f"{len(waiting):,} requests wait"
            raise busy(f"{who} already, for about {tokens:,} tokens", self.rate.seconds_for(tokens))
        self._live[generation._number] = self._unscheduled[generation._number] = generation
        self._sequences += n
        self._send(
            {
                "type": "add", "number": generation._number, "id": request.id, "prompt": request.prompt, "params": params,
                "cache_salt": request.cache_salt,
            }
        )  # fmt: skip
        return generation

    def _waiting(self) -> list[Generation]:
        """Requests that find no free slot, the oldest first."""
        running = self._sequences - sum(each.n for each in self._unscheduled.values())
        free, found = self.facts.max_num_seqs - running, list[Generation]()
        for each in self._unscheduled.values():
            free -= each.n
            if free < 0:
                found.append(each)
        return found

    async def embed(
        self, rows: list[list[int]], *, pooling: str, normalize: bool, prompt: int = 0
    ) -> list[list[float]] | list[list[list[float]]]:
        """A vector for each row of ids; with pooling "none" one for each token of each row. `prompt` is the number of
        tokens at the front of each row that are those of a prompt, which some folders leave out.
        """
        self._check_alive()
        if len(self._jobs) >= self.config.limits.queue:
            self.metrics.refused += 1
            raise busy(f"{len(self._jobs):,} requests wait already", 1.0)
        asked = {"type": "embed", "rows": rows, "pooling": pooling, "normalize": normalize, "prompt": prompt}
        found = unpack_floats(await self._ask(asked))
        return found if pooling == "none" else [row[0] for row in found]

    async def look(self, ids: list[int], *, layer: int | None = None, head: int | None = None) -> dict[str, Any]:
        """What happens inside of the model while it reads some tokens: the data of `explain`'s PromptTrace."""
        self._check_alive()
        limits = self.config.limits
        if len(ids) > limits.look_tokens:
            raise ApiError(400, f"{len(ids):,} tokens; this server looks at {limits.look_tokens:,} at most", code="too_many_tokens")  # fmt: skip
        if self._looking > limits.look_queue:
            raise busy(f"{self._looking - 1} others wait for a look already", 1.0)
        self._looking += 1
        try:
            return await self._ask({"type": "look", "ids": ids, "layer": layer, "head": head})
        finally:
            self._looking -= 1

    async def _ask(self, message: Message) -> Any:
        """A job of the engine, which is dropped if nobody waits any more."""
        number = next(self._numbers)
        future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._jobs[number] = future
        self._send(message | {"number": number})
        try:
            return await future
        except asyncio.CancelledError:
            if self._gone is None:
                self._send({"type": "abort", "number": number})
            raise
        finally:
            self._jobs.pop(number, None)

    def _check_alive(self) -> None:
        if self._gone is not None:
            raise ApiError(503, self._gone, code="engine_gone", headers={"retry-after": "5"})

    def _cancel(self, generation: Generation, error: ApiError | None = None) -> None:
        """End a request that the engine still works for."""
        if self._gone is None:
            self._send({"type": "abort", "number": generation._number})
        generation.reasons += ["abort"] * (generation.n - len(generation.reasons))
        self._end(generation, error)

    def _end(self, generation: Generation, error: ApiError | None = None) -> None:
        """Nothing more comes for this request."""
        if self._live.pop(generation._number, None) is None:
            return
        self._sequences -= generation.n
        times = generation.times
        if self._unscheduled.pop(generation._number, None) is None:
            for count in generation.generated:
                self.usual_answer += SHARE * (count - self.usual_answer)
        self.metrics.end(
            arrival=times.arrival, scheduled=times.scheduled, first_token=times.first_token, last_token=times.last_token,
            now=time.monotonic(), prompt_tokens=len(generation.request.prompt), generated=generation.generated,
            reasons=generation.reasons or ["error"] * generation.n, max_tokens=generation.max_tokens,
        )  # fmt: skip
        generation._finish(error)

    # What the engine says

    def _receive(self, message: Message) -> None:
        """Take a message of the engine."""
        match message["type"]:
            case "batch":
                self._batch(message)
            case "answer":
                future = self._jobs.get(message["number"])
                if future is not None and not future.done():
                    if "error" in message:
                        status, words, code = message["error"]
                        future.set_exception(ApiError(status, words, code=code))
                    else:
                        future.set_result(message["value"])
            case "ready":
                self.facts, self.snapshot = EngineFacts(**message["facts"]), message["snapshot"]
                self.metrics = Metrics(self.facts.name, self.facts.max_model_len, lambda: self.snapshot)
                if self._ready is not None and not self._ready.done():
                    self._gone = None
                    self._ready.set_result(None)
            case "failed":
                words = message["message"]
                self._lost(words, error=KNOWN.get(message["kind"], AnyformerError)(words))
            case "dead":
                self._died(message["message"])
            case "closed":
                self._closed.set()
                self._died("the engine has ended")

    def _batch(self, message: Message) -> None:
        """What a step did."""
        now, live, metrics = time.monotonic(), self._live, self.metrics
        self.snapshot = message["snapshot"]
        for number, when, cached in message.get("scheduled", ()):
            generation = live.get(number)
            if generation is not None:
                generation.times.scheduled, generation.num_cached_tokens = when, cached
                self._unscheduled.pop(number, None)
        count = 0
        for row in message["rows"]:
            count += len(row[2])
            generation = live.get(row[0])
            if generation is not None:
                generation._push(row, now, metrics)
        for tokens in message.get("steps", ()):
            metrics.iteration.observe(tokens)
        if count:
            self.rate.add(count, now)
        for number, status, words, code in message.get("refused", ()):
            generation = live.get(number)
            if generation is not None:
                retry = {} if status < 500 else {"x-should-retry": "false"}
                self._end(generation, ApiError(status, words, code=code, headers=retry))

    def _died(self, why: str) -> None:
        """An engine that ran has ended, and nobody asked it to."""
        if self._gone is None:
            LOGGER.error("%s; the server ends", why)
            self._lost(why)
            self.on_death(why)

    def _lost(self, why: str, *, error: Exception | None = None) -> None:
        """The engine is gone, or about to go: nobody gets an answer any more."""
        self._gone = why
        for generation in list(self._live.values()):
            self._end(generation, ApiError(503, why, code="engine_gone"))
        for future in self._jobs.values():
            if not future.done():
                future.set_exception(ApiError(503, why, code="engine_gone"))
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(error or AnyformerError(why))


def open_engine(config: ServeConfig, source: "Source | None" = None) -> EngineClient:
    """The engine of a server, in a thread or in a process of its own; it is not started. `source` is a model that is in
    memory already, which only a thread can have.
    """
    if config.front_end_process and source is None:
        from anyformer.serve.engine.remote import RemoteEngine

        return RemoteEngine(config)
    from anyformer.serve.engine.local import LocalEngine

    return LocalEngine(config, source)
