"""The sampler of an engine: the next token of each sequence, whose requests may ask for different things."""

from collections.abc import Sequence as Rows
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.errors import InputError, NothingLeftError
from anyformer.generation.engine.request import Sequence, TopLogprobs
from anyformer.generation.guided.guide import unpacked
from anyformer.generation.samplers.batched import SamplingKind, pick, sample, sampling_kind, sampling_tensors, uniform
from anyformer.generation.samplers.logits_processors import NEVER, TokenHistory, own_logprobs, process_rows, why_not

NONE = -1
"""Instead of an id: no token can be sampled."""


@dataclass(slots=True)
class Sampled:
    """What was sampled for a row."""

    id: int
    error: Exception | None = None
    logprob: float | None = None
    top: TopLogprobs | None = None


class Sampler:
    """Samples tokens, and remembers what the last rows asked for: from step to step they are mostly the same."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._rows: list[Sequence] = []
        self._special: list[int] = []
        """Which of them need more than `samplers.batched.sample`."""
        self._tensors: list[Tensor] = []
        """Temperature, top_k, top_p, min_p and keys; empty: nothing is drawn."""
        self._kind: SamplingKind = "greedy"

    def sample(self, logits_BV: Tensor, sequences: list[Sequence]) -> list[Sampled]:
        """A token for each sequence; one for which there is none gets an error, and the others don't notice."""
        try:
            found = self._sample(logits_BV, sequences)
            if any([each.request.logprobs is not None for each in sequences]):
                self._add_logprobs(logits_BV, sequences, found)
        except Exception as error:
            if len(sequences) == 1:
                return [Sampled(NONE, error)]
            return [self.sample(logits_BV[i : i + 1], [each])[0] for i, each in enumerate(sequences)]
        return found

    def _sample(self, logits_BV: Tensor, sequences: list[Sequence]) -> list[Sampled]:
        if sequences != self._rows:
            self._prepare(sequences)
        special, left_BV = self._special, logits_BV
        if not special:
            best_B, ids_B = logits_BV.max(-1)
            if self._tensors:
                # The numbers of new tokens grow from step to step.
                steps_B = self._tensor([each.num_new_tokens for each in sequences])
                ids_B = sample(logits_BV, *self._tensors, step_B=steps_B, kind=self._kind)
            # The largest of a row is NaN if any is.
            ids = torch.where(best_B.isfinite(), ids_B, NONE).tolist()
        elif len(special) == len(sequences):
            left_BV = self.processed(logits_BV, sequences)
            ids = self._pick(left_BV, sequences).tolist()
        else:
            # Each part by a sampler of its own, so that this one still knows the rows in the next step.
            found: dict[int, Sampled] = {}
            for part in (special, [i for i in range(len(sequences)) if i not in special]):
                rows = Sampler(self.device)._sample(logits_BV[part], [sequences[i] for i in part])
                found |= zip(part, rows, strict=True)
            return [found[i] for i in range(len(sequences))]
        chosen = [Sampled(each) for each in ids]
        for i, each in enumerate(chosen):
            if each.id == NONE:
                words = why_not(logits_BV[i], left_BV[i]) or "no token can be chosen"
                # Where the model itself had one to offer, what was asked for has ruled it out.
                each.error = (NothingLeftError if bool(logits_BV[i].max().isfinite()) else InputError)(words)
        return chosen

    def _prepare(self, sequences: list[Sequence]) -> None:
        """Remember what these rows ask for."""
        rows = [each.sampling for each in sequences]
        self._rows, self._kind = list(sequences), sampling_kind(rows)
        self._tensors = [] if self._kind == "greedy" else sampling_tensors(rows, self.device)[:-1]
        # To sort a vocabulary on the host costs more than the processors, which look at the likeliest tokens only.
        sorts = self.device.type == "cpu" and self._kind == "filtered"
        params = [each.request.params for each in sequences]
        self._special = [i for i, p in enumerate(params) if not p.batchable or (sorts and not p.greedy)]

    def processed(self, logits_RV: Tensor, sequences: Rows[Sequence]) -> Tensor:
        """Logits, never below fp32, as the processors of each row leave them."""
        logits_RV = logits_RV.to(torch.promote_types(logits_RV.dtype, torch.float32))
        if any([each.guide is not None for each in sequences]):
            logits_RV = self._guided(logits_RV, sequences)
        # Rows whose processors don't look at their tokens need not show them.
        rows = [each.tokens if each.request.params.reads_history else [] for each in sequences]
        longest = max(1, *map(len, rows))
        history = TokenHistory(
            self._tensor([row + [-1] * (longest - len(row)) for row in rows]),
            self._tensor([each.prompt_length for each in sequences]),
            self._tensor([each.num_new_tokens for each in sequences]),
        )
        return process_rows(logits_RV, [each.request.params.logits_processors for each in sequences], history)

    def _guided(self, logits_RV: Tensor, sequences: Rows[Sequence]) -> Tensor:
        """Logits of nothing but what the grammars of rows allow."""
        masks = {i: each.guide.mask(each.new) for i, each in enumerate(sequences) if each.guide is not None}
        rows, found_RV = list(masks), logits_RV.clone()
        allowed_RV = unpacked([*masks.values()], logits_RV.shape[-1], logits_RV.device)
        found_RV[rows] = found_RV[rows].masked_fill(~allowed_RV, NEVER)
        return found_RV

    def _pick(self, left_RV: Tensor, sequences: Rows[Sequence]) -> Tensor:
        best_R, ids_R = left_RV.max(-1)
        greedy = [each.request.params.greedy for each in sequences]
        if not all(greedy):
            steps = [each.num_new_tokens for each in sequences]
            points_R = uniform(self._tensor([each.key for each in sequences]), self._tensor(steps))
            ids_R = torch.where(self._tensor(greedy, torch.bool), ids_R, pick(left_RV, points_R))
        return torch.where(best_R.isfinite(), ids_R, NONE)

    def _add_logprobs(self, logits_BV: Tensor, sequences: Rows[Sequence], found: list[Sampled]) -> None:
        """Log-probabilities for rows that asked for them."""
        counts = [each.request.logprobs for each in sequences]
        asking = [(i, n) for i, n in enumerate(counts) if n is not None and found[i].error is None]
        if not asking:
            return
        own_RV = own_logprobs(logits_BV[[i for i, _ in asking]])
        chosen_R1 = self._tensor([[found[i].id] for i, _ in asking])
        drawn = [r for r, (i, _) in enumerate(asking) if sequences[i].request.params.options.processed_logprobs]
        if drawn:
            rows = [sequences[asking[r][0]] for r in drawn]
            own_RV[drawn] = self._drawn_logprobs(logits_BV[[asking[r][0] for r in drawn]], rows, chosen_R1[drawn])
        logprobs = own_RV.gather(-1, chosen_R1)[:, 0].tolist()
        tops = top_logprobs(own_RV, max(count for _, count in asking))
        for (i, count), logprob, top in zip(asking, logprobs, tops, strict=True):
            found[i].logprob, found[i].top = logprob, top[:count]

    def _drawn_logprobs(self, logits_RV: Tensor, sequences: Rows[Sequence], chosen_R1: Tensor) -> Tensor:
        """Log-probabilities of what tokens are drawn from; without a draw the chosen token has all."""
        left_RV = own_logprobs(self.processed(logits_RV, sequences))
        only_RV = torch.full_like(left_RV, float("-inf")).scatter_(1, chosen_R1, 0.0)
        greedy_R = self._tensor([each.request.params.greedy for each in sequences], torch.bool)
        return torch.where(greedy_R[:, None], only_RV, left_RV)

    def _tensor(self, values: Rows[object], dtype: torch.dtype = torch.long) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=self.device)


def top_logprobs(own_RV: Tensor, count: int) -> list[TopLogprobs]:
    """The likeliest tokens of each row with their log-probabilities."""
    if not count:
        return [()] * len(own_RV)
    values, ids = (each.tolist() for each in own_RV.topk(count))
    return [tuple(zip(*pair, strict=True)) for pair in zip(ids, values, strict=True)]
