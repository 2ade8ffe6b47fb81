"""Searches that compare whole continuations: beam search and contrastive search.

An engine asks a search with which tokens which sequences of a request go on, and forks and frees them accordingly.
"""

from __future__ import annotations

import abc
import functools
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from anyformer.errors import InputError
from anyformer.generation.engine.request import Request, RequestOutput, Sequence
from anyformer.generation.params.validate import ResolvedParams
from anyformer.generation.samplers.logits_processors import NEVER, counts_BV, own_logprobs, why_not

if TYPE_CHECKING:
    from anyformer.generation.engine.core import EngineCore


Moves = list[tuple[int, int]]
"""Of each next sequence: the number of the one that it goes on from, and its new token."""


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One answer of a search."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The model's own log-probabilities of its tokens."""
    stopped: bool
    """Whether it ended with a stop token."""
    score: float | None = None
    """By what answers were ranked."""


class Search(abc.ABC):
    """A policy over the sequences of one request, which are forked and dropped as it says."""

    reads_hidden: ClassVar[bool] = False
    """Whether it looks at the states that the head reads, those of the prompt included."""

    def __init__(self, params: ResolvedParams, max_new_tokens: int) -> None:
        self.params, self.max_new_tokens = params, max_new_tokens
        self.results: list[Hypothesis] = []
        """When it has ended: its answers, the best first."""

    @abc.abstractmethod
    def advance(self, logits_RV: Tensor, process: Callable[[Tensor], Tensor], hidden: list[Tensor]) -> Moves:
        """The next sequences: each goes on from one of those before, with a token; none: the search has ended.

        `process` applies the request's logits processors to logits (R,V). `hidden` are the states of what was computed
        of each sequence (T,D): first of the prompt, then of one token; empty unless the search reads them.
        """


def check_finite(logits_RV: Tensor, left_RV: Tensor) -> None:
    """Refuse rows that leave nothing to choose from."""
    for row in (~left_RV.amax(-1).isfinite()).nonzero().flatten().tolist():
        raise InputError(why_not(logits_RV[row], left_RV[row]) or "no token can be chosen")


SMALL, LARGE = 1e-30, 1e30
"""What a length to some power is kept between, so that a score stays finite."""


class BeamSearch(Search):
    """The best `n` hypotheses of a request. Its rows are ordered by group, then beam; one prefill serves all beams.

    Hypotheses are ranked by the sum of their tokens' log-probabilities, after the processors, divided by their length to
    the power of `length_penalty`. Groups of beams (Vijayakumar et al. 2018, algorithm 1 with Hamming diversity) take their
    turns within a step: a token costs `diversity_penalty` for each beam of an earlier group that went on with it.
    """

    def __init__(self, params: ResolvedParams, max_new_tokens: int) -> None:
        super().__init__(params, max_new_tokens)
        self.groups: list[Group] = []
        self.step = 0

    def advance(self, logits_RV: Tensor, process: Callable[[Tensor], Tensor], hidden: list[Tensor]) -> Moves:
        """Take one more token in every beam."""
        options, own_RV = self.params.options, own_logprobs(logits_RV)
        check_finite(logits_RV, own_RV)
        left_RV, first = process(own_RV), not self.groups
        groups, beams = options.num_beam_groups, options.num_beams // options.num_beam_groups
        if first:
            own_RV, left_RV = (each.expand(options.num_beams, -1) for each in (own_RV, left_RV))
            self.groups = [Group(self.params, self.max_new_tokens, beams, own_RV) for _ in range(groups)]
        own_GWV, left_GWV = (each.view(groups, beams, -1) for each in (own_RV, left_RV))
        taken_V = torch.zeros_like(own_RV[:1])
        for group, own_WV, left_WV in zip(self.groups, own_GWV, left_GWV, strict=True):
            searching = group.open
            group.advance(self.step, left_WV - options.diversity_penalty * taken_V, own_WV)
            # Neither a group that has found its best holds others back, nor a beam that nothing was left for.
            if searching:
                taken_V = taken_V + counts_BV(group.ids_W.masked_fill(group.score_W == NEVER, -1)[None], taken_V)
        self.step += 1
        if self.step == self.max_new_tokens or not any(group.open for group in self.groups):
            self._end()
            return []
        parents = [beams * g + int(parent) for g, group in enumerate(self.groups) for parent in group.parent_W.tolist()]
        ids = [int(each) for group in self.groups for each in group.ids_W.tolist()]
        return [(0 if first else parent, token) for parent, token in zip(parents, ids, strict=True)]

    def _end(self) -> None:
        """The best hypotheses of all groups."""
        count = self.params.options.n
        score_A, which_A = torch.cat([group.best_W for group in self.groups]).topk(count)
        found = int((score_A > NEVER).sum())
        if found < count:
            raise InputError(
                f"the samplers and {self.max_new_tokens} new tokens leave {found} hypotheses, and n = {count} were asked "
                "for; loosen a sampler, or ask for fewer"
            )
        ids_AN = torch.cat([group.ended_WN for group in self.groups])[which_A].tolist()
        own_AN = torch.cat([group.ended_own_WN for group in self.groups])[which_A].tolist()
        length_A = torch.cat([group.length_W for group in self.groups])[which_A].tolist()
        self.results = [
            Hypothesis(tuple(ids[:n]), tuple(own[:n]), ids[n - 1] in self.params.stop, score)
            for ids, own, n, score in zip(ids_AN, own_AN, length_A, score_A.tolist(), strict=True)
        ]


class Group:
    """Beams that compete with each other, and the hypotheses that they have brought to an end."""

    def __init__(self, params: ResolvedParams, max_new_tokens: int, width: int, like: Tensor) -> None:
        options, device = params.options, like.device
        self.width, self.new = width, max_new_tokens
        self.power, self.early = float(options.length_penalty), options.early_stopping
        self.stop_S = torch.tensor(params.stop, dtype=torch.long, device=device)
        # As many candidates that may all stop, and still as many that go on.
        self.candidates = max(2, 1 + len(params.stop)) * width
        self.score_W = like.new_full((width,), NEVER)
        """The sum of each beam that goes on. At first there is one only: all would say the same."""
        self.score_W[0] = 0
        self.said_WN = torch.zeros(width, max_new_tokens, dtype=torch.long, device=device)
        self.own_WN = like.new_zeros(width, max_new_tokens)
        """The model's own log-probabilities of what was said."""
        self.parent_W = torch.zeros(width, dtype=torch.long, device=device)
        """Which beam of the step before each one goes on from."""
        self.ids_W = self.parent_W
        """With which token."""
        self.best_W = like.new_full((width,), NEVER)
        """Scores of hypotheses that have ended, the best first; NEVER where there is none yet."""
        self.ended_WN, self.ended_own_WN = self.said_WN.clone(), self.own_WN.clone()
        self.length_W = self.parent_W.clone()
        self.open = True
        """Whether a better hypothesis may still be found."""

    def advance(self, step: int, left_WV: Tensor, own_WV: Tensor) -> None:
        """Take one more token in every beam."""
        vocab = left_WV.shape[-1]
        total_C = (self.score_W[:, None] + left_WV).flatten()
        sum_K, at_K = total_C.topk(min(self.candidates, len(total_C)))
        beam_K, ids_K = at_K // vocab, at_K % vocab
        said_KN, own_KN = self.said_WN[beam_K], self.own_WN[beam_K]
        said_KN[:, step] = ids_K
        own_KN[:, step] = own_WV.flatten()[at_K]
        stops_K = torch.isin(ids_K, self.stop_S)
        self._keep_ended(step, sum_K, stops_K | (step == self.new - 1), said_KN, own_KN)
        self.score_W, which_W = sum_K.masked_fill(stops_K, NEVER).topk(self.width)
        self.said_WN, self.own_WN = said_KN[which_W], own_KN[which_W]
        self.parent_W, self.ids_W = beam_K[which_W], ids_K[which_W]
        worst = self.best_W[-1]
        # Log-probabilities only add up, so at most a greater length makes a score better.
        ahead = self.new if self.early == "never" and self.power > 0 else step + 1
        better = self.score_W[0] / self._length(ahead) > worst
        self.open = self.open and bool(better) and not (self.early is True and bool(worst > NEVER))

    def _keep_ended(self, step: int, sum_K: Tensor, ends_K: Tensor, said_KN: Tensor, own_KN: Tensor) -> None:
        """Keep the best of the hypotheses that have ended. The spare candidates only see to it that beams go on."""
        new_K = (sum_K / self._length(step + 1)).masked_fill(~ends_K, NEVER)
        new_K[self.width :] = NEVER
        if not self.open:
            new_K.fill_(NEVER)
        self.best_W, which_W = torch.cat((self.best_W, new_K)).topk(self.width)
        self.ended_WN = torch.cat((self.ended_WN, said_KN))[which_W]
        self.ended_own_WN = torch.cat((self.ended_own_WN, own_KN))[which_W]
        self.length_W = torch.cat((self.length_W, torch.full_like(said_KN[:, 0], step + 1)))[which_W]

    def _length(self, tokens: int) -> Tensor:
        """What a sum is divided by."""
        power = torch.tensor(float(tokens), dtype=torch.float64) ** self.power
        return power.clamp(SMALL, LARGE)


class ContrastiveSearch(Search):
    """A likely token whose state is unlike those of all tokens before it (Su et al. 2022, equation 5).

    Each of the `top_k` likeliest tokens is computed: they are the rows of a step. The score of one is (1 - alpha) * its
    probability - alpha * the largest cosine between its state and those of the tokens so far, prompt included. States are
    those that the head reads.
    """

    reads_hidden = True

    def __init__(self, params: ResolvedParams, max_new_tokens: int) -> None:
        super().__init__(params, max_new_tokens)
        self.width, self.alpha = params.options.top_k or 1, float(params.options.penalty_alpha or 0)
        self.unit_ND = torch.empty(0)
        """The directions of the states of all tokens so far."""
        self.candidates: list[int] = []
        self.probs_K = self.own_K = torch.empty(0)
        """Of the candidates: what they weigh, and the model's own log-probabilities."""
        self.ids: list[int] = []
        self.logprobs: list[float] = []

    def advance(self, logits_RV: Tensor, process: Callable[[Tensor], Tensor], hidden: list[Tensor]) -> Moves:
        """Keep the best candidate, and read those that may follow it."""
        best = 0
        if not self.candidates:
            self.unit_ND = _directions(hidden[0])
        else:
            best = self._keep(_directions(torch.stack([hidden_TD[-1] for hidden_TD in hidden])))
            stopped = self.ids[-1] in self.params.stop
            if stopped or len(self.ids) == self.max_new_tokens:
                self.results = [Hypothesis(tuple(self.ids), tuple(self.logprobs), stopped)]
                return []
        logits_1V, left_1V = logits_RV[best : best + 1], process(logits_RV)[best : best + 1]
        check_finite(logits_1V, left_1V)
        width = min(self.width, logits_1V.shape[-1])
        logit_K, ids_K = left_1V[0].topk(width)
        probs_K = (logit_K - left_1V[0].logsumexp(-1)).exp()
        # What the processors ruled out fills up, and is never the best.
        self.probs_K = probs_K.masked_fill(logit_K == NEVER, NEVER)
        self.own_K, self.candidates = own_logprobs(logits_1V)[0, ids_K], ids_K.tolist()
        return [(best, token) for token in self.candidates]

    def _keep(self, unit_KD: Tensor) -> int:
        """Which candidate is the best; it is said."""
        likeness_K = (unit_KD @ self.unit_ND.T).amax(-1)
        score_K = torch.where(self.probs_K == NEVER, NEVER, (1 - self.alpha) * self.probs_K - self.alpha * likeness_K)
        best = int(score_K.argmax())
        self.ids.append(self.candidates[best])
        self.logprobs.append(float(self.own_K[best]))
        self.unit_ND = torch.cat((self.unit_ND, unit_KD[best : best + 1]))
        return best


def _directions(states_ND: Tensor) -> Tensor:
    return normalize(states_ND.to(torch.promote_types(states_ND.dtype, torch.float32)), dim=-1)


def advance_searches(engine: EngineCore, rows: list[Sequence], logits_BV: Tensor, hidden: Rows[Tensor] | None) -> None:
    """The next sequences of each search, forked from those before."""
    for request in dict.fromkeys(each.request for each in rows):
        index = [i for i, each in enumerate(rows) if each.request is request]
        search, mine = request.search, [rows[i] for i in index]
        if search is None or any(each.allocation is None for each in mine):
            # An older search has taken its blocks meanwhile; it is prefilled again, and asked then.
            continue
        process = functools.partial(engine.sampler.processed, sequences=mine)
        states = [hidden[i] for i in index] if search.reads_hidden and hidden is not None else []
        try:
            moves = search.advance(logits_BV[index], process, states)
        except Exception as error:
            for each in mine:
                engine.finish(each, "failed", error)
            continue
        if moves:
            _fork_sequences(engine, request, mine, moves)
        else:
            _finish_request(engine, request, mine, search.results)


def _fork_sequences(engine: EngineCore, request: Request, old: list[Sequence], moves: Moves) -> None:
    """Sequences with one more token each, in place of those before."""
    made = [
        Sequence(request, i, old[parent].key, [*old[parent].tokens, token], old[parent].prompt_length)
        for i, (parent, token) in enumerate(moves)
    ]
    parents = [parent for parent, _ in moves]
    for i, sequence in enumerate(old):
        engine.scheduler.running.remove(sequence)
        if i not in parents:
            engine.pool.free(sequence.kv)
            sequence.allocation = None
    request.sequences = made
    for i, sequence in enumerate(made):
        parent = old[parents[i]]
        # The last one that goes on from a sequence has what it held.
        last = parents[i] not in parents[i + 1 :]
        sequence.isolated = parent.isolated
        sequence.allocation = parent.allocation if last else engine.scheduler.fork(parent)
        if sequence.allocation is not None:
            engine.scheduler.start(sequence)
    if any(each.allocation is None for each in made):
        engine.scheduler.preempt(made[0])


def _finish_request(engine: EngineCore, request: Request, old: list[Sequence], found: list[Hypothesis]) -> None:
    """What a search has found, in place of its sequences."""
    for sequence in old:
        engine.scheduler.remove(sequence)
    prompt, request.sequences = old[0].tokens[: old[0].prompt_length], []
    for i, each in enumerate(found):
        reason = "stop" if each.stopped else "length"
        sequence = Sequence(request, i, 0, [*prompt, *each.ids], len(prompt), finish_reason=reason)
        sequence.logprobs = list(each.logprobs)
        request.sequences.append(sequence)
        engine.stats.new_tokens += len(each.ids)
        engine.stats.finished += 1
        engine.outputs.append(RequestOutput(request.id, i, each.ids, each.logprobs, finish_reason=reason))
    del engine.requests[request.id]
