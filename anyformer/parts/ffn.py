"""The feed-forward: input projections, the leaf's activation, one projection back."""

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from anyformer.parts.fused_linear import FusedInputs
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.parts.replay import RngState
from anyformer.specs.axes import Dims, FeedForward


class FeedForwardNet(FusedInputs):
    """down(combine(up(x))) or down(combine(gate(x), up(x)))."""

    back = "down"

    def __init__(self, leaf: FeedForward, dims: Dims) -> None:
        super().__init__()
        self.leaf, self.reads = leaf, leaf.inputs
        for name in leaf.inputs:
            self.add_module(name, Linear(dims.width, dims.ffn_width, bias=leaf.bias))
        self.down = Linear(dims.ffn_width, dims.width, bias=leaf.biased_down())

    def forward(
        self, x_BTD: Tensor, *, norm: Norm | None = None, residual_BTD: Tensor | None = None, inplace: bool = False
    ) -> Tensor:
        """What the network makes of `norm(x)`, added to the residual if there is one, which may then be written over."""
        chunk = self.leaf.chunk
        whole = chunk is None or x_BTD.shape[:-1].numel() <= chunk
        fused = self.fused(x_BTD, norm) if whole else None
        if fused is not None:
            return fused.output(fused.project(x_BTD, norm, self.leaf), residual_BTD, x_BTD.shape, inplace=inplace)
        x_BTD = x_BTD if norm is None else norm(x_BTD)
        if whole:
            y_BTD = self.answer(x_BTD, self.training)
        else:
            y_BTD = torch.cat([self.forgetful(piece) for piece in x_BTD.flatten(0, -2).split(chunk)]).view(x_BTD.shape)
        return y_BTD if residual_BTD is None else residual_BTD + y_BTD

    def answer(self, x: Tensor, training: bool) -> Tensor:
        """The network, for any tokens (...,D)."""
        inner = self.leaf.combine(*[self._modules[name](x) for name in self.leaf.inputs])
        if self.leaf.dropout > 0:
            inner = F.dropout(inner, self.leaf.dropout, training)
        return self._modules["down"](inner)

    def forgetful(self, x_ND: Tensor) -> Tensor:
        """The network, which keeps its input only and computes the inner activation again for the gradient."""
        drops = self.training and self.leaf.dropout > 0
        # In a graph that is not lowered, a checkpoint draws another mask in the backward pass, so there is none.
        if not torch.is_grad_enabled() or (drops and torch.compiler.is_compiling()):
            return self.answer(x_ND, self.training)
        if not drops:
            return checkpoint(self.answer, x_ND, False, use_reentrant=False, preserve_rng_state=False)
        draws = RngState(x_ND.device)

        def again(x_ND: Tensor) -> Tensor:
            with draws.same():
                return self.answer(x_ND, True)

        # To the end, not only to the last tensor that is needed: `draws` compares where the generators end up.
        return checkpoint(again, x_ND, use_reentrant=False, preserve_rng_state=False, early_stop=False)

    def extra_repr(self) -> str:
        return self.leaf.kind
