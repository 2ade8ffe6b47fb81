"""Our own linear map: one weight, and no bias unless asked.

It allocates; `anyformer.model.build` fills it by the spec's init.
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
