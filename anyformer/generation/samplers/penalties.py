"""Penalties and biases: logits that are raised or lowered, and never ruled out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.generation.samplers.token_history import TokenHistory, counts_BV


@dataclass(frozen=True)
class RepetitionPenalty:
    """Tokens that occurred, in the prompt too: positive logits divided by the penalty, negative ones multiplied.

    CTRL, Keskar et al. 2019 (arXiv 1909.05858), section 4.1.
    """

    penalty: float
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        lowered_BV = torch.where(logits_BV < 0, logits_BV * self.penalty, logits_BV / self.penalty)
        return torch.where(counts_BV(history.ids_BL, logits_BV) > 0, lowered_BV, logits_BV)


@dataclass(frozen=True)
class PresencePenalty:
    """Subtracted from each token that was generated; the prompt does not count."""

    penalty: float
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return logits_BV - self.penalty * (counts_BV(history.fresh_BL(), logits_BV) > 0)


@dataclass(frozen=True)
class FrequencyPenalty:
    """Subtracted from a token as often as it was generated; the prompt does not count."""

    penalty: float
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return logits_BV - self.penalty * counts_BV(history.fresh_BL(), logits_BV)


@dataclass(frozen=True)
class LogitBias:
    """A number for each of some tokens, added to its logit."""

    pairs: tuple[tuple[int, float], ...]
    reads_history: ClassVar[bool] = False

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        ids_N, bias_N = _bias(self.pairs, logits_BV.device, logits_BV.dtype)
        return logits_BV.index_add(-1, ids_N, bias_N.expand(len(logits_BV), -1))


@lru_cache(maxsize=64)
def _bias(pairs: tuple[tuple[int, float], ...], device: torch.device, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    ids, values = zip(*pairs, strict=True)
    return torch.tensor(ids, device=device), torch.tensor(values, device=device, dtype=dtype)
