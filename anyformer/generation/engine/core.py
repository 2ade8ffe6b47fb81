"""The core of an engine: schedule, run the model, sample, report. Sequences join and leave as they come and end.

One thread drives it: `add` and `cancel` at any time, `step` as long as it is not `idle`. Nothing blocks, and nothing is
global. Whoever else is there, a request gets the tokens that it gets alone.
"""

from __future__ import annotations

import time
from collections.abc import Hashable, Iterable
from collections.abc import Sequence as Rows

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.engine.cuda_graph import AHEAD, DecodeStream
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.proposers import Proposer
from anyformer.generation.engine.request import Event, FinishReason, Request, Sequence, TopLogprobs
from anyformer.generation.engine.sampler import NONE, Sampled, Sampler, SamplingState, top_logprobs
from anyformer.generation.engine.scheduler import Chunk, Limits, Scheduler
from anyformer.generation.engine.search_groups import advance_searches
from anyformer.generation.engine.speculative import verify
from anyformer.generation.engine.stats import Stats
from anyformer.generation.outputs import own_logprobs
from anyformer.generation.samplers.token_history import why_not
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
        self.events: list[Event] = []
        """What the next step reports."""
        self._ahead: tuple[DecodeStream, list[Sequence]] | None = None
        """Decode steps under way on the device, and whose they are."""

    def add(self, request: Request) -> None:
        """Let a request wait for its first step."""
        self.requests[request.id] = request
        self.scheduler.queue(request.sequences[0])

    def cancel(self, request: Request | Hashable) -> bool:
        """End a request now; the next step tells. False: it has ended before, or was never there."""
        name = request.id if isinstance(request, Request) else request
        found = self.requests.get(name)
        if found is None or (isinstance(request, Request) and found is not request):
            return False
        for sequence in list(found.sequences):
            if sequence.finish_reason is None:
                self.end(sequence, "cancelled")
        return True

    def close(self) -> None:
        """Cancel all that is under way, and give back what it holds."""
        for request in list(self.requests.values()):
            self.cancel(request)
        self._ahead = None

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to tell."""
        return not self.requests and not self.events

    def step(self) -> list[Event]:
        """Read what is scheduled, sample the next tokens, and tell what happened."""
        began = time.perf_counter()
        try:
            if self._in_training or any([module.training for module in self._modules]):
                with self._eval_mode as mode:
                    # Another thread may have put the model into eval mode, and takes it out again when it likes.
                    self._in_training = mode.holds
                    self._advance()
            else:
                self._advance()
        except BaseException:
            self._recover()
            raise
        self.stats.seconds += time.perf_counter() - began
        self.stats.steps += 1
        events, self.events = self.events, []
        return events

    def _advance(self) -> None:
        """One step: of the device, which samples by itself, or one in which the host does."""
        if self._ahead is not None and self._run_ahead():
            return
        scheduled = self.scheduler.schedule()
        if scheduled.decode:
            self._decode(scheduled.decode)
        for chunks in scheduled.prefill:
            # Who was preempted since then has nothing to read with.
            self._prefill([chunk for chunk in chunks if chunk[0].cached is not None])
        if self.runner.cuda_graphs:
            self._start_ahead()

    # Running ahead of the host

    def _start_ahead(self) -> None:
        """Let the device sample by itself for as long as nothing but the next token is wanted."""
        rows = self.scheduler.running
        if not rows or self.proposer is not None or self.scheduler.can_admit:
            return
        if not all(s.request.sampled_on_device and not s.isolated and self.scheduler.decodes(s) for s in rows):
            return
        rows = list(rows)
        stream = self.runner.decode_stream([s.held for s in rows], [s.tokens[-1] for s in rows], SamplingState.of(rows))
        self._ahead = None if stream is None else (stream, rows)

    def _run_ahead(self) -> bool:
        """Launch a step and read the tokens of an earlier one; False: nothing is under way any more."""
        if self._ahead is None:
            return False
        stream, rows = self._ahead
        room = not self.scheduler.can_admit and self.scheduler.running == rows
        # A row that has all of its tokens, counting those under way, needs no further step.
        room = room and all([len(s.tokens) - s.prompt_length + len(stream) < s.request.max_new_tokens for s in rows])
        if room and all([self.pool.reserve(s.held, 1) for s in rows]):
            stream.launch()
            self.stats.passes += 1
            self.stats.decode_tokens += len(rows)
            if len(stream) <= AHEAD:
                return True
        elif not len(stream):
            self._ahead = None
            return False
        else:
            room = False
        ids, finite = stream.read()
        for sequence, token, fine in zip(rows, ids, finite, strict=True):
            if sequence.finish_reason is None:
                self.take(sequence, Sampled(token) if fine else Sampled(NONE, InputError(NOT_FINITE)))
                if sequence.finish_reason is not None:
                    self.scheduler.remove(sequence, wipe=sequence.finish_reason == "failed")
                else:
                    self._register(sequence, 1)
        return True

    # Passes of the model

    def _decode(self, sequences: list[Sequence]) -> None:
        """Read the last token of each sequence, and sample the next."""
        self.stats.decode_tokens += len(sequences)
        for scheduled in _passes(sequences):
            # Who was preempted for a search of an earlier pass has nothing to read with.
            rows = [each for each in scheduled if each.cached is not None]
            if not rows:
                continue
            if self.proposer is not None:
                verify(self, self.proposer, rows)
                continue
            search = rows[0].request.search
            if search is not None and search.reads_hidden:
                self._read([(each, 1) for each in rows])
                continue
            try:
                self.stats.passes += 1
                cached = [each.cached for each in rows if each.cached is not None]
                logits_BV = self.runner.decode(cached, [each.tokens[-1] for each in rows])
            except BaseException as error:
                self.failed(rows, error)
                continue
            if self.scheduler.limits.enable_prefix_caching:
                for each in rows:
                    self._register(each, 1)
            self._sample(rows, logits_BV)

    def _prefill(self, chunks: list[Chunk]) -> None:
        """Read tokens of prompts, and sample where none are left."""
        if not chunks:
            return
        read = sum(taken for _, taken in chunks)
        self.stats.prefill_tokens += read
        self.stats.padding_tokens += max(taken for _, taken in chunks) * len(chunks) - read
        self._read(chunks)

    def _read(self, chunks: list[Chunk]) -> None:
        """One pass over some tokens of each sequence."""
        self.stats.passes += 1
        rows, lengths = [each for each, _ in chunks], [taken for _, taken in chunks]
        begins = [each.held.count for each in rows]
        try:
            hidden_BTD = self._forward(chunks)
            logits_BV = self.runner.logits(self.runner.last(hidden_BTD, lengths))
        except BaseException as error:
            self.failed(rows, error)
            return
        for i, (sequence, taken) in enumerate(chunks):
            self._register(sequence, taken)
            if sequence.request.prompt_logprobs is not None and begins[i] < sequence.prompt_length:
                self._note_prompt(sequence, begins[i], hidden_BTD[i, :taken])
        ready = [i for i, each in enumerate(rows) if len(each.tokens) == each.held.count]
        if len(ready) < len(rows):
            self._check_prefill([i for i in range(len(rows)) if i not in ready], rows, logits_BV)
            logits_BV = logits_BV[ready]
        if ready:
            hidden = [hidden_BTD[i, : lengths[i]] for i in ready]
            self._sample([rows[i] for i in ready], logits_BV, hidden)

    def _forward(self, chunks: list[Chunk]) -> Tensor:
        """A pass over some tokens, and beside them sources and global tokens where a request has some."""
        cached = [each.held for each, _ in chunks]
        ids = [each.tokens[each.held.count : each.held.count + taken] for each, taken in chunks]
        requests = [each.request for each, _ in chunks]
        sources = [each.source_S for each in requests if each.source_S is not None] if not cached[0].count else []
        if sources:
            self.stats.source_tokens += sum(map(len, sources))
            marks = [each.global_T for each in requests if each.global_T is not None]
        elif requests[0].global_T is not None and requests[0].source_S is None:
            marks = [_marks(each.request.global_T, each.held.count, taken) for each, taken in chunks]
        else:
            marks = []
        return self.runner.forward(cached, ids, sources=sources or None, global_tokens=marks or None)

    def failed(self, rows: list[Sequence], error: BaseException) -> None:
        """Nobody knows whose fault it was, or what had been written: all rows of a pass begin again, each alone, and one
        that fails alone ends.
        """
        if not self.pool.restartable:
            raise error
        alone = isinstance(error, Exception) and len({id(each.group[0]) for each in rows}) == 1
        for sequence in rows:
            if sequence.finish_reason is not None:
                continue
            if alone and isinstance(error, Exception):
                for each in (*sequence.group, *sequence.forks):
                    self.end(each, "failed", error)
            else:
                sequence.isolated = True
                self.stats.retries += 1
                if sequence.cached is not None:
                    self.scheduler.preempt(sequence)
        if not isinstance(error, Exception):
            raise error

    def _recover(self) -> None:
        """After a step that was interrupted: who has read all tokens, but got none, reads them again."""
        self._ahead = None
        if not self.pool.restartable:
            return
        for sequence in [each for each in self.scheduler.running if each.forks and len(each.new)]:
            self._fork(sequence)
        for sequence in list(self.scheduler.running):
            if sequence.finish_reason is not None:
                self.scheduler.remove(sequence)
                if self.proposer is not None:
                    self.proposer.forget(sequence)
            elif sequence.cached is not None and sequence.pending <= 0:
                self.scheduler.preempt(sequence)

    def _check_prefill(self, partial: list[int], rows: list[Sequence], logits_BV: Tensor) -> None:
        """End sequences whose prompt is not yet read but can't be continued, before others get what they have written."""
        for i, fine in zip(partial, logits_BV[partial].amax(-1).isfinite().tolist(), strict=True):
            if not fine:
                for each in (*rows[i].group, *rows[i].forks):
                    self.end(each, "failed", InputError(why_not(logits_BV[i], logits_BV[i]) or NOT_FINITE))

    def _register(self, sequence: Sequence, taken: int) -> None:
        """Let others share the blocks that a pass has filled."""
        if self.scheduler.blocks is None or not self.scheduler.limits.enable_prefix_caching:
            return
        count, size = sequence.held.count, self.scheduler.blocks.block_size
        if (count - taken) // size < count // size:
            self.scheduler.blocks.register_prefix(sequence.held, sequence.tokens)

    @torch.inference_mode()
    def _note_prompt(self, sequence: Sequence, begin: int, hidden_TD: Tensor) -> None:
        """Log-probabilities of a prompt's own tokens: what each one says of the next; nothing stands before the first."""
        request = sequence.request
        told: list[tuple[float, TopLogprobs] | None] = list((request.prompt_logprobs or [None])[: begin + 1])
        after = sequence.tokens[begin + 1 : min(begin + 1 + len(hidden_TD), sequence.prompt_length)]
        for at in range(0, len(after), PROMPT_CHUNK):
            some = after[at : at + PROMPT_CHUNK]
            own_TV = own_logprobs(self.runner.logits(hidden_TD[at : at + len(some)]))
            chosen = own_TV.gather(-1, torch.tensor(some, device=own_TV.device)[:, None])[:, 0].tolist()
            top = top_logprobs(own_TV, request.params.options.prompt_logprobs or 0)
            told += zip(chosen, top, strict=True)
        request.prompt_logprobs = told

    # Sampling

    def _sample(self, rows: list[Sequence], logits_BV: Tensor, hidden: Rows[Tensor] | None = None) -> None:
        """The next token of each sequence; those that stand behind one whose prompt was read begin here too."""
        if any([each.request.search is not None for each in rows]):
            searches = [i for i, each in enumerate(rows) if each.request.search is not None]
            advance_searches(
                self, [rows[i] for i in searches], logits_BV[searches], hidden and [hidden[i] for i in searches]
            )
            others = [i for i in range(len(rows)) if i not in searches]
            rows, logits_BV = [rows[i] for i in others], logits_BV[others]
            if not rows:
                return
        if any([each.forks for each in rows]):
            repeat = [i for i, each in enumerate(rows) for _ in range(1 + len(each.forks))]
            everyone = [each for first in rows for each in (first, *first.forks)]
            logits_BV = logits_BV[repeat]
        else:
            everyone = rows
        for sequence, sampled in zip(everyone, self.sampler.sample(logits_BV, everyone), strict=True):
            self.take(sequence, sampled)
        for sequence in rows:
            if sequence.forks:
                self._fork(sequence)
            if sequence.finish_reason is not None:
                self.scheduler.remove(sequence, wipe=sequence.finish_reason == "failed")

    def _fork(self, sequence: Sequence) -> None:
        """Let further answers go on by themselves, from what the first has read if there is room for that."""
        forks, sequence.forks = sequence.forks, []
        for fork in forks:
            if fork.finish_reason is not None:
                continue
            if sequence.cached is not None and not sequence.isolated:
                fork.cached = self.pool.fork(sequence.cached)
            if fork.cached is None:
                self.scheduler.queue(fork)
            else:
                self.stats.forked_tokens += fork.cached.count
                self.scheduler.start(fork)

    def take(self, sequence: Sequence, sampled: Sampled) -> None:
        """Write down what was sampled, and whether the sequence ends with it."""
        if sampled.error is not None:
            self._tell(sequence, "failed", sampled.error)
            return
        request, token = sequence.request, sampled.id
        sequence.tokens.append(token)
        self.stats.new_tokens += 1
        try:
            reason = self._finish_reason(sequence, token)
        except Exception as error:
            self._tell(sequence, "failed", error)
            return
        logprobs = top = prompt = None
        if sampled.logprob is not None:
            sequence.logprobs.append(sampled.logprob)
            sequence.top.append(sampled.top or ())
            logprobs, top = (sampled.logprob,), (sampled.top or (),)
        if request.prompt_logprobs is not None and len(sequence.tokens) == sequence.prompt_length + 1:
            prompt = tuple(request.prompt_logprobs)
        if reason is not None:
            self._close(sequence, reason)
        self.events.append(Event(request.id, sequence.index, (token,), logprobs, top, prompt, reason))

    def _finish_reason(self, sequence: Sequence, token: int) -> FinishReason | None:
        """Why a sequence ends with this token; None: it doesn't."""
        request, params = sequence.request, sequence.request.params
        if token in params.stop or (params.choices is not None and params.choices.complete(sequence.new)):
            return "stop"
        if sequence.stop_text is not None:
            sequence.stop_text.push(token)
            if sequence.stop_text.met is not None:
                return "stop"
        return "length" if len(sequence.tokens) - sequence.prompt_length >= request.max_new_tokens else None

    def end(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        """End a sequence outside of a choice."""
        if sequence.finish_reason is not None:
            return
        self.scheduler.remove(sequence, wipe=reason == "failed")
        sequence.forks = []
        if self.proposer is not None:
            self.proposer.forget(sequence)
        self._tell(sequence, reason, error)

    def _tell(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        self._close(sequence, reason, error)
        self.events.append(Event(sequence.request.id, sequence.index, finish_reason=reason, error=error))

    def _close(self, sequence: Sequence, reason: FinishReason, error: Exception | None = None) -> None:
        sequence.finish_reason, sequence.error = reason, error
        self.stats.finished += 1
        if sequence.request.done:
            del self.requests[sequence.request.id]

    def check(self) -> None:
        """Raise if a block, a slot or a request was lost, or counted twice."""
        if self.scheduler.blocks is not None:
            self.scheduler.blocks.check()
        wrong = self.scheduler.problems()
        alive = [s for request in self.requests.values() for s in request.sequences if s.finish_reason is None]
        behind = [fork for sequence in alive for fork in sequence.forks]
        waiting = [each for first in self.scheduler.waiting for each in first.group]
        placed = [*waiting, *self.scheduler.running, *behind]
        if len(placed) != len(alive) or {*map(id, placed)} != {*map(id, alive)}:
            wrong.append(f"{len(placed)} sequences wait, run or stand behind another, and {len(alive)} have not ended")
        if wrong:
            raise RuntimeError("an engine has lost count: " + "; ".join(wrong))


def _passes(sequences: list[Sequence]) -> Iterable[list[Sequence]]:
    """Sequences that are read together: searches that look at states apart from the others, and whoever failed alone."""
    if not any([each.isolated or each.request.search is not None for each in sequences]):
        return [sequences]
    groups: dict[object, list[Sequence]] = {}
    for each in sequences:
        search = each.request.search
        key: object = search if each.isolated and search is not None else each if each.isolated else None
        groups.setdefault((key, search is not None, search is not None and search.reads_hidden), []).append(each)
    return groups.values()


def _marks(global_T: Tensor | None, begin: int, count: int) -> Tensor:
    """Which of some tokens are global; none after the prompt is."""
    part = torch.zeros(count, dtype=torch.long) if global_T is None else global_T[begin : begin + count]
    return torch.nn.functional.pad(part, (0, count - len(part)))
