"""The products of few tokens in plain torch, on any device: what every other way must equal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor
from torch.nn import functional as F

from anyformer.specs.axes import FeedForward

if TYPE_CHECKING:
    from anyformer.kernels.small_gemm import NormTerms


def norm_linear(x_ND: Tensor, norm: NormTerms | None, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    """norm(x) W^T + b."""
    return F.linear(x_ND if norm is None else norm.leaf.apply(x_ND, norm.own), weight_OD, bias_O)


def norm_linear_combine(
    x_ND: Tensor, norm: NormTerms | None, weight_JD: Tensor, bias_J: Tensor | None, leaf: FeedForward
) -> Tensor:
    """combine(norm(x) W^T + b)."""
    h_NJ = norm_linear(x_ND, norm, weight_JD, bias_J)
    return leaf.combine(*h_NJ.chunk(len(leaf.inputs), -1))


def linear_add(x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, residual_NO: Tensor) -> Tensor:
    """The residual + x W^T + b."""
    return residual_NO + F.linear(x_NI, weight_OI, bias_O)
