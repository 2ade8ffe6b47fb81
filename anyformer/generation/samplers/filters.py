"""Filters of a distribution: which tokens a draw may take, by how likely they are."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.generation.samplers.token_history import NEVER, TokenHistory

FEW, MANY = 256, 4096
"""Of more than MANY tokens only the FEW likeliest are sorted, as long as they are enough."""


@dataclass(frozen=True)
class Temperature:
    """Logits divided by a number: below 1 the likely tokens gain, above 1 the others do."""

    value: float
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return divided(logits_BV, self.value)


def divided(logits_BV: Tensor, temperature: float | Tensor) -> Tensor:
    """Logits over a temperature, or one for each row."""
    # From the largest down, so that however small the number is, the likeliest token stays finite.
    return (logits_BV - logits_BV.amax(-1, keepdim=True)) / temperature


@dataclass(frozen=True)
class TopK:
    """The k likeliest tokens, and those that tie with the last of them."""

    k: int
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.k >= logits_BV.shape[-1]:
            return logits_BV
        last_B1 = logits_BV.topk(self.k).values[:, -1:]
        return logits_BV.masked_fill(logits_BV < last_B1, NEVER)


@dataclass(frozen=True)
class TopP:
    """The fewest tokens whose probabilities reach p, the one that crosses it included; of equals the lower id stays."""

    p: float
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.p >= 1:
            return logits_BV
        probs_BV = logits_BV.softmax(-1)
        vocab = probs_BV.shape[-1]
        falling = probs_BV.topk(FEW if vocab > MANY else vocab).values
        if falling.shape[-1] < vocab and bool((falling.cumsum(-1, dtype=torch.float64)[:, -1] < self.p).any()):
            falling = probs_BV.sort(-1, descending=True).values
        return logits_BV.masked_fill(~nucleus(probs_BV, falling, self.p), NEVER)


def nucleus(probs_BV: Tensor, falling_BN: Tensor, p: float | Tensor) -> Tensor:
    """The fewest tokens whose probabilities reach p, given those in falling order; of equals the lower id."""
    total_BN = falling_BN.cumsum(-1, dtype=torch.float64)
    kept_B1 = (total_BN - falling_BN < p).sum(-1, keepdim=True)
    # None of a row without numbers is kept, and a row that can't be chosen from must not harm the others.
    last_B1 = falling_BN.gather(-1, (kept_B1 - 1).clamp(min=0))
    above_BV, equal_BV = probs_BV > last_B1, probs_BV == last_B1
    places_B1 = kept_B1 - above_BV.sum(-1, keepdim=True)
    return above_BV | equal_BV & (equal_BV.cumsum(-1) <= places_B1)


@dataclass(frozen=True)
class MinP:
    """Tokens that are at least p times as likely as the likeliest."""

    p: float
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.p <= 0:
            return logits_BV
        return at_least(logits_BV, math.log(self.p))


def at_least(logits_BV: Tensor, log_p: float | Tensor) -> Tensor:
    """Logits that lie no further below the largest than the logarithm of some share of it."""
    return logits_BV.masked_fill(logits_BV < logits_BV.amax(-1, keepdim=True) + log_p, NEVER)


@dataclass(frozen=True)
class Typical:
    """Tokens whose surprise is nearest to the expected one, as many as reach p, and ties with the last of them.

    Locally typical sampling, Meister et al. 2022 (arXiv 2202.00666), section 4.
    """

    p: float
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if self.p >= 1:
            return logits_BV
        logprobs_BV = logits_BV.log_softmax(-1)
        probs_BV = logprobs_BV.exp()
        # A token that is ruled out adds nothing to the entropy, though its surprise is infinite.
        entropy_B1 = torch.where(probs_BV > 0, -probs_BV * logprobs_BV, 0).sum(-1, keepdim=True)
        strange_BV = (-logprobs_BV - entropy_B1).abs()
        rising, order = strange_BV.sort(-1)
        total = probs_BV.gather(-1, order).cumsum(-1, dtype=torch.float64)
        last_B1 = (total < self.p).sum(-1, keepdim=True).clamp(max=total.shape[-1] - 1)
        return logits_BV.masked_fill(strange_BV > rising.gather(-1, last_B1), NEVER)
