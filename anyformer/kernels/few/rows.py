"""int8 products on a CPU: weights have a scale for each output, and activations are quantised row by row on the way in.

A row's numbers depend on that row only, and whole numbers add up exactly, so a row gets the same answer in any batch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

LEAST = 1e-30
"""Below every scale of a row that is not 0."""


def int8_rows_linear(x_NI: Tensor, data_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product x W^T + b of fp32 rows; `scale_O` is the weights' scale divided by 127."""
    if x_NI.shape[0] == 1:
        # The scale of one row is a number on the host, which saves a third of the operations.
        least, most = x_NI.aminmax()
        most_N1: Any = max(-float(least), float(most), LEAST)
    else:
        most_N1 = torch.linalg.vector_norm(x_NI, float("inf"), -1, keepdim=True).clamp_(min=LEAST)
    whole_NI = (x_NI * (127 / most_N1)).round_().to(torch.int8)
    y_NO = torch.ops.aten._int_mm.default(whole_NI, data_OI.t()) * scale_O
    y_NO *= most_N1
    return y_NO if bias_O is None else y_NO.add_(bias_O)
