"""Softmax cross-entropy over counted labels, with label smoothing and z-loss."""

from __future__ import annotations

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
