"""A block alone: attention and a feed-forward with their norms and residuals, called on plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.block import Block as Body
from anyformer.nn.attention import (
    Node,
    check_global,
    check_mask,
    check_position,
    check_tokens_arguments,
    letters,
    memory_scene,
    own_position,
    pattern_of_call,
)
from anyformer.nn.checks import check_rows
from anyformer.nn.one_layer import OneLayer, one_layer
from anyformer.nn.part import Part
from anyformer.nn.scene import placed, self_scene
from anyformer.specs.axes import FeedForward, Norm, Position
from anyformer.specs.patterns import Pattern


class Block(Part):
    """One layer of a model: x plus attention, plus a feed-forward, with norms where `norm` places them.

    heads, kv_heads, head_dim, pattern, bias and all of `attention` are [attention] in a spec (see `Attention`); position,
    ffn, norm and block are those tables, or a kind alone: ffn={"kind": "gelu", "width": 256}, norm={"kind": "layernorm",
    "placement": "post"}, block={"wiring": "parallel"}. cross=True adds attention to a memory.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        pattern: str | Pattern | None = None,
        bias: str | bool = "",
        attention: Mapping[str, Any] | None = None,
        position: Node | Position = "none",
        ffn: Node | FeedForward = "swiglu",
        norm: Node | Norm = "rmsnorm",
        block: Mapping[str, Any] | None = None,
        cross: bool = False,
        context: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        source = "af.nn.Block"
        named = {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "pattern": pattern, "bias": letters(bias) or None,
        }  # fmt: skip
        twice = sorted({name for name, value in named.items() if value is not None} & set(attention or {}))
        if twice:
            raise InputError(f"{source}: attention.{twice[0]}: is given twice, as {twice[0]}= and inside attention=")
        nodes: dict[str, Any] = {"position": position, "ffn": ffn, "norm": norm, "block": block}
        layer = one_layer(
            source, width=width, attention={**named, **(attention or {})}, cross=cross, context=context, **nodes
        )  # fmt: skip
        check_position(source, layer)
        super().__init__(layer, {"blocks.0": "body", "positions.0": "body.attention.body.position"})
        with torch.device("meta"):
            self.body = Body(layer.layer, layer.dims, index=0, cross=cross)
            own_position(self._attention, layer)
            if layer.layer.attention.cross_position and self.body.cross is not None:
                self._share(layer)
        self.start(device, dtype)

    def _share(self, layer: OneLayer) -> None:
        """Let attention to the memory use the position scheme too."""
        leaf, reader = layer.layer.position, self._cross
        if leaf.weights(layer.dims) and not leaf.per_layer:
            raise InputError(
                f"af.nn.Block: attention.cross_position: the parameters of position {leaf.kind!r} belong to a whole stack; "
                "leave it out, or build a model"
            )
        own_position(reader, layer)

    @property
    def _cross(self) -> Any:
        return None if self.body.cross is None else self.body.cross.body

    @property
    def _attention(self) -> Any:
        return self.body.attention.body

    def forward(
        self,
        x: Any,
        mask: Tensor | None = None,
        *,
        pattern: str | Pattern | None = None,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segments: Tensor | None = None,
        global_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Any:
        """The residual after the block, (batch, tokens, width); of block={"wiring": "reversible"} both streams, as a pair.

        The arguments are those of `Attention`; mask, pattern, segments and global_mask are for the self-attention.
        """
        source, body, dims = "af.nn.Block", self._attention, self.layer.dims
        streams = x if self.body.wiring == "reversible" else (x,)
        if not isinstance(streams, tuple) or len(streams) != (2 if self.body.wiring == "reversible" else 1):
            raise TypeError(f"{source}: x: a reversible block runs two streams; give a pair of tensors")
        for stream in streams:
            check_rows(source, "x", stream, dims.width)
        first = streams[0]
        check_tokens_arguments(first, positions, attention_mask, segments)
        used = pattern_of_call(source, body, self.layer.pattern, pattern, mask)
        check_global(source, used, global_mask, first)
        if mask is not None:
            check_mask(source, mask, first, dims.heads, first.shape[1])
        places = placed(
            first, body, used, attention_mask=attention_mask, positions=positions, segments=segments, global_mask=global_mask
        )  # fmt: skip
        scene, crossing = self_scene(body, used, first, places, mask), None
        if self.body.cross is not None:
            if memory is None:
                raise InputError(f"{source}: memory: is missing; it was made with cross=True")
            if segments is not None:
                raise InputError(f"{source}: segments: not with a memory, of which nobody says whose document it is")
            crossing = memory_scene(source, self._cross, first, memory, None, memory_mask, positions, attention_mask)
        elif memory is not None or memory_mask is not None:
            raise InputError(f"{source}: memory: only a block that was made with cross=True reads one")
        return self.body(x, scene, crossing, memory)
