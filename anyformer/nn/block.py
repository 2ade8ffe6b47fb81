"""A block alone: attention and a feed-forward with their norms and residuals, called on plain tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.block import Block as Body
from anyformer.nn.attention import cross_metadata, letters, own_position, read_position, self_metadata
from anyformer.nn.part import Node, Part, check_rows, one_layer
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
        source, inner = "af.nn.Block", dict(attention or {})
        named = {"heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "pattern": pattern}
        named = {name: value for name, value in (named | {"bias": letters(bias) or None}).items() if value is not None}
        _, refused = read_position(position, width)
        refused += [
            f"attention.{name}: is given twice, as {name}= and inside attention="
            for name in sorted(named.keys() & inner.keys())
        ]
        nodes: dict[str, Any] = {"position": position, "ffn": ffn, "norm": norm, "block": block}
        layer = one_layer(
            source, width=width, attention=inner | named, cross=cross, context=context, refused=refused, **nodes
        )
        super().__init__(layer, {"blocks.0": "body", "positions.0": "body.attention.body.position"})
        with torch.device("meta"):
            self.body = Body(layer.layer, layer.dims, index=0, cross=cross)
            own_position(self._attention, layer)
            leaf = layer.layer.position
            if layer.layer.attention.cross_position and self._cross is not None:
                if leaf.weights(layer.dims) and not leaf.per_layer:
                    raise InputError(
                        f"{source}: attention.cross_position: the parameters of position {leaf.kind!r} belong to a whole "
                        "stack; leave it out, or build a model"
                    )
                own_position(self._cross, layer)
        self.start(device, dtype)

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
        source, reversible = "af.nn.Block", self.body.wiring == "reversible"
        streams = x if reversible else (x,)
        if not isinstance(streams, tuple) or len(streams) != (2 if reversible else 1):
            raise TypeError(f"{source}: x: a reversible block runs two streams; give a pair of tensors")
        for stream in streams:
            check_rows(source, "x", stream, self.layer.dims.width)
        where: dict[str, Any] = {"positions": positions, "padding": attention_mask}
        own: dict[str, Any] = {"pattern": pattern, "segments": segments, "global_mask": global_mask}
        metadata = self_metadata(source, self._attention, self.layer.pattern, streams[0], mask, **where, **own)
        crossing = None
        if self.body.cross is not None:
            if memory is None:
                raise InputError(f"{source}: memory: is missing; it was made with cross=True")
            if segments is not None:
                raise InputError(f"{source}: segments: not with a memory, of which nobody says whose document it is")
            crossing = cross_metadata(source, self._cross, streams[0], memory, memory_mask=memory_mask, **where)
        elif memory is not None or memory_mask is not None:
            raise InputError(f"{source}: memory: only a block that was made with cross=True reads one")
        return self.body(x, metadata, crossing, memory)
