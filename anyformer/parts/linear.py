"""Our own linear map and look-up table: one weight each, no bias unless asked.

They allocate; `anyformer.model.build` fills them by the spec's init.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Linear(nn.Module):
    """x W^T (+ b), with W of shape (out, in)."""

    def __init__(self, into: int, out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(out, into))
        self.bias = nn.Parameter(torch.empty(out)) if bias else None

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        out, into = self.weight.shape
        return f"{into} -> {out}" + (", bias" if self.bias is not None else "")


class Table(nn.Module):
    """Row `id` of a table (rows, width)."""

    def __init__(self, rows: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, width))

    def forward(self, ids: Tensor) -> Tensor:
        return F.embedding(ids, self.weight)

    def extra_repr(self) -> str:
        rows, width = self.weight.shape
        return f"{rows} x {width}"
