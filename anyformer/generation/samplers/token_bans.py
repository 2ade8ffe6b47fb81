"""Token bans: what may not come next, by what came before."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from anyformer.generation.samplers.token_history import NEVER, TokenHistory, counts_BV, tensor_of


@dataclass(frozen=True)
class NoRepeatNgram:
    """No run of `size` tokens occurs twice in a row, the prompt included."""

    size: int
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        if history.ids_BL.shape[1] < self.size:
            return logits_BV
        # A run that begins as the row ends may not end as it did before.
        runs_BWN = history.ids_BL.unfold(1, self.size, 1)
        tail_BN = history.tail_BN(self.size - 1)
        same_BW = (runs_BWN[..., :-1] == tail_BN[:, None]).all(-1) & (tail_BN >= 0).all(-1, keepdim=True)
        ends_BW = runs_BWN[..., -1].masked_fill(~same_BW, -1)
        return logits_BV.masked_fill(counts_BV(ends_BW, logits_BV) > 0, NEVER)


@dataclass(frozen=True)
class BadWords:
    """Sequences of ids that are never completed, wherever they began."""

    words: tuple[tuple[int, ...], ...]
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        device = logits_BV.device
        single = tuple(word[0] for word in self.words if len(word) == 1)
        if single:
            logits_BV = logits_BV.index_fill(-1, tensor_of(single, device), NEVER)
        for length in sorted({len(word) for word in self.words} - {1}):
            if history.ids_BL.shape[1] < length - 1:
                continue
            words = tuple(word for word in self.words if len(word) == length)
            ids_WN = tensor_of(sum(words, ()), device).view(len(words), length)
            begun_BW = (history.tail_BN(length - 1)[:, None] == ids_WN[:, :-1]).all(-1)
            ends_BW = torch.where(begun_BW, ids_WN[:, -1], -1)
            logits_BV = logits_BV.masked_fill(counts_BV(ends_BW, logits_BV) > 0, NEVER)
        return logits_BV


@dataclass(frozen=True)
class MinNewTokens:
    """Stop tokens are ruled out until a row has so many new tokens."""

    least: int
    stop: tuple[int, ...]
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        barred_BV = logits_BV.index_fill(-1, tensor_of(self.stop, logits_BV.device), NEVER)
        return torch.where((history.new_B < self.least)[:, None], barred_BV, logits_BV)


@dataclass(frozen=True)
class First:
    """The first new token is one of these."""

    ids: tuple[int, ...]
    reads_history: ClassVar[bool] = True

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        return torch.where((history.new_B == 0)[:, None], only(logits_BV, self.ids), logits_BV)


def only(logits_BV: Tensor, ids: tuple[int, ...]) -> Tensor:
    """Logits that leave nothing but some tokens."""
    chosen = tensor_of(ids, logits_BV.device)
    return torch.full_like(logits_BV, NEVER).index_copy(-1, chosen, logits_BV.index_select(-1, chosen))
