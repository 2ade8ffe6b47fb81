"""The next token of each row, whose requests may ask for different things."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.batching.ticket import Answer, Top
from anyformer.generation.details import own_logprobs
from anyformer.generation.samplers import Past, apply_chains
from anyformer.generation.samplers.choose import why_not
from anyformer.generation.samplers.draw import pick, uniform
from anyformer.generation.samplers.vector import Work, choose, work

NONE = -1
"""Instead of an id: no token can be chosen."""


@dataclass
class Chosen:
    """What was chosen for a row."""

    id: int
    error: Exception | None = None
    logprob: float | None = None
    top: Top | None = None


class Chooser:
    """Chooses tokens, and remembers what the last rows asked for: from step to step they are mostly the same."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._rows: list[Answer] = []
        self._work: Work = "greedy"
        self._asked: tuple[Tensor, Tensor, Tensor, Tensor, Tensor] | None = None

    @torch.inference_mode()
    def choose(self, logits_BV: Tensor, answers: list[Answer]) -> list[Chosen]:
        """A token for each answer; one for which there is none gets an error, and the others don't notice."""
        try:
            found = self._choose(logits_BV, answers)
        except Exception as error:
            if len(answers) == 1:
                return [Chosen(NONE, error)]
            return [self.choose(logits_BV[i : i + 1], [answer])[0] for i, answer in enumerate(answers)]
        self._add_logprobs(logits_BV, answers, found)
        return found

    def _choose(self, logits_BV: Tensor, answers: list[Answer]) -> list[Chosen]:
        usual = [i for i, answer in enumerate(answers) if answer.ticket.plan.usual]
        if len(usual) == len(answers):
            ids = self._usual(logits_BV, answers).tolist()
            left = {}
        else:
            ids, left = [NONE] * len(answers), {}
            special = [i for i, answer in enumerate(answers) if not answer.ticket.plan.usual]
            left_RV = self._left(logits_BV[special], [answers[i] for i in special])
            found = _finite(left_RV, self._pick(left_RV, [answers[i] for i in special])).tolist()
            for row, i in enumerate(special):
                ids[i], left[i] = found[row], left_RV[row]
            if usual:
                found = self._usual(logits_BV[usual], [answers[i] for i in usual]).tolist()
                for row, i in enumerate(usual):
                    ids[i] = found[row]
        return [
            Chosen(each) if each != NONE else Chosen(NONE, _why(logits_BV[i], left.get(i, logits_BV[i])))
            for i, each in enumerate(ids)
        ]

    def _usual(self, logits_BV: Tensor, answers: list[Answer]) -> Tensor:
        """Ids of rows that need no more than a temperature and the usual filters."""
        if answers != self._rows:
            plans = [answer.ticket.plan for answer in answers]
            self._work = work((p.temperature, p.top_k, p.top_p, p.min_p) for p in plans)
            self._asked = None if self._work == "greedy" else (
                self._tensor([p.temperature for p in plans], torch.float64), self._tensor([p.top_k for p in plans]),
                self._tensor([p.top_p for p in plans], torch.float64), self._tensor([p.min_p for p in plans], torch.float64),
                self._tensor([answer.key for answer in answers]),
            )  # fmt: skip
            self._rows = list(answers)
        if self._asked is None:
            best_B, ids_B = logits_BV.max(-1)
            return torch.where(best_B.isfinite(), ids_B, NONE)
        step_B = self._tensor([answer.count for answer in answers])
        heat_B, top_k_B, top_p_B, min_p_B, key_B = self._asked
        ids_B = choose(logits_BV, heat_B, top_k_B, top_p_B, min_p_B, key_B, step_B, work=self._work)
        return _finite(logits_BV, ids_B)

    def _left(self, logits_RV: Tensor, answers: Sequence[Answer]) -> Tensor:
        """What the samplers of each row leave."""
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        plans = [answer.ticket.plan for answer in answers]
        # Rows whose samplers don't look at the tokens so far need not show them.
        rows = [answer.tokens if plan.reads_past else [] for answer, plan in zip(answers, plans, strict=True)]
        longest = max(1, *(len(row) for row in rows))
        past = Past(
            self._tensor([row + [-1] * (longest - len(row)) for row in rows]),
            self._tensor([answer.begun for answer in answers]),
            self._tensor([answer.count for answer in answers]),
        )
        return apply_chains(logits_RV, [plan.chain for plan in plans], past)

    def _pick(self, left_RV: Tensor, answers: Sequence[Answer]) -> Tensor:
        best_R = left_RV.argmax(-1)
        greedy = [answer.ticket.plan.greedy for answer in answers]
        if all(greedy):
            return best_R
        points_R = uniform(
            self._tensor([answer.key for answer in answers]), self._tensor([answer.count for answer in answers])
        )
        return torch.where(self._tensor(greedy, torch.bool), best_R, pick(left_RV, points_R))

    def _add_logprobs(self, logits_BV: Tensor, answers: Sequence[Answer], found: list[Chosen]) -> None:
        """Log-probabilities for rows that asked for them."""
        asking = [i for i, answer in enumerate(answers) if answer.ticket.plan.options.logprobs is not None]
        asking = [i for i in asking if found[i].error is None]
        if not asking:
            return
        own_RV = own_logprobs(logits_BV[asking])
        chosen = own_RV.gather(-1, self._tensor([found[i].id for i in asking])[:, None])[:, 0].tolist()
        most = max(answers[i].ticket.plan.options.logprobs or 0 for i in asking)
        top = likeliest(own_RV, most)
        for row, i in enumerate(asking):
            found[i].logprob = chosen[row]
            found[i].top = top[row][: answers[i].ticket.plan.options.logprobs]

    def _tensor(self, values: Sequence[object], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def likeliest(own_RV: Tensor, most: int) -> list[Top]:
    """The likeliest tokens of each row with their log-probabilities."""
    if not most:
        return [()] * len(own_RV)
    values, ids = (each.tolist() for each in own_RV.topk(most))
    return [tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]


def _finite(left_BV: Tensor, ids_B: Tensor) -> Tensor:
    """Ids, NONE where the largest logit is not finite: it is NaN if any is."""
    return torch.where(left_BV.amax(-1).isfinite(), ids_B, NONE)


def _why(logits_V: Tensor, left_V: Tensor) -> Exception:
    return InputError(why_not(logits_V, left_V) or "no token can be chosen")
