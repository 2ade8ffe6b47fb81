"""The feed-forward alone: any registered kind, gated or not, or a mixture of experts."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.nn.checks import check_tokens
from anyformer.nn.one_layer import one_layer
from anyformer.nn.part import Part
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.moe import MoE


class FeedForward(Part):
    """down(act(up(x))), down(act(gate(x)) * up(x)), or a few of many such experts for each token.

    `kind` and the options are those of [ffn] in a spec (relu, gelu, silu, swiglu, geglu, moe, ...; bias, dropout, chunk;
    experts, top_k, ...); `ffn_width` is the inner width, by default what the kind makes of `width`.
    """

    def __init__(
        self,
        width: int,
        kind: str = "swiglu",
        *,
        ffn_width: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        ffn = {"kind": kind, **options} | ({} if ffn_width is None else {"width": ffn_width})
        layer = one_layer("af.nn.FeedForward", width=width, attention={"heads": 1}, ffn=ffn)
        super().__init__(layer, {"blocks.0.ffn.body": "body"})
        leaf = layer.layer.ffn
        with torch.device("meta"):
            self.body = MoE(leaf, layer.dims) if isinstance(leaf, Moe) else FeedForwardNet(leaf, layer.dims)
        self.start(device, dtype)

    def forward(self, x: Tensor) -> Tensor:
        """The network at every token of x (..., width)."""
        check_tokens("af.nn.FeedForward", x, self.layer.dims.width)
        return self.body(x)
