"""Losses of routers: how evenly they spread tokens over experts, and how large their logits are. Real tokens count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Routed(NamedTuple):
    """What the router of one layer said of each token."""

    logits_BTE: Tensor
    """In promote(dtype, float32)."""
    chosen_BTK: Tensor
    sigmoid: bool
    """Whether scores are sigmoids of the logits; otherwise they are their softmax."""


def balance(layers: Sequence[tuple[Routed, Tensor | None]]) -> Tensor:
    """Mean over layers of experts * sum_i f_i p_i (Fedus et al. 2021, eqs. 4-6), each with the mask of its real tokens.

    f_i is how many choices fall on expert i for each token, p_i its mean share of the scores. All equal it is top_k.
    """
    return torch.stack([_balance(routed, valid_BT) for routed, valid_BT in layers]).mean()


def _balance(routed: Routed, valid_BT: Tensor | None) -> Tensor:
    logits, experts = routed.logits_BTE, routed.logits_BTE.shape[-1]
    score = logits.sigmoid() if routed.sigmoid else logits.softmax(-1)
    if routed.sigmoid:
        score = score / (score.sum(-1, keepdim=True) + 1e-20)
    chosen = torch.zeros_like(logits).scatter(-1, routed.chosen_BTK, 1.0)
    return experts * (_mean(chosen, valid_BT) * _mean(score, valid_BT)).sum()


def router_z(layers: Sequence[tuple[Routed, Tensor | None]]) -> Tensor:
    """Mean over layers and tokens of logsumexp(logits)^2 (Zoph et al. 2022, eq. 5)."""
    found = [_mean(routed.logits_BTE.logsumexp(-1).square()[..., None], valid_BT)[0] for routed, valid_BT in layers]
    return torch.stack(found).mean()


def _mean(x_BTE: Tensor, valid_BT: Tensor | None) -> Tensor:
    """(E,): the mean over real tokens; 0 if there are none."""
    if valid_BT is None:
        return x_BTE.mean((0, 1))
    return torch.where(valid_BT[..., None], x_BTE, 0.0).sum((0, 1)) / valid_BT.sum().clamp(min=1)
