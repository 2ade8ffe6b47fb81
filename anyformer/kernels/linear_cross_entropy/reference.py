"""From rows of logits to their losses and gradients in plain torch, on any device, in as few passes as it allows."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.loss import IGNORE


class Row(NamedTuple):
    """What a row of logits goes through."""

    vocab: int
    """Columns beyond are there for the device's sake."""
    scale: float
    softcap: float | None
    smoothing: float
    z: float
    learns: bool


def softmax_rows(raw_CV: Tensor, labels_C: Tensor, losses_2C: Tensor, row: Row) -> Tensor:
    """Write (cross-entropy, squared log-sum-exp) of each row; answer the gradient of its loss by the raw logits."""
    exact = losses_2C.dtype
    beyond = raw_CV[:, row.vocab :]
    y_CV = raw_CV[:, : row.vocab].to(exact)
    if row.scale != 1.0:
        y_CV *= row.scale
    if row.softcap is not None:
        y_CV.div_(row.softcap).tanh_().mul_(row.softcap)
    counted_C = labels_C != IGNORE
    target_C1 = labels_C.where(counted_C, 0)[:, None]
    share = row.smoothing / row.vocab
    aim_C = (1 - row.smoothing) * y_CV.gather(1, target_C1)[:, 0]
    if row.smoothing:
        aim_C += share * y_CV.sum(1)
    slope_CV = None
    if row.softcap is not None and row.learns:
        slope_CV = (y_CV / row.softcap).square_().neg_().add_(1)
    highest_C = y_CV.amax(1)
    # In place only for contiguous rows: torch's softmax otherwise makes a copy of its own.
    p_CV = torch.softmax(y_CV, 1, out=y_CV) if y_CV.is_contiguous() else y_CV.softmax(1)
    # The highest weight is at least 1 / V, so that its logarithm is exact where that of the label's may be -inf.
    lse_C = highest_C - p_CV.amax(1).log()
    losses_2C[0] = torch.where(counted_C, lse_C - aim_C, 0)
    losses_2C[1] = torch.where(counted_C, lse_C.square(), 0)
    if not row.learns:
        return raw_CV
    if row.z:
        p_CV *= (1 + 2 * row.z * lse_C)[:, None]
    if row.smoothing:
        p_CV -= share
    p_CV.scatter_add_(1, target_C1, torch.full_like(target_C1, row.smoothing - 1, dtype=exact))
    if slope_CV is not None:
        p_CV *= slope_CV
    if row.scale != 1.0:
        p_CV *= row.scale
    p_CV.masked_fill_(~counted_C[:, None], 0)
    if p_CV.dtype == raw_CV.dtype and beyond.shape[1] == 0:
        return p_CV
    beyond.zero_()
    raw_CV[:, : row.vocab] = p_CV
    return raw_CV
