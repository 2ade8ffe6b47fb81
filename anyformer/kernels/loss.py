"""Losses over what counts: cross-entropy with label smoothing and z-loss, squared errors, and those of routers."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

IGNORE = -100
"""A label that does not count."""


class LossTerms(NamedTuple):
    """What is minimised, its terms before weighting, and how many labels counted."""

    total: Tensor
    terms: dict[str, Tensor]
    label_count: Tensor


def cross_entropy(logits: Tensor, labels: Tensor, *, smoothing: float = 0.0, z: float = 0.0) -> LossTerms:
    """Mean over labels other than -100, in promote(dtype, float32); 0 if there are none.

    smoothing s: (1 - s) nll + s mean over classes of -log p. z: adds z * mean(logsumexp^2), which keeps logits small.
    """
    exact = torch.promote_types(logits.dtype, torch.float32)
    flat, target = logits.flatten(0, -2).to(exact), labels.flatten()
    counted = target != IGNORE
    count = counted.sum()
    share = count.clamp(min=1)
    nll = F.cross_entropy(flat, target, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing) / share
    terms = {"cross_entropy": nll}
    if z:
        squares = flat.logsumexp(-1).square()
        terms["z"] = torch.where(counted, squares, 0.0).sum() / share
    return LossTerms(nll + z * terms["z"] if z else nll, terms, count)


def squared_error(answers: Tensor, labels: Tensor) -> LossTerms:
    """Mean squared error over all numbers."""
    exact = torch.promote_types(answers.dtype, torch.float32)
    error = F.mse_loss(answers.to(exact), labels.to(exact))
    # Filled on the device: a number that is copied there would keep a step from being recorded as a CUDA graph.
    count = torch.full((), labels.numel(), device=labels.device)
    return LossTerms(error, {"squared_error": error}, count)


def binary_cross_entropy(logits: Tensor, labels: Tensor) -> LossTerms:
    """Mean over all classes, each of which is there (1) or not (0)."""
    exact = torch.promote_types(logits.dtype, torch.float32)
    error = F.binary_cross_entropy_with_logits(logits.to(exact), labels.to(exact))
    count = torch.full((), labels.numel(), device=labels.device)
    return LossTerms(error, {"binary_cross_entropy": error}, count)


class Routed(NamedTuple):
    """What the router of one layer said of each token."""

    logits_BTE: Tensor
    """In promote(dtype, float32)."""
    chosen_BTK: Tensor
    sigmoid: bool
    """Whether scores are sigmoids of the logits; otherwise they are their softmax."""


def balance(layers: Sequence[tuple[Routed, Tensor | None]]) -> Tensor:
    """Mean over layers of experts * sum_i f_i p_i (Fedus et al. 2021, eqs. 4-6), each with the mask of its real tokens:
    how evenly a router spreads them.

    f_i is how many choices fall on expert i for each token, p_i its mean share of the scores. All equal it is top_k.
    """
    found: list[Tensor] = []
    for (logits, chosen_BTK, sigmoid), valid_BT in layers:
        score = logits.sigmoid() if sigmoid else logits.softmax(-1)
        if sigmoid:
            score = score / (score.sum(-1, keepdim=True) + 1e-20)
        chosen = torch.zeros_like(logits).scatter(-1, chosen_BTK, 1.0)
        found.append(logits.shape[-1] * (_mean(chosen, valid_BT) * _mean(score, valid_BT)).sum())
    return torch.stack(found).mean()


def router_z(layers: Sequence[tuple[Routed, Tensor | None]]) -> Tensor:
    """Mean over layers and tokens of logsumexp(logits)^2 (Zoph et al. 2022, eq. 5): how large a router's logits are."""
    found = [_mean(routed.logits_BTE.logsumexp(-1).square()[..., None], valid_BT)[0] for routed, valid_BT in layers]
    return torch.stack(found).mean()


def _mean(x_BTE: Tensor, valid_BT: Tensor | None) -> Tensor:
    """(E,): the mean over real tokens; 0 if there are none."""
    if valid_BT is None:
        return x_BTE.mean((0, 1))
    return torch.where(valid_BT[..., None], x_BTE, 0.0).sum((0, 1)) / valid_BT.sum().clamp(min=1)
