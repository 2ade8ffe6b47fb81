"""Positions that are added to embeddings, alone: learned, sinusoidal, axial."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.arguments import check_positions
from anyformer.nn.checks import check_rows
from anyformer.nn.one_layer import one_layer
from anyformer.nn.part import Part
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.axes import Position


class PositionEmbedding(Part):
    """x plus what a scheme has for each token's position. Options are those of [position] in a spec.

    `context` is how many positions there are, where a scheme has only so many. Schemes that work inside attention (rope,
    alibi, t5, ...) are given to `Attention` and `Block` instead.
    """

    def __init__(
        self,
        width: int,
        kind: str = "learned",
        *,
        context: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        source, position = "af.nn.PositionEmbedding", {"kind": kind, **options}
        layer = one_layer(source, width=width, attention={"heads": 1}, position=position, context=context)
        leaf = layer.layer.position
        if not leaf.overrides("embed"):
            added = ", ".join(k for k in Position.kinds() if (it := Position.named(k)) and it.overrides("embed"))
            raise InputError(
                f"{source}: position {leaf.kind!r} adds nothing to embeddings; pick one of {added}, or give it to "
                "af.nn.Attention(position=...)"
            )
        super().__init__(layer, {"positions.0": "body"})
        with torch.device("meta"):
            self.body = LeafModule(leaf, leaf.weights(layer.dims), leaf.constants(layer.dims))
        self.start(device, dtype)

    def forward(self, x: Tensor, positions: Tensor | None = None) -> Tensor:
        """X (batch, tokens, width) with its positions, (batch, tokens) or (tokens,), by default 0, 1, 2 ..."""
        source, (leaf, dims) = "af.nn.PositionEmbedding", (self.layer.layer.position, self.layer.dims)
        check_rows(source, "x", x, dims.width)
        batch, tokens = x.shape[:2]
        check_positions(positions, batch, tokens)
        limit = leaf.limit(dims.context)
        if positions is None:
            if limit is not None and tokens > limit:
                raise InputError(f"{source}: {tokens} tokens are more than the {limit} positions that it was made for")
            positions = torch.arange(tokens, device=x.device)
        added = leaf.embed(self.body.tensors(), positions if positions.dim() == 2 else positions[None], x)
        return x if added is None else x + added
