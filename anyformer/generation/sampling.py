"""How the next token is chosen from logits: the likeliest, or a draw from what a chain of small steps leaves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from anyformer.errors import InputError

NEVER = float("-inf")
FEW, MANY = 256, 4096
"""Of more than MANY tokens only the FEW likeliest are sorted, as long as they are enough."""


class Chain(Protocol):
    """A step of the chain: logits to logits, -inf where a token is ruled out."""

    def apply(self, logits_BV: Tensor) -> Tensor:
        """New logits."""
        ...


@dataclass(frozen=True)
class Temperature:
    """Logits divided by a number: below 1 the likely tokens gain, above 1 the others do."""

    value: float

    def apply(self, logits_BV: Tensor) -> Tensor:
        # From the largest down, so that however small the number is, the likeliest token stays finite.
        return (logits_BV - logits_BV.amax(-1, keepdim=True)) / self.value


@dataclass(frozen=True)
class TopK:
    """The k likeliest tokens, and those that tie with the last of them."""

    k: int

    def apply(self, logits_BV: Tensor) -> Tensor:
        if self.k >= logits_BV.shape[-1]:
            return logits_BV
        last_B1 = logits_BV.topk(self.k).values[:, -1:]
        return logits_BV.masked_fill(logits_BV < last_B1, NEVER)


@dataclass(frozen=True)
class TopP:
    """The fewest tokens whose probabilities reach p, the one that crosses it included; of equals the lower id stays."""

    p: float

    def apply(self, logits_BV: Tensor) -> Tensor:
        if self.p >= 1:
            return logits_BV
        probs_BV = logits_BV.softmax(-1)
        vocab = probs_BV.shape[-1]
        falling = probs_BV.topk(FEW if vocab > MANY else vocab).values
        total = falling.cumsum(-1, dtype=torch.float64)
        if falling.shape[-1] < vocab and bool((total[:, -1] < self.p).any()):
            falling = probs_BV.sort(-1, descending=True).values
            total = falling.cumsum(-1, dtype=torch.float64)
        kept_B1 = (total - falling < self.p).sum(-1, keepdim=True)
        last_B1 = falling.gather(-1, kept_B1 - 1)
        above_BV, equal_BV = probs_BV > last_B1, probs_BV == last_B1
        places_B1 = kept_B1 - above_BV.sum(-1, keepdim=True)
        return logits_BV.masked_fill(~(above_BV | equal_BV & (equal_BV.cumsum(-1) <= places_B1)), NEVER)


@dataclass(frozen=True)
class Sampler:
    """Chooses one token for each row. An empty chain with `greedy` takes the likeliest, of equals the lowest id."""

    greedy: bool = True
    chain: tuple[Chain, ...] = ()
    generator: torch.Generator | None = None
    """None: torch's own."""

    def __call__(self, logits_BV: Tensor) -> Tensor:
        """Ids (B,) of the chosen tokens."""
        logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
        best_B, choice_B = logits_BV.max(-1)
        # The largest of a row is NaN if any is, and infinite if nothing or something impossible is left.
        if not bool(best_B.isfinite().all()):
            raise InputError(_broken(logits_BV, best_B))
        if self.greedy:
            return choice_B
        for step in self.chain:
            logits_BV = step.apply(logits_BV)
        # One uniform number for each row, and the token at which the sum of probabilities passes it.
        total_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
        shape, device = (total_BV.shape[0], 1), total_BV.device
        point_B1 = torch.rand(shape, dtype=torch.float64, device=device, generator=self.generator)
        drawn_B1 = torch.searchsorted(total_BV, point_B1 * total_BV[:, -1:], right=True)
        return drawn_B1[:, 0].clamp(max=total_BV.shape[-1] - 1)


def sampler(
    *, temperature: float, top_k: int | None, top_p: float | None, seed: int | None, device: torch.device
) -> Sampler:
    """The usual chain: temperature, then the k likeliest, then those that reach p. Temperature 0 is greedy."""
    if temperature == 0:
        return Sampler()
    steps: list[Chain] = [Temperature(temperature)] if temperature != 1 else []
    steps += [TopK(top_k)] if top_k is not None else []
    steps += [TopP(top_p)] if top_p is not None else []
    generator = None if seed is None else torch.Generator(device).manual_seed(seed)
    return Sampler(greedy=False, chain=tuple(steps), generator=generator)


def _broken(logits_BV: Tensor, best_B: Tensor) -> str:
    row = int(best_B.isfinite().logical_not().long().argmax())
    bad = int(logits_BV[row].isnan().sum())
    what = f"{bad} of {logits_BV.shape[-1]} logits are NaN" if bad else f"the largest logit is {float(best_B[row])}"
    return (
        f"row {row}: {what}, so no token can be chosen; are the weights damaged, or is the dtype too narrow? "
        "Try dtype=torch.float32"
    )


def only(logits_BV: Tensor, ids: Sequence[int]) -> Tensor:
    """Logits that leave nothing but some tokens."""
    chosen = torch.tensor(ids, device=logits_BV.device)
    return torch.full_like(logits_BV, NEVER).index_copy(-1, chosen, logits_BV.index_select(-1, chosen))
