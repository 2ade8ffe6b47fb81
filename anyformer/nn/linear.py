"""The linear map alone: torch's, with our own first weights and no bias unless asked."""

from __future__ import annotations

import torch

from anyformer.nn.part import count
from anyformer.parts.linear import Linear as Map


class Linear(Map):
    """x W^T (+ b), with W of shape (out_features, in_features).

    W starts as a normal of variance 2/(in + out), cut at 3 sigma; a bias starts at 0.
    """

    def __init__(
        self,
        in_features: int,
        out_features: int,
        *,
        bias: bool = False,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        sizes = count("Linear", "in_features", in_features), count("Linear", "out_features", out_features)
        super().__init__(*sizes, bias=bias)
        self.to(device=device, dtype=dtype)
        self.reset_parameters()
