"""What a sampler knows beside the logits of a step: the tokens so far."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar, Protocol

import torch
from torch import Tensor

NEVER = float("-inf")
"""The logit of a token that is ruled out."""


@dataclass(frozen=True)
class TokenHistory:
    """The tokens of each row so far, from column 0 on without a gap: first its prompt, then what is new."""

    ids_BL: Tensor
    """-1 where there is no token."""
    prompt_B: Tensor
    """How many of them are prompt; of an encoder-decoder: the decoder's own beginning."""
    new_B: Tensor
    """How many are new."""

    def rows(self, rows_R: Tensor) -> TokenHistory:
        """That of some rows."""
        return TokenHistory(self.ids_BL[rows_R], self.prompt_B[rows_R], self.new_B[rows_R])

    def fresh_BL(self) -> Tensor:
        """The same ids, with -1 for the prompt too."""
        column_L = torch.arange(self.ids_BL.shape[1], device=self.ids_BL.device)
        return self.ids_BL.masked_fill(column_L < self.prompt_B[:, None], -1)

    def tail_BN(self, count: int) -> Tensor:
        """The last `count` ids of each row; -1 where a row has fewer."""
        back_N = torch.arange(-count, 0, device=self.ids_BL.device)
        place_BN = (self.prompt_B + self.new_B)[:, None] + back_N
        return self.ids_BL.gather(1, place_BN.clamp(min=0)).masked_fill(place_BN < 0, -1)


class LogitsProcessor(Protocol):
    """One step of a chain."""

    reads_history: ClassVar[bool]
    """Whether it looks at the tokens so far; where no step does, nobody keeps them."""

    def apply(self, logits_BV: Tensor, history: TokenHistory) -> Tensor:
        """New logits, `NEVER` where a token is ruled out. The given ones stay as they are."""
        ...


Chain = tuple[LogitsProcessor, ...]


NO_HISTORY = TokenHistory(torch.empty(0, 0), torch.empty(0), torch.empty(0))
"""For chains that read none."""


def apply_chain(logits_BV: Tensor, chain: Chain, history: TokenHistory) -> Tensor:
    """One chain for all rows."""
    for sampler in chain:
        logits_BV = sampler.apply(logits_BV, history)
    return logits_BV


def apply_chains(logits_BV: Tensor, chains: Sequence[Chain], history: TokenHistory) -> Tensor:
    """A chain for each row; rows with equal chains go through them together."""
    groups: dict[Chain, list[int]] = {}
    for row, chain in enumerate(chains):
        groups.setdefault(chain, []).append(row)
    if len(groups) == 1:
        return apply_chain(logits_BV, chains[0], history)
    found_BV = logits_BV.clone()
    for chain, rows in groups.items():
        if chain:
            rows_R = torch.tensor(rows, device=logits_BV.device)
            found_BV[rows_R] = apply_chain(logits_BV[rows_R], chain, history.rows(rows_R))
    return found_BV


@lru_cache(maxsize=64)
def tensor_of(values: tuple[int, ...], device: torch.device) -> Tensor:
    """Ids as a tensor, made once: a chain is asked in every step."""
    return torch.tensor(values, dtype=torch.long, device=device)


def counts_BV(ids_BL: Tensor, like_BV: Tensor) -> Tensor:
    """How often each token of the vocabulary occurs in each row."""
    found = torch.zeros_like(like_BV)
    return found.scatter_add_(1, ids_BL.clamp(min=0), (ids_BL >= 0).to(like_BV.dtype))


def why_not(logits_V: Tensor, left_V: Tensor) -> str | None:
    """Why no token of a row can be sampled, given its logits before and after the samplers; None: one can."""
    damaged = "are the weights damaged, or is the dtype too narrow? Try dtype=torch.float32"
    for row_V, what in ((logits_V, damaged), (left_V, "the samplers rule out every token; loosen one")):
        best = row_V.max()
        if not bool(best.isfinite()):
            bad = int(row_V.isnan().sum())
            which = f"{bad} of {len(row_V)} logits are NaN" if bad else f"the largest logit is {float(best)}"
            return f"{which}, so no token can be chosen; {what}"
    return None
