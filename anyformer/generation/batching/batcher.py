"""The batcher: many requests through one model, each joining and leaving as it comes and ends.

One thread drives it: `submit` and `cancel` at any time, `step` as long as it is not `idle`. Nothing blocks, and nothing
is global. Whoever else is there, a request gets the tokens that `generate` gives it alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.asking.options import Options, read_options
from anyformer.generation.asking.request import check_model, room
from anyformer.generation.batching.choosing import Chooser, Chosen, likeliest
from anyformer.generation.batching.intake import make_ticket
from anyformer.generation.batching.schedule import Schedule, Work
from anyformer.generation.batching.stats import Stats
from anyformer.generation.batching.ticket import Answer, Event, Reason, Ticket, Top
from anyformer.generation.details import own_logprobs
from anyformer.generation.running.runner import Runner
from anyformer.generation.samplers import Choices
from anyformer.generation.samplers.choose import why_not
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model

OWN = ("input_ids", "global_mask", "rope_length", "id")
"""What `submit` reads beside `Options`."""
NOT_FINITE = "the logits are not finite, so no token can be chosen"


class Batcher:
    """Serves requests of one model.

    Args:
        model: A decoder or an encoder-decoder with an lm head. It is in eval mode during steps. Its weights may change
            while no request is under way.
        seats: Answers that run beside each other.
        length: Tokens that an answer may have, its prompt included. None: what the model is made for.
        pages: Pages of `size` tokens that all answers share, for layers that keep every token. None: enough for all
            seats at full length.
        size: Tokens of a page. None: 16; on CUDA 64, as the numbers of pages are sent there in many steps.
        budget: Tokens that a step reads: one of each running answer, and as many of prompts as are left.
        chunk: Tokens of one prompt that are read at once.
        spare: Pages for each running answer that stay free for it when another one is let in. 0: more run beside each
            other, and where pages run out, the youngest give theirs back and read their tokens again later.
        storage: How keys and values are kept: "model", in the model's dtype, or "int8".
        tokenizer: The model's, needed where an option is a text: stop strings, choices, bad words.
        share: Whether equal beginnings of prompts are read once.
        same_shapes: Every pass has a shape that depends on nobody else, so that a request gets the same tokens in any
            company in 16 bits too, where a product may round otherwise when more rows are in it. Steps read all seats,
            prompts are read one by one, and nothing is shared. With too few pages, what is read again may round otherwise.
    """

    def __init__(
        self,
        model: Model,
        *,
        seats: int = 32,
        length: int | None = None,
        pages: int | None = None,
        size: int | None = None,
        budget: int = 2048,
        chunk: int = 512,
        spare: int = 1,
        storage: str = "model",
        tokenizer: Tokenizer | None = None,
        share: bool = True,
        same_shapes: bool = False,
    ) -> None:
        check_model(model.spec)
        least = (("budget", budget, 1), ("chunk", chunk, 1), ("spare", spare, 0))
        wrong = [f"{name}: at least {low}, got {n}" for name, n, low in least if n < low]
        if wrong:
            raise InputError("; ".join(wrong))
        self.model, self.tokenizer, self.stats = model, tokenizer, Stats()
        self.two = model.spec.topology == "encoder-decoder"
        if size is None:
            size = 64 if next(model.parameters()).device.type == "cuda" else 16
        most = room(model)[0] if length is None else length
        self.pool = model.new_pool(seats, most, size=size, pages=pages, storage=storage)
        # What a decoder keeps of its own tokens depends on the source too.
        shares = share and not self.two and not same_shapes
        self.schedule = Schedule(self.pool, budget=budget, chunk=chunk, spare=spare, share=shares, stats=self.stats)
        self.schedule.apart = same_shapes
        self.same_shapes = same_shapes
        self.runner = self._runner()
        self._weights = _weights(model)
        self.chooser = Chooser(self.pool.device)
        self._modules = list(model.modules())
        self._tickets: dict[Hashable, Ticket] = {}
        """Those that have not ended."""
        self._events: list[Event] = []
        """What the next step tells."""
        self._arrivals = 0

    def _runner(self) -> Runner:
        # A captured step of an encoder-decoder is for the sources that it was captured with, and here they change.
        return Runner(self.model, self.pool, captures=False if self.two else None, same_shapes=self.same_shapes)

    def submit(
        self,
        input_ids: Tensor | Sequence[int],
        options: Options | None = None,
        *,
        global_mask: Tensor | Sequence[int] | None = None,
        rope_length: int | None = None,
        id: Hashable = None,
        **named: Any,
    ) -> Ticket:
        """Take a request: one prompt (of an encoder-decoder: one source), and the options of `generate`, as `Options` or
        by name. What is wrong with it is said here, and then nothing of it is kept.

        `id` is what its events are called by; None: a number that no other ticket has.
        """
        if options is not None and named:
            raise TypeError(f"submit(...): options are given, so leave out {', '.join(sorted(named))}")
        asked = read_options(named, others=OWN, caller="submit") if options is None else options
        arrival = self._arrivals
        name = arrival if id is None else id
        if name in self._tickets:
            raise InputError(f"id: {name!r} is that of a ticket that has not ended; give another one")
        ticket = make_ticket(
            self.model, self.schedule, input_ids, asked, name=name, arrival=arrival, tokenizer=self.tokenizer,
            global_mask=global_mask, rope_length=rope_length, stacklevel=2,
        )  # fmt: skip
        if not self._tickets:
            self._see_weights()
        self._arrivals += 1
        self._tickets[name] = ticket
        self.schedule.queue(ticket.answers[0])
        return ticket

    def cancel(self, ticket: Ticket | Hashable) -> bool:
        """End a request now; the next step tells. False: it has ended before, or was never there."""
        name = ticket.id if isinstance(ticket, Ticket) else ticket
        found = self._tickets.get(name)
        if found is None or (isinstance(ticket, Ticket) and found is not ticket):
            return False
        for answer in found.answers:
            if answer.reason is None:
                self._end(answer, "cancelled")
        return True

    @property
    def idle(self) -> bool:
        """Whether there is nothing to do and nothing to tell."""
        return not self._tickets and not self._events

    def step(self) -> list[Event]:
        """Read what is next, choose a token for each answer that can have one, and tell what happened."""
        began = time.perf_counter()
        try:
            with self._eval():
                ready = self._read(self.schedule.decide())
                if ready:
                    self._choose(ready)
        except BaseException:
            self._mend()
            raise
        self.stats.seconds += time.perf_counter() - began
        self.stats.steps += 1
        events, self._events = self._events, []
        return events

    def __iter__(self) -> Iterator[Event]:
        """Events, until there is nothing more to do."""
        while not self.idle:
            yield from self.step()

    def run(self, requests: Iterable[Mapping[str, Any]]) -> list[Ticket]:
        """Serve some requests to their end, each given by the arguments of `submit`; their tickets, in order.

        If one of them is refused, none is served.
        """
        tickets: list[Ticket] = []
        try:
            for each in requests:
                tickets.append(self.submit(**each))
            while not all(ticket.done for ticket in tickets):
                self.step()
        except BaseException:
            for ticket in tickets:
                self.cancel(ticket)
            raise
        return tickets

    def check(self) -> None:
        """Raise if a page, a seat or a request was lost, or counted twice."""
        self.pool.check()
        wrong = self.schedule.problems()
        alive = [answer for ticket in self._tickets.values() for answer in ticket.answers if answer.reason is None]
        behind = [twin for answer in alive for twin in answer.twins]
        placed = [*self.schedule.waiting, *self.schedule.running, *behind]
        if len(placed) != len(alive) or {*map(id, placed)} != {*map(id, alive)}:
            wrong.append(f"{len(placed)} answers wait, run or stand behind another, and {len(alive)} have not ended")
        if wrong:
            raise RuntimeError("a batcher has lost count: " + "; ".join(wrong))

    @contextlib.contextmanager
    def _eval(self) -> Iterator[None]:
        """Eval mode. To look at flags is cheap; a model that serves is in it already."""
        if any(module.training for module in self._modules):
            with eval_mode(self.model):
                yield
        else:
            yield

    def _see_weights(self) -> None:
        """Where the model has learned or was loaded since the last request, forget what it kept of prompts."""
        if _weights(self.model) != self._weights:
            for paper in self.pool.papers:
                paper.forget_all()
            self.runner = self._runner()
            # Merging may have moved them.
            self._weights, self._modules = _weights(self.model), list(self.model.modules())

    def _read(self, work: Work) -> list[tuple[Answer, Tensor, int]]:
        """Run the passes of a step: the answers that have read all of their tokens, each with logits and its row."""
        ready: list[tuple[Answer, Tensor, int]] = []
        going = [[each] for each in work.going if each.alone]
        together = [each for each in work.going if not each.alone]
        for rows in [together, *going] if together else going:
            logits_BV = self._pass([(each, 1) for each in rows])
            if logits_BV is not None:
                # The logits of a captured step are overwritten by the next.
                logits_BV = logits_BV.clone() if going else logits_BV
                ready += [(each, logits_BV, i) for i, each in enumerate(rows)]
                self.stats.decode_tokens += len(rows)
        for rows in work.chunks:
            logits_BV = self._pass(rows)
            if logits_BV is None:
                continue
            self._check_halfway(rows, logits_BV)
            ready += [(each, logits_BV, i) for i, (each, _) in enumerate(rows) if each.pending == 0]
            read = sum(taken for _, taken in rows)
            self.stats.prefill_tokens += read
            self.stats.padding_tokens += max(taken for _, taken in rows) * len(rows) - read
        return ready

    def _mend(self) -> None:
        """After a step that was interrupted: who has read all tokens, but got none, reads them again."""
        for answer in [each for each in self.schedule.running if each.twins and each.count]:
            self._part(answer)
        for answer in list(self.schedule.running):
            if answer.reason is not None:
                self.schedule.drop(answer)
            elif answer.pending == 0:
                self.schedule.back(answer)

    def _check_halfway(self, rows: list[tuple[Answer, int]], logits_BV: Tensor) -> None:
        """End answers whose prompt is not yet read but can't be continued, before others get what they have written."""
        halfway = [i for i, (answer, _) in enumerate(rows) if answer.pending]
        if not halfway:
            return
        finite = logits_BV[halfway].amax(-1).isfinite().tolist()
        for i, fine in zip(halfway, finite, strict=True):
            if not fine:
                for each in (rows[i][0], *rows[i][0].twins):
                    self._end(each, "failed", InputError(why_not(logits_BV[i], logits_BV[i]) or NOT_FINITE))

    def _pass(self, rows: list[tuple[Answer, int]]) -> Tensor | None:
        """One run of the model: logits (B,V) after the tokens of each row; None if it failed.

        Nobody knows whose fault it was, or what had been written: all of its rows begin again, each alone, and one that
        fails alone ends.
        """
        self.stats.passes += 1
        try:
            logits_BV = self._run(rows)
        except Exception as error:
            for answer, _ in rows:
                self._again(answer, error if len(rows) == 1 else None)
            return None
        except BaseException:
            for answer, _ in rows:
                self._again(answer, None)
            raise
        if self.schedule.share:
            for answer, taken in rows:
                tenant = answer.held
                if (tenant.count - taken) // self.pool.size < tenant.count // self.pool.size:
                    self.pool.note(tenant, answer.tokens)
        return logits_BV

    def _again(self, answer: Answer, error: Exception | None) -> None:
        if error is not None:
            for each in (answer, *answer.twins):
                self._end(each, "failed", error)
            return
        answer.alone = True
        self.stats.retries += 1
        self.schedule.back(answer)

    def _run(self, rows: list[tuple[Answer, int]]) -> Tensor:
        tenants = [answer.held for answer, _ in rows]
        first, most = rows[0][0], max(taken for _, taken in rows)
        if first.goes_on:
            last = torch.tensor([answer.tokens[-1] for answer, _ in rows], device=self.pool.device)
            return self.runner.step(tenants, last)
        ids = [each.tokens[-each.pending :][:taken] for each, taken in rows]
        ticket = first.ticket
        if ticket.prompt_logprobs is not None and first.count == 0:
            return self._read_prompt(first, ids[0])
        given: dict[str, Any] = {}
        if ticket.source_1S is not None:
            given = {"input_ids": ticket.source_1S, "global_mask": ticket.marks_1T}
            self.stats.source_tokens += ticket.source_1S.shape[1]
        elif ticket.marks_1T is not None:
            given = {"global_mask": _marks(ticket.marks_1T, tenants[0].count, most)}
        return self.runner.read(tenants, ids, **given)

    @torch.inference_mode()
    def _read_prompt(self, answer: Answer, ids: list[int]) -> Tensor:
        """Read tokens of a prompt whose own log-probabilities are asked for."""
        ticket, tenant = answer.ticket, answer.held
        told: list[tuple[float, Top] | None] = [None]
        begin = tenant.count
        marks = {} if ticket.marks_1T is None else {"global_mask": _marks(ticket.marks_1T, begin, len(ids))}
        states_TD = self.runner.states([tenant], [ids], **marks)[0]
        # What each token says of the one after it; nothing stands before the first.
        if begin and ticket.prompt_logprobs is not None:
            told = ticket.prompt_logprobs[: begin + 1]
        after = answer.tokens[begin + 1 : begin + 1 + len(ids)]
        if after:
            own_TV = own_logprobs(self.runner.logits(states_TD[: len(after)]))
            chosen = own_TV.gather(-1, torch.tensor(after, device=own_TV.device)[:, None])[:, 0].tolist()
            top = likeliest(own_TV, ticket.plan.options.prompt_logprobs or 0)
            told += zip(chosen, top, strict=True)
        ticket.prompt_logprobs = told
        return self.runner.logits(states_TD[-1:])

    def _choose(self, ready: list[tuple[Answer, Tensor, int]]) -> None:
        """The next token of each answer; those that stand behind one whose prompt was read begin here too."""
        answers: list[Answer] = []
        parts: list[Tensor] = []
        rows: list[int] = []
        base = 0
        for answer, logits_BV, row in ready:
            if not parts or parts[-1] is not logits_BV:
                base = sum(len(part) for part in parts)
                parts.append(logits_BV)
            answers += (answer, *answer.twins)
            rows += [base + row] * (1 + len(answer.twins))
        logits_BV = parts[0] if len(parts) == 1 else torch.cat(parts)
        if rows != list(range(len(logits_BV))):
            logits_BV = logits_BV[rows]
        for answer, chosen in zip(answers, self.chooser.choose(logits_BV, answers), strict=True):
            self._take(answer, chosen)
        for answer, _, _ in ready:
            self._part(answer)
            if answer.reason is not None:
                self.schedule.drop(answer, wipe=answer.reason == "failed")

    def _part(self, answer: Answer) -> None:
        """Let the twins of an answer go on by themselves, from what it has read if there is room for that."""
        twins, answer.twins = answer.twins, []
        for twin in twins:
            if twin.reason is not None:
                continue
            if answer.tenant is not None and not answer.alone:
                twin.tenant = self.pool.fork(answer.tenant)
            if twin.tenant is None:
                self.schedule.queue(twin)
            else:
                self.stats.forked_tokens += twin.tenant.count
                self.schedule.seat(twin)

    def _take(self, answer: Answer, chosen: Chosen) -> None:
        """Write down what was chosen, and whether the answer ends with it."""
        ticket = answer.ticket
        if chosen.error is not None:
            self._tell(answer, "failed", chosen.error)
            return
        answer.tokens.append(chosen.id)
        self.stats.new_tokens += 1
        try:
            reason = self._reason(answer, chosen.id)
        except Exception as error:
            self._tell(answer, "failed", error)
            return
        logprobs = top = prompt = None
        if chosen.logprob is not None:
            answer.logprobs.append(chosen.logprob)
            answer.top.append(chosen.top or ())
            logprobs, top = (chosen.logprob,), (chosen.top or (),)
        if answer.count == 1 and ticket.prompt_logprobs is not None:
            prompt = tuple(ticket.prompt_logprobs)
        if reason is not None:
            self._close(answer, reason)
        self._events.append(
            Event(
                ticket.id, answer.number, (chosen.id,), logprobs=logprobs, top=top, prompt_logprobs=prompt,
                reason=reason,
            )
        )  # fmt: skip

    def _reason(self, answer: Answer, token: int) -> Reason | None:
        """Why an answer ends with this token; None: it doesn't."""
        ticket, plan = answer.ticket, answer.ticket.plan
        if token in plan.stop or (plan.choices is not None and _complete(plan.choices, answer.new)):
            return "stop"
        if answer.stream is not None:
            answer.stream.push(token)
            if answer.stream.met is not None:
                return "stop"
        return "length" if answer.count >= ticket.most else None

    def _end(self, answer: Answer, reason: Reason, error: Exception | None = None) -> None:
        """End an answer outside of a choice."""
        self.schedule.drop(answer, wipe=reason == "failed")
        answer.twins = []
        self._tell(answer, reason, error)

    def _tell(self, answer: Answer, reason: Reason, error: Exception | None = None) -> None:
        self._close(answer, reason, error)
        self._events.append(Event(answer.ticket.id, answer.number, reason=reason, error=error))

    def _close(self, answer: Answer, reason: Reason, error: Exception | None = None) -> None:
        answer.reason, answer.error = reason, error
        self.stats.finished += 1
        if answer.ticket.done:
            del self._tickets[answer.ticket.id]


def _weights(model: Model) -> list[tuple[int, int]]:
    """Where each parameter is, and how often it was changed in place."""
    return [(p.data_ptr(), 0 if p.is_inference() else p._version) for p in model.parameters()]


def _complete(choices: Choices, new: Sequence[int]) -> bool:
    """Whether new tokens are an answer that no other one begins with."""
    said = tuple(new)
    alive = [answer for answer in choices.answers if answer[: len(said)] == said]
    return alive == [said]


def _marks(marks_1T: Tensor, begin: int, count: int) -> Tensor:
    """The marks of some tokens of a row; those after the prompt are not marked."""
    part = marks_1T[:, begin : begin + count]
    return torch.nn.functional.pad(part, (0, count - part.shape[1]))
