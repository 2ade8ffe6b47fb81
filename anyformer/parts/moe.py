"""The mixture of experts: a router, a stack of feed-forwards of which each token uses a few, and one that all use."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.kernels.moe import Stacked, Work, way_for
from anyformer.kernels.precision import no_autocast
from anyformer.parts.attention_metadata import AttentionMetadata
from anyformer.parts.exact import Exact
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.linear import Linear
from anyformer.specs.axes import Dims, FeedForward

RouterOutput = list[tuple[Tensor, Tensor]]
"""Logits of a router and the experts that it chose."""


class Router(Exact, Linear):
    """x W^T (+ b) in promote(dtype, float32), also under autocast: a rounded logit sends a token elsewhere."""

    def __init__(self, into: int, out: int, *, bias: bool = False, exact: bool = False) -> None:
        super().__init__(into, out, bias=bias)
        self.exact = ("weight", "bias") if exact else ()

    def forward(self, input: Tensor) -> Tensor:
        x = input
        exact = torch.promote_types(x.dtype, torch.float32)
        bias = None if self.bias is None else self.bias.to(exact)
        with no_autocast(x):
            return F.linear(x.to(exact), self.weight.to(exact), bias)


class StackedLinear(nn.Module):
    """The same linear map of each expert: W of shape (experts, out, in)."""

    def __init__(self, experts: int, into: int, out: int, *, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(experts, out, into))
        self.bias = nn.Parameter(torch.empty(experts, out)) if bias else None

    def extra_repr(self) -> str:
        experts, out, into = self.weight.shape
        return f"{experts} x ({into} -> {out})" + (", bias" if self.bias is not None else "")


class Experts(nn.Module):
    """All experts of a layer."""

    def __init__(self, leaf: Moe, dims: Dims) -> None:
        super().__init__()
        self.leaf: FeedForward = leaf.dense(leaf.width)
        self.on_input = leaf.gates == "input"
        for name in self.leaf.inputs:
            self.add_module(name, StackedLinear(leaf.experts, dims.width, dims.ffn_width, bias=leaf.bias))
        self.down = StackedLinear(leaf.experts, dims.ffn_width, dims.width, bias=leaf.bias)

    def forward(self, x_ND: Tensor, chosen_NK: Tensor, share_NK: Tensor) -> Tensor:
        maps: Any = self._modules
        *inputs, down = (Stacked(maps[name].weight, maps[name].bias) for name in (*self.leaf.inputs, "down"))
        work = Work(x_ND, chosen_NK, share_NK, inputs, down, self.combine, self.on_input)
        return way_for(work)(work)

    def combine(self, *inputs: Tensor) -> Tensor:
        """The inner activation, some of it dropped in training."""
        inner = self.leaf.combine(*inputs)
        return F.dropout(inner, self.leaf.dropout, self.training) if self.leaf.dropout > 0 else inner

    def extra_repr(self) -> str:
        return self.leaf.kind


class MoE(Exact):
    """sum_i g_i expert_i(x) (+ shared(x)), over the experts that the router chose."""

    exact = ("selection_bias",)
    selection_bias: Tensor | None

    def __init__(self, leaf: Moe, dims: Dims) -> None:
        super().__init__()
        self.leaf = leaf
        self.router = Router(dims.width, leaf.experts, bias=leaf.router_bias, exact=leaf.exact_router)
        chooses = nn.Parameter(torch.empty(leaf.experts)) if leaf.selection_bias else None
        self.register_parameter("selection_bias", chooses)
        self.experts = Experts(leaf, dims)
        self.shared: FeedForwardNet | None = None
        if leaf.shared_width is not None:
            sizes = dataclasses.replace(dims, ffn_width=leaf.shared_width)
            self.shared = FeedForwardNet(leaf.dense(leaf.shared_width), sizes)
        self.shared_gate = Router(dims.width, 1) if leaf.shared_gate else None

    def forward(
        self, x_BTD: Tensor, metadata: AttentionMetadata | None = None, router_output: RouterOutput | None = None
    ) -> Tensor:
        """For any tokens (...,D). `metadata` may replay which experts were chosen; `router_output` gets what the router said."""
        leaf = self.leaf
        logits = self.router(x_BTD)
        score = logits.sigmoid() if leaf.score == "sigmoid" else logits.softmax(-1)

        def choose() -> Tensor:
            by = score.detach()
            by = by if self.selection_bias is None else by + self.selection_bias.detach()
            return by.topk(leaf.top_k, -1).indices

        decisions = None if metadata is None else metadata.decisions
        chosen = choose() if decisions is None else decisions.decide(choose)
        if router_output is not None:
            router_output.append((logits, chosen))
        share = score.gather(-1, chosen)
        if leaf.normalise:
            # A sigmoid may be 0; a softmax never is, for those that were chosen.
            share = share / (share.sum(-1, keepdim=True) + (1e-20 if leaf.score == "sigmoid" else 0.0))
        if leaf.scale != 1.0:
            share = share * leaf.scale
        y = self.experts(x_BTD.flatten(0, -2), chosen.flatten(0, -2), share.flatten(0, -2)).view(x_BTD.shape)
        if self.shared is None:
            return y
        more = self.shared(x_BTD)
        if self.shared_gate is not None:
            more = (more * self.shared_gate(x_BTD).sigmoid()).to(more.dtype)
        return y + more

    def extra_repr(self) -> str:
        return f"{self.leaf.kind}, {self.leaf.top_k} of {self.leaf.experts}"
