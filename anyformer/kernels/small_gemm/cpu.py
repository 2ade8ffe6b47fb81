"""Products of few rows on a CPU, shared out over their outputs.

torch's own product of one row or a few is threaded badly: on two cores it reads 10 to 15 GB/s of weights where 50 are
possible. The same weights as a batch of slices go to threads one by one.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

MOST = 64
"""Rows up to which it pays."""
COLUMNS = 3
"""Rows up to which weights stand on the left: each slice times a few columns."""
LEAST = 400_000
"""Weights below which torch's own product is as fast."""
SLICES = tuple(range(8, 33))
"""How many slices there may be."""


def serves(x: Tensor, weight_OI: Tensor) -> bool:
    """Whether a product is of that kind, and nothing is learned or compiled here."""
    return (
        x.is_cpu
        and weight_OI.numel() >= LEAST
        and x.numel() <= MOST * x.shape[-1]
        and x.dtype == weight_OI.dtype
        and x.dtype in (torch.float32, torch.float64)
        and weight_OI.is_contiguous()
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """X W^T + b of few rows (...,I)."""
    outs, into = weight_OI.shape
    rows_NI = x.reshape(-1, into)
    count = rows_NI.shape[0]
    slices = next((n for n in SLICES if outs % n == 0), 0)
    if not slices:
        # The last few outputs are a product of their own.
        whole = outs - outs % SLICES[0]
        parts = [linear(rows_NI, weight_OI[:whole], None), F.linear(rows_NI, weight_OI[whole:])]
        y_NO = torch.cat(parts, -1)
    elif count <= COLUMNS:
        pieces = torch.bmm(weight_OI.view(slices, -1, into), rows_NI.t().expand(slices, into, count))
        y_NO = pieces.view(outs, count).t()
    else:
        pieces = torch.bmm(rows_NI.expand(slices, count, into), weight_OI.view(slices, -1, into).transpose(1, 2))
        y_NO = pieces.transpose(0, 1).reshape(count, outs)
    y_NO = y_NO if bias_O is None else y_NO + bias_O
    return y_NO.reshape(*x.shape[:-1], outs)
