"""The norm module: the parameters of a norm leaf, applied to the last dimension or to each head."""

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels import small_gemm
from anyformer.kernels.small_gemm import NormTerms
from anyformer.specs.axes import Norm as NormLeaf
from anyformer.specs.layer import HeadNorm


class Norm(nn.Module):
    """A norm over vectors of `shape`; leading dimensions of the gain broadcast (one gain for each head)."""

    _parameters: dict[str, Any]

    def __init__(self, leaf: NormLeaf, shape: tuple[int, ...]) -> None:
        super().__init__()
        self.leaf, self.shape = leaf, shape
        for name, weight in leaf.weights(shape).items():
            self.register_parameter(name, nn.Parameter(torch.empty(weight.shape)))

    def forward(self, x: Tensor, /) -> Tensor:
        if x.is_cuda and not torch.is_grad_enabled():
            return small_gemm.norm(x, NormTerms(self.leaf, self._parameters))
        return self.leaf.apply(x, self._parameters)

    def extra_repr(self) -> str:
        return f"{self.leaf.kind} {'x'.join(map(str, self.shape))}, eps {self.leaf.eps:g}"


class QKNorm(Norm):
    """A norm on projected heads (B,T,H,K): each head, or the whole projected vector."""

    def __init__(self, spec: HeadNorm, heads: int, head_dim: int) -> None:
        super().__init__(spec.leaf, spec.shape(heads, head_dim))
        self.whole = spec.scope == "whole"
        self.last = spec.when == "after"
        """Whether it comes after the rotation by position."""

    def forward(self, x_BTHK: Tensor, /) -> Tensor:
        if not self.whole:
            return super().forward(x_BTHK)
        return super().forward(x_BTHK.flatten(-2)).unflatten(-1, x_BTHK.shape[-2:])
