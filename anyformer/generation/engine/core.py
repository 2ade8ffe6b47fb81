"""The core of an engine: schedule, run the model, sample, report. Sequences join and leave as they come and end.

One thread drives it: `add` and `abort` at any time, `step` as long as it is not `idle`. Nothing blocks, and nothing is
global. Whoever else is there, a request gets the tokens that it gets alone.
"""

import contextlib
import time
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Rows
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.engine.model_runner import MAX_IN_FLIGHT, DecodeStream, ModelRunner
from anyformer.generation.engine.request import FinishReason, Request, RequestOutput, Sequence, TopLogprobs
from anyformer.generation.engine.sampler import NONE, Sampled, Sampler, top_logprobs
from anyformer.generation.engine.scheduler import Chunk, Limits, Scheduler, Stats
from anyformer.generation.engine.search import advance_searches
from anyformer.generation.engine.speculative import Proposer, verify
from anyformer.generation.samplers.logits_processors import own_logprobs, why_not
from anyformer.model.eval_mode import eval_mode

PROMPT_CHUNK = 256
"""Tokens of a prompt whose logits are there at once."""
NOT_FINITE = "its logits are not finite, so no token can be chosen; are the weights damaged, or is the dtype too narrow? Try dtype=torch.float32"  # fmt: skip


class EngineCore:
    """Serves requests of one model with one runner."""

    def __init__(self, runner: ModelRunner, limits: Limits, *, proposer: Proposer | None = None) -> None:
        self.model, self.runner, self.pool, self.proposer = runner.model, runner, runner.pool, proposer
        self.stats = Stats()
        self.scheduler = Scheduler(self.pool, limits, self.stats, speculative=proposer is not None)
        self.sampler = Sampler(self.pool.device)
        self._modules, self._eval_mode, self._in_training = list(self.model.modules()), eval_mode(self.model), True
        self.requests: dict[Hashable, Request] = {}
        """Those that have not ended."""
        self.outputs: list[RequestOutput] = []
        """What the next step reports."""
        self._stream: DecodeStream | None = None
        """Decode steps in flight on the device, which samples by itself."""

    def add(self, request: Request) -> None:
        """Let a request wait for its first step."""
        self.requests[request.id] = request
        self.scheduler.queue(request.sequences[0])

    def abort(self, request: Request | Hashable) -> bool:
        """End a request now; the next step reports it. False: it has ended before, or was never there."""
        name = request.id if isinstance(request, Request) else request
        found = self.requests.get(name)
        if found is None or (isinstance(request, Request) and found is not request):
            return False
        for sequence in list(found.sequences):
            self.finish(sequence, "abort")
        return True

    def close(self) -> None:
        """Abort all that is under way, and give back what it holds."""
        for request in list(self.requests.values()):
            self.abort(request)
        self._stream = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to report."""
        return not self.requests and not self.outputs

    def step(self) -> list[RequestOutput]:
        """Schedule, run the model, sample the next tokens, and report what happened."""
        began = time.perf_counter()
        training = self._in_training or any([module.training for module in self._modules])
        try:
            with self._eval_mode if training else contextlib.nullcontext() as mode:
                # Another thread may have put the model into eval mode, and takes it out again when it likes.
                self._in_training = mode is not None and mode.holds
                if self._stream is None or not self._step_in_flight(self._stream):
                    decode, prefill = self.scheduler.schedule()
                    self._decode(decode)
                    for chunks in prefill:
                        self._prefill(chunks)
                    if self.runner.cuda_graphs:
                        self._start_stream(self.scheduler.running)
        except BaseException:
            self._recover()
            raise
        self.stats.seconds += time.perf_counter() - began
        self.stats.steps += 1
        outputs, self.outputs = self.outputs, []
        return outputs

    # Decode steps in flight: the device samples by itself, and the host reads its tokens later

    def _start_stream(self, rows: list[Sequence]) -> None:
        """Let the device sample by itself for as long as nothing but the next token is wanted."""
        if not rows or self.proposer is not None or self.scheduler.can_admit:
            return
        if all(s.request.sampled_on_device and not s.isolated and self.scheduler.decodes(s) for s in rows):
            self._stream = self.runner.decode_stream(list(rows))

    def _step_in_flight(self, stream: DecodeStream) -> bool:
        """Launch a step and read the tokens of an earlier one; False: nothing is in flight any more."""
        rows = stream.rows
        launch = not self.scheduler.can_admit and self.scheduler.running == rows
        # A row that has all of its tokens, counting those in flight, needs no further step.
        launch = launch and all([s.num_new_tokens + len(stream) < s.request.max_new_tokens for s in rows])
        if launch and all([self.pool.reserve(s.kv, 1) for s in rows]):
            stream.launch()
            self.stats.passes += 1
            self.stats.decode_tokens += len(rows)
            if len(stream) <= MAX_IN_FLIGHT:
                return True
        elif not len(stream):
            self._stream = None
            return False
        ids, finite = stream.read()
        for sequence, token, fine in zip(rows, ids, finite, strict=True):
            if sequence.finish_reason is None:
                self.append_token(sequence, Sampled(token) if fine else Sampled(NONE, InputError(NOT_FINITE)))
                if not self.release_if_finished(sequence):
                    self._register_prefix(sequence, 1)
        return True

    # Passes of the model

    def _decode(self, sequences: list[Sequence]) -> None:
        """Compute the last token of each sequence, and sample the next."""
        self.stats.decode_tokens += len(sequences)
        for scheduled in _passes(sequences):
            # Who was preempted for a search of an earlier pass has nothing to compute with.
            kv = [each.allocation for each in scheduled if each.allocation is not None]
            rows = scheduled if len(kv) == len(scheduled) else [s for s in scheduled if s.allocation is not None]
            if not rows:
                continue
            if self.proposer is not None:
                verify(self, self.proposer, rows)
            elif rows[0].request.search is not None and rows[0].request.search.reads_hidden:
                self._forward([(each, 1) for each in rows])
            else:
                try:
                    self.stats.passes += 1
                    logits_BV = self.runner.decode(kv, [each.tokens[-1] for each in rows])
                except BaseException as error:
                    self.retry_alone(rows, error)
                    continue
                if self.scheduler.limits.enable_prefix_caching:
                    for each in rows:
                        self._register_prefix(each, 1)
                self._sample(rows, logits_BV)

    def _prefill(self, scheduled: list[Chunk]) -> None:
        """Compute tokens of prompts, and sample where none are left."""
        # Who was preempted since it was scheduled has nothing to compute with.
        chunks = [chunk for chunk in scheduled if chunk[0].allocation is not None]
        if chunks:
            sizes = [size for _, size in chunks]
            self.stats.prefill_tokens += sum(sizes)
            self.stats.padding_tokens += max(sizes) * len(sizes) - sum(sizes)
            self._forward(chunks)

    def _forward(self, chunks: list[Chunk]) -> None:
        """One pass over some tokens of each sequence, beside them sources and global tokens where a request has some."""
        self.stats.passes += 1
        rows, sizes = [each for each, _ in chunks], [size for _, size in chunks]
        begins = [each.kv.num_computed_tokens for each in rows]
        try:
            hidden_BTD = self.runner.forward(
                [each.kv for each in rows],
                [each.tokens[begin : begin + size] for each, begin, size in zip(rows, begins, sizes, strict=True)],
                **self._beside(rows, begins, sizes),
            )
            logits_BV = self.runner.last_logits(hidden_BTD, sizes)
        except BaseException as error:
            self.retry_alone(rows, error)
            return
        ready = [i for i, each in enumerate(rows) if len(each.tokens) == begins[i] + sizes[i]]
        finite = [] if len(ready) == len(rows) else logits_BV.amax(-1).isfinite().tolist()
        for i, (sequence, size) in enumerate(chunks):
            self._register_prefix(sequence, size)
            if sequence.request.prompt_logprobs is not None and begins[i] < sequence.prompt_length:
                self._add_prompt_logprobs(sequence, begins[i], hidden_BTD[i, :size])
            if i not in ready and not finite[i]:
                # It ends before others get what it has written.
                self._fail(sequence, InputError(why_not(logits_BV[i], logits_BV[i]) or NOT_FINITE))
        if ready:
            hidden = [hidden_BTD[i, : sizes[i]] for i in ready]
            self._sample([rows[i] for i in ready], logits_BV[ready] if len(ready) < len(rows) else logits_BV, hidden)

    def _beside(self, rows: list[Sequence], begins: list[int], sizes: list[int]) -> dict[str, Any]:
        """The sources of a pass, with which they are encoded, and which tokens of it are global."""
        requests = [each.request for each in rows]
        sources = [each.source_S for each in requests if each.source_S is not None] if not begins[0] else []
        marks = []
        if sources:
            self.stats.source_tokens += sum(map(len, sources))
            marks = [each.global_T for each in requests if each.global_T is not None]
        elif requests[0].global_T is not None and requests[0].source_S is None:
            for each, begin, size in zip(requests, begins, sizes, strict=True):
                # None after the prompt is.
                part = torch.zeros(0, dtype=torch.long) if each.global_T is None else each.global_T[begin:][:size]
                marks.append(torch.nn.functional.pad(part, (0, size - len(part))))
        return {"sources": sources or None, "global_tokens": marks or None}

    def retry_alone(self, rows: list[Sequence], error: BaseException) -> None:
        """Nobody knows whose fault a failed pass was: all of its rows begin again alone, and one that fails alone ends."""
        if not self.pool.restartable:
            raise error
        alone = len({id(each.group[0]) for each in rows}) == 1
        for sequence in rows:
            if sequence.finish_reason is not None:
                continue
            if alone and isinstance(error, Exception):
                self._fail(sequence, error)
            else:
                sequence.isolated = True
                self.stats.retries += 1
                if sequence.allocation is not None:
                    self.scheduler.preempt(sequence)
        if not isinstance(error, Exception):
            raise error

    def _recover(self) -> None:
        """After a step that was interrupted: sequences whose tokens are all computed, but got none, begin again."""
        self._stream = None
        if not self.pool.restartable:
            return
        for sequence in [each for each in self.scheduler.running if each.forks and each.num_new_tokens]:
            self._fork(sequence)
        for sequence in list(self.scheduler.running):
            if self.release_if_finished(sequence) or sequence.allocation is None:
                continue
            if len(sequence.tokens) <= sequence.kv.num_computed_tokens:
                self.scheduler.preempt(sequence)

    def _register_prefix(self, sequence: Sequence, new: int) -> None:
        """Let others share the blocks that a pass has filled."""
        blocks = self.scheduler.blocks
        if blocks is None or not self.scheduler.limits.enable_prefix_caching:
            return
        computed, size = sequence.kv.num_computed_tokens, blocks.block_size
        if (computed - new) // size < computed // size:
            blocks.register_prefix(sequence.kv, sequence.tokens)

    @torch.inference_mode()
    def _add_prompt_logprobs(self, sequence: Sequence, begin: int, hidden_TD: Tensor) -> None:
        """Log-probabilities of a prompt's own tokens: what each one says of the next; nothing stands before the first."""
        request = sequence.request
        found: list[tuple[float, TopLogprobs] | None] = list((request.prompt_logprobs or [None])[: begin + 1])
        after = sequence.tokens[begin + 1 : min(begin + 1 + len(hidden_TD), sequence.prompt_length)]
        for at in range(0, len(after), PROMPT_CHUNK):
            some = after[at : at + PROMPT_CHUNK]
            own_TV = own_logprobs(self.runner.logits(hidden_TD[at : at + len(some)]))
            chosen = own_TV.gather(-1, torch.tensor(some, device=own_TV.device)[:, None])[:, 0].tolist()
            top = top_logprobs(own_TV, request.params.options.prompt_logprobs or 0)
            found += zip(chosen, top, strict=True)
        request.prompt_logprobs = found

    # Sampling

    def _sample(self, rows: list[Sequence], logits_BV: Tensor, hidden: Rows[Tensor] | None = None) -> None:
        """The next token of each sequence; further answers of one whose prefill has ended begin here too."""
        if any([each.request.search is not None for each in rows]):
            searches = [i for i, each in enumerate(rows) if each.request.search is not None]
            states = hidden and [hidden[i] for i in searches]
            advance_searches(self, [rows[i] for i in searches], logits_BV[searches], states)
            others = [i for i in range(len(rows)) if i not in searches]
            rows, logits_BV = [rows[i] for i in others], logits_BV[others]
            if not rows:
                return
        everyone = rows
        if any([each.forks for each in rows]):
            everyone = [each for first in rows for each in (first, *first.forks)]
            logits_BV = logits_BV[[i for i, each in enumerate(rows) for _ in range(1 + len(each.forks))]]
        for sequence, sampled in zip(everyone, self.sampler.sample(logits_BV, everyone), strict=True):
            self.append_token(sequence, sampled)
        for sequence in rows:
            if sequence.forks:
                self._fork(sequence)
            if sequence.finish_reason is not None:
                self.release_if_finished(sequence)

    def _fork(self, sequence: Sequence) -> None:
        """Let further answers go on by themselves, from what the first has computed if there is room for that."""
        forks, sequence.forks = sequence.forks, []
        for fork in forks:
            if fork.finish_reason is not None:
                continue
            if sequence.allocation is not None and not sequence.isolated:
                fork.allocation = self.pool.fork(sequence.allocation)
            if fork.allocation is None:
                self.scheduler.queue(fork)
            else:
                self.stats.forked_tokens += fork.kv.num_computed_tokens
                self.scheduler.start(fork)

    def append_token(self, sequence: Sequence, sampled: Sampled) -> None:
        """Append what was sampled, and report it and whether the sequence ends with it."""
        request, token, error, reason = sequence.request, sampled.id, sampled.error, None
        if error is None:
            sequence.tokens.append(token)
            self.stats.new_tokens += 1
            try:
                reason = self._finish_reason(sequence, token)
            except BaseException as failed:
                # The tokenizers library panics with what is no Exception.
                if isinstance(failed, KeyboardInterrupt | SystemExit | GeneratorExit):
                    raise
                error = failed if isinstance(failed, Exception) else RuntimeError(str(failed))
        if error is not None:
            self._report(sequence, "failed", error)
            return
        new: dict[str, Any] = {"ids": (token,)}
        if sampled.logprob is not None:
            sequence.logprobs.append(sampled.logprob)
            sequence.top.append(sampled.top or ())
            new |= {"logprobs": (sampled.logprob,), "top": (sampled.top or (),)}
        if request.prompt_logprobs is not None and len(sequence.tokens) == sequence.prompt_length + 1:
            new["prompt_logprobs"] = tuple(request.prompt_logprobs)
        self._report(sequence, reason, **new)

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Why a sequence ends with this token; None: it doesn't."""
        request, params = sequence.request, sequence.request.params
        if token in params.stop or (params.choices is not None and params.choices.complete(sequence.new)):
            return "stop"
        if sequence.guide is not None and sequence.guide.advance(sequence.new):
            return "stop"
        if sequence.stop_text is not None:
            sequence.stop_text.push(token)
            if sequence.stop_text.met is not None:
                return "stop"
        return "length" if len(sequence.tokens) - sequence.prompt_length >= request.max_new_tokens else None

    def finish(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        """End a sequence without a further token."""
        if sequence.finish_reason is None:
            self._report(sequence, reason, error)
            sequence.forks = []
            self.release_if_finished(sequence)

    def _fail(self, sequence: Sequence, error: Exception) -> None:
        """End a sequence, those of its group and those that wait for its prefill."""
        for each in (*sequence.group, *sequence.forks):
            self.finish(each, "failed", error)

    def release_if_finished(self, sequence: Sequence) -> bool:
        """Give back what a sequence holds if it has ended; whether it has."""
        if sequence.finish_reason is None:
            return False
        self.scheduler.remove(sequence, wipe=sequence.finish_reason == "failed")
        if self.proposer is not None:
            self.proposer.forget(sequence)
        return True

    def _report(
        self, sequence: Sequence, reason: FinishReason | None, error: Exception | None = None, **new: Any
    ) -> None:
        """Let the next step report new tokens of a sequence, and why it has ended if it has."""
        request = sequence.request
        if reason is not None:
            sequence.finish_reason, sequence.error = reason, error
            self.stats.finished += 1
            if request.done:
                del self.requests[request.id]
        self.outputs.append(RequestOutput(request.id, sequence.index, finish_reason=reason, error=error, **new))

    def check(self) -> None:
        """Raise if a block, a slot or a request was lost, or counted twice."""
        wrong: list[str] = []
        running, waiting, blocks = self.scheduler.running, self.scheduler.waiting, self.scheduler.blocks
        if blocks is not None:
            blocks.check()
            if {id(each.allocation) for each in running} != {*map(id, blocks.sequences.values())}:
                wrong.append(f"{len(running)} run, and the pool holds {len(blocks.sequences)}, or others")
        if any(each.allocation is not None for each in waiting):
            wrong.append("one waits that the pool holds")
        for name, ages in (("running", [s.age for s in running]), ("waiting", [s.age for s in waiting])):
            if ages != sorted(set(ages)):
                wrong.append(f"those {name} are not in the order of their ages, or one is there twice")
        alive = [s for request in self.requests.values() for s in request.sequences if s.finish_reason is None]
        placed = [*running, *(s for first in waiting for s in first.group), *(fork for s in alive for fork in s.forks)]
        if len(placed) != len(alive) or {*map(id, placed)} != {*map(id, alive)}:
            wrong.append(f"{len(placed)} sequences wait, run or stand behind another, and {len(alive)} have not ended")
        if wrong:
            raise RuntimeError("an engine has lost count: " + "; ".join(wrong))


def _passes(sequences: list[Sequence]) -> Iterable[list[Sequence]]:
    """Sequences that share a pass: searches that look at states apart from the others, and whoever failed alone."""
    if not any([each.isolated or each.request.search is not None for each in sequences]):
        return [sequences]
    groups: dict[object, list[Sequence]] = {}
    for each in sequences:
        search = each.request.search
        key: object = search if each.isolated and search is not None else each if each.isolated else None
        groups.setdefault((key, search is not None, search is not None and search.reads_hidden), []).append(each)
    return groups.values()
