"""Contrastive search (Su et al. 2022, equation 5): a likely token whose state is unlike those of all tokens before it.

Each of the `top_k` likeliest tokens is read. Its score is (1 - alpha) * its probability - alpha * the largest cosine
between its state and those of the tokens so far, prompt included. States are those that the head reads.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn.functional import normalize

from anyformer.generation.outputs import own_logprobs
from anyformer.generation.params.validate import ResolvedParams
from anyformer.generation.samplers.logits_processors import NEVER
from anyformer.generation.search.search import Hypothesis, Moves, Search, check_finite


class ContrastiveSearch(Search):
    """One answer to a request. Its rows are the candidates of a step."""

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
