"""The engine's side of a server: owns the model and all that is torch, takes messages, and reports once a step."""

import logging
import queue
import secrets
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from typing import Any

import torch

from anyformer.errors import AnyformerError, NothingLeftError
from anyformer.generation.engine import Engine, Request, RequestOutput
from anyformer.generation.guided.compiled import CompiledGrammar
from anyformer.generation.pipelines.source import Source
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.embedding import Embedder, EmbedJob
from anyformer.serve.engine.grammars import Grammars
from anyformer.serve.engine.load import load_engine
from anyformer.serve.engine.messages import Message

LOGGER = logging.getLogger("anyformer.serve.engine")
EVERY = 1.0
"""Seconds after which steps without an output are reported too."""
MESSAGES = 32
"""Messages that are read between two steps: a crowd that comes at once does not hold up those who run."""
FAILED = "the engine failed on this request"
"""What a client is told of an error that is ours; the log has the rest."""


class EngineWorker:
    """Serves one model. `run` is its loop, in a thread or process of its own; `handle` may be called from any thread.

    `emit` gets the messages for the front end, in the worker's own thread; where it raises OSError or RuntimeError nobody
    listens any more, and the worker ends.
    """

    def __init__(self, config: ServeConfig, emit: Callable[[Message], None], source: Source | None = None) -> None:
        self.config, self._emit, self._source = config, emit, source
        self.engine: Engine | None = None
        self.iterations = 0
        """How often the loop has gone round."""
        self._inbox: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._live: dict[int, Request] = {}
        """Requests of which outputs are reported, by number."""
        self._unscheduled: dict[int, Request] = {}
        """Those that wait for their first step, the oldest first."""
        self._jobs: dict[int, EmbedJob] = {}
        self._looks: dict[int, Message] = {}
        """Looks that were asked for and not aborted; those of a GPU wait here for a pause between steps."""
        self._looker: ThreadPoolExecutor | None = None
        self._rows: list[Any] = []
        self._refused: list[Any] = []
        self._steps: list[int] = []
        """Tokens of each step since the last report."""
        self._counts = {"prompt_tokens": 0, "prefix_cache_queries": 0, "prefix_cache_hits": 0, "embedded_tokens": 0}
        self._reported = 0.0

    def handle(self, message: Message) -> None:
        """Take a message: add, abort, embed, look or close."""
        self._inbox.put(message)

    def run(self, on_ready: Callable[[], None] = lambda: None) -> None:
        """Load the model, say so, and serve until told to close."""
        try:
            self._loaded = loaded = load_engine(self.config, self._source)
            self._source = None
            self.engine = loaded.engine
            self._embedder = Embedder(
                loaded.source, loaded.sentence, length=loaded.facts.max_model_len, tokens=self.config.max_num_batched_tokens
            )  # fmt: skip
            self._grammars = Grammars(loaded.source, self.config.limits, self.handle)
        except BaseException as error:
            known = isinstance(error, AnyformerError | OSError)
            if not known:
                LOGGER.exception("the model could not be loaded")
            words = str(error) if known else f"{type(error).__name__}: {error}"
            self._say({"type": "failed", "kind": type(error).__name__, "message": words})
            self._say({"type": "closed"})
            return
        on_ready()
        try:
            if self._say({"type": "ready", "facts": asdict(loaded.facts), "snapshot": self._snapshot()}):
                self._serve()
        except BaseException as error:
            LOGGER.exception("the engine can't go on")
            self._say({"type": "dead", "message": f"the engine has failed: {type(error).__name__}"})
        finally:
            self._close()

    def _say(self, message: Message) -> bool:
        """Whether somebody listens."""
        try:
            self._emit(message)
        except (OSError, RuntimeError):
            return False
        return True

    def _serve(self) -> None:
        goes_on = True
        while goes_on:
            self.iterations += 1
            for message in self._messages():
                if message["type"] == "close":
                    return
                self._take(message)
            if self.engine is not None and not self.engine.idle:
                goes_on = self._step(self.engine)
            self._advance_jobs()
            goes_on = self._report() and goes_on

    def _close(self) -> None:
        try:
            if self.engine is not None:
                self.engine.close()
        except Exception:
            # A device that has failed may refuse this too, and somebody waits for our last word.
            LOGGER.exception("the engine could not be closed")
        for held in (self._live, self._unscheduled, self._jobs, self._looks):
            held.clear()
        self._grammars.close()
        if self._looker is not None:
            self._looker.shutdown(wait=True, cancel_futures=True)
        self._say({"type": "closed"})

    # What is asked

    def _messages(self) -> list[Message]:
        """Those that came; waits for the first one if there is nothing to do."""
        busy = (self.engine is not None and not self.engine.idle) or self._jobs or self._pauses
        found: list[Message] = []
        try:
            if not busy:
                found.append(self._inbox.get())
            while len(found) < MESSAGES:
                found.append(self._inbox.get_nowait())
        except queue.Empty:
            pass
        return found

    def _take(self, message: Message) -> None:
        number = message["number"]
        try:
            match message["type"]:
                case "add":
                    self._add(message)
                case "compiled":
                    self._compiled(message)
                case "abort":
                    self._abort(number)
                case "embed":
                    self._jobs[number] = EmbedJob(self._embedder, message)
                case "look":
                    self._look(message)
                case "looked":
                    if self._looks.pop(number, None) is not None:
                        self._answer(number, message["value"], message["error"])
                case _:
                    LOGGER.error("a message of an unknown type: %s", message["type"])
        except BaseException as error:
            # The tokenizers library panics with what is no Exception.
            if message["type"] in ("add", "compiled"):
                self._refused.append([number, *refusal(error)])
            else:
                self._answer(number, None, error)

    def _add(self, message: Message) -> None:
        grammar = None
        if message["params"].get("guided") is not None:
            grammar = self._grammars.compile(message)
            if grammar is None:
                return
        self._start(message, grammar)

    def _compiled(self, message: Message) -> None:
        asked = self._grammars.taken(message)
        if asked is not None and message["error"] is not None:
            raise message["error"]
        if asked is not None:
            self._start(asked, message["value"])

    def _start(self, message: Message, grammar: CompiledGrammar | None) -> None:
        if self.engine is None:
            raise AnyformerError("this model continues no text")
        number, params = message["number"], engine_params(message["params"])
        params["guided"] = grammar
        request = self.engine.add_request(message["prompt"], id=number, cache_salt=message["cache_salt"], **params)
        self._live[number] = self._unscheduled[number] = request

    def _abort(self, number: int) -> None:
        request = self._live.pop(number, None)
        self._unscheduled.pop(number, None)
        if request is not None and self.engine is not None:
            self.engine.abort(request)
        self._grammars.drop(number)
        self._jobs.pop(number, None)
        self._looks.pop(number, None)

    # Steps

    def _step(self, engine: Engine) -> bool:
        """One step, and what it did as rows; False: the engine can't go on."""
        stats = engine.stats
        before = stats.prefill_tokens + stats.decode_tokens
        try:
            outputs = engine.step()
        except BaseException as error:
            return self._recover(engine, error)
        self._steps.append(stats.prefill_tokens + stats.decode_tokens - before)
        live, rows, ended = self._live, self._rows, dict[int, Message]()
        for out in outputs:
            number: Any = out.request
            if number not in live:
                continue
            if out.finish_reason is None and out.logprobs is None and out.prompt_logprobs is None:
                rows.append((number, out.index, out.ids))
                continue
            more = self._details(live[number], out)
            rows.append((number, out.index, out.ids, more))
            if out.finish_reason is not None and (number not in ended or ended[number]["finish_reason"] != "failed"):
                ended[number] = more
        for number, more in ended.items():
            failed = more["finish_reason"] == "failed"
            if failed:
                # One answer less is no answer: the others of this request end too.
                engine.abort(live[number])
            if failed or number not in engine.requests:
                more["done"] = True
                del live[number]
        return True

    def _details(self, request: Request, out: RequestOutput) -> Message:
        """What is said of an output beside its tokens."""
        more: Message = {}
        if out.logprobs is not None:
            more |= {"logprobs": out.logprobs, "top": out.top}
        if out.prompt_logprobs is not None:
            more["prompt_logprobs"] = out.prompt_logprobs
        if out.finish_reason is not None:
            more["finish_reason"] = out.finish_reason
        if out.finish_reason == "stop":
            sequence, params = request.sequences[out.index], request.params
            met = None if sequence.stop_text is None else sequence.stop_text.met
            if params.choices is not None and (which := params.choices.which(sequence.new)) is not None:
                met = list(params.options.choices or ())[which]
            if met is not None:
                more["stop_text"] = met
        if out.error is not None:
            status, words, _ = refusal(out.error)
            # A request that was fine when it came is not to blame, unless it has itself ruled out all that could be said.
            blame = isinstance(out.error, NothingLeftError)
            more |= {"error": words, "status": status if blame else max(status, 500)}
        return more

    def _recover(self, engine: Engine, error: BaseException) -> bool:
        """A step has failed as a whole: all requests end, and the engine begins anew; False: it can't."""
        LOGGER.error("a step has failed, and with it %d requests", len(self._live), exc_info=error)
        self._refused += [[number, 500, FAILED, "engine_failed"] for number in self._live]
        self._live.clear()
        self._unscheduled.clear()
        self._rows.clear()
        try:
            try:
                engine.close()
                engine.outputs = []
                engine.check()
            except Exception:
                self.engine = None
                del engine
                self.engine = self._loaded.remake()
            if self._loaded.source.device.type == "cuda":
                # After some errors a device answers nothing any more.
                torch.cuda.synchronize(self._loaded.source.device)
        except Exception as final:
            LOGGER.exception("the engine can't go on")
            self._say({"type": "dead", "message": f"the engine has failed: {type(final).__name__}"})
            return False
        return True

    # Beside the steps

    @property
    def _pauses(self) -> bool:
        """Whether a look waits for a pause between steps."""
        return bool(self._looks) and self._looker is None

    def _advance_jobs(self) -> None:
        if self._jobs:
            number, job = next(iter(self._jobs.items()))
            try:
                job.advance()
                if not job.done:
                    return
                self._counts["embedded_tokens"] += job.num_tokens
                answer, error = job.answer(), None
            except BaseException as failed:
                answer, error = None, failed
            del self._jobs[number]
            self._answer(number, answer, error)
        elif self._pauses:
            number, message = next(iter(self._looks.items()))
            del self._looks[number]
            self._answer(number, *self._trace(message))

    def _look(self, message: Message) -> None:
        self._looks[message["number"]] = message
        # A trace has modules of its own around the weights, so it may run beside steps; on CUDA it may not, as a step that
        # is being captured bears no work of other threads.
        if self._loaded.source.device.type == "cuda":
            return
        if self._looker is None:
            self._looker = ThreadPoolExecutor(1, thread_name_prefix="look")

        def work() -> None:
            value, error = self._trace(message) if message["number"] in self._looks else (None, None)
            self.handle({"type": "looked", "number": message["number"], "value": value, "error": error})

        self._looker.submit(work)

    def _trace(self, message: Message) -> tuple[Any, BaseException | None]:
        from anyformer.explain.prompt import trace_ids

        source = self._loaded.source
        try:
            found = trace_ids(
                source.model, source.tokenizer, message["ids"], name=self._loaded.facts.name, reader=source.source_tokenizer,
                layer=message.get("layer"), head=message.get("head"),
            )  # fmt: skip
            return found.data(), None
        except BaseException as error:
            return None, error

    def _answer(self, number: int, value: Any, error: BaseException | None) -> None:
        """Answer a job."""
        answer = {"value": value} if error is None else {"error": refusal(error)}
        self._say({"type": "answer", "number": number} | answer)

    # Reports

    def _report(self) -> bool:
        """Say what has happened since the last report; False: nobody listens."""
        scheduled: list[Any] = []
        while self._unscheduled:
            number, request = next(iter(self._unscheduled.items()))
            if request.scheduled is None and not request.done:
                break
            del self._unscheduled[number]
            if request.scheduled is not None:
                self._counts["prompt_tokens"] += len(request.prompt)
                if self._loaded.caches:
                    self._counts["prefix_cache_queries"] += len(request.prompt)
                    self._counts["prefix_cache_hits"] += request.num_cached_tokens
                scheduled.append([number, request.scheduled, request.num_cached_tokens])
        now, idle = time.monotonic(), self.engine is None or self.engine.idle
        # Who was aborted frees a slot without a word, and long prompts are read in many steps.
        due = bool(self._steps) and (idle or now - self._reported >= EVERY)
        if not (self._rows or self._refused or scheduled or due):
            return True
        message: Message = {"type": "batch", "rows": self._rows, "snapshot": self._snapshot()}
        if scheduled:
            message["scheduled"] = scheduled
        if self._refused:
            message["refused"] = self._refused
        if self._steps:
            message["steps"] = self._steps
        self._rows, self._refused, self._steps, self._reported = [], [], [], now
        return self._say(message)

    def _snapshot(self) -> Message:
        engine = self.engine
        if engine is None:
            return {"running": 0, "waiting": 0, "kv_cache_usage": 0.0, "num_blocks": 0, "free_blocks": 0, "steps": 0} | self._counts  # fmt: skip
        stats, scheduler, pool = engine.stats, engine.scheduler, engine.scheduler.blocks
        total = self._loaded.facts.num_blocks
        running, blocks = len(scheduler.running), 0
        if pool is not None and total:
            blocks = next(manager.free for manager in pool.managers if manager.total == total)
        usage = 1 - blocks / total if total else running / max(1, self._loaded.facts.max_num_seqs)
        return {
            "running": running, "waiting": len(scheduler.waiting) + len(self._grammars), "kv_cache_usage": usage, "num_blocks": total,
            "free_blocks": blocks, "generation_tokens": stats.new_tokens, "preemptions": stats.preemptions,
            "steps": stats.steps, "retries": stats.retries, "finished": stats.finished, "seconds": stats.seconds,
            **self._counts,
        }  # fmt: skip


def engine_params(params: Message) -> dict[str, Any]:
    """Sampling parameters from JSON, in which keys are texts. Without a seed the draw is anybody's guess."""
    found = dict(params)
    if isinstance(found.get("logit_bias"), dict):
        found["logit_bias"] = {int(token): bias for token, bias in found["logit_bias"].items()}
    if found.get("seed") is None:
        found["seed"] = secrets.randbits(63)
    return found


def refusal(error: BaseException) -> tuple[int, str, str]:
    """Status, message and code for what went wrong with one request."""
    if isinstance(error, AnyformerError):
        return 400, str(error), "invalid_value"
    if isinstance(error, TypeError | ValueError | OverflowError | KeyError):
        # Nothing of what was asked goes into the log.
        LOGGER.warning("a request was refused: %s", type(error).__name__)
        return 400, f"this request can't be served: {error}", "invalid_value"
    LOGGER.error("a request has failed", exc_info=error)
    return 500, FAILED, "engine_failed"
