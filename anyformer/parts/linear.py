"""Our own linear map: one weight, and no bias unless asked.

It is one of torch's, so that tools that look for those find it. It allocates; `anyformer.model.build` fills it by the
spec's init.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.parts.drawing import redraw


class Linear(nn.Linear):
    """x W^T (+ b), with W of shape (out, in)."""

    def __init__(self, into: int, out: int, *, bias: bool = False) -> None:
        # Past nn.Linear's own, which would draw numbers.
        nn.Module.__init__(self)
        self.in_features, self.out_features = into, out
        self.weight = nn.Parameter(torch.empty(out, into))
        self.register_parameter("bias", nn.Parameter(torch.empty(out)) if bias else None)

    def reset_parameters(self) -> None:
        """Fresh weights of variance 2/(d_in + d_out), cut at 3 sigma, and a bias of 0."""
        redraw(self.weight, (2 / (self.in_features + self.out_features)) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x, self.weight, self.bias)

    def extra_repr(self) -> str:
        out, into = self.weight.shape
        return f"{into} -> {out}" + (", bias" if self.bias is not None else "")
