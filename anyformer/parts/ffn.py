"""The feed-forward: input projections, the leaf's activation, one projection back."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.parts.linear import Linear
from anyformer.specs.axes import Dims, FeedForward


class FeedForwardNet(nn.Module):
    """down(combine(up(x))) or down(combine(gate(x), up(x)))."""

    def __init__(self, leaf: FeedForward, dims: Dims) -> None:
        super().__init__()
        self.leaf = leaf
        for name in leaf.inputs:
            self.add_module(name, Linear(dims.width, dims.ffn_width, bias=leaf.bias))
        self.down = Linear(dims.ffn_width, dims.width, bias=leaf.bias)

    def forward(self, x_BTD: Tensor) -> Tensor:
        maps: Any = self._modules  # See Attention.forward.
        inner_BTF = self.leaf.combine(*[maps[name](x_BTD) for name in self.leaf.inputs])
        if self.leaf.dropout > 0:
            inner_BTF = F.dropout(inner_BTF, self.leaf.dropout, self.training)
        return maps["down"](inner_BTF)

    def extra_repr(self) -> str:
        return self.leaf.kind
