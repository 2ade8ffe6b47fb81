"""Attention alone and a block alone (attention and a feed-forward, norms and residuals), called on plain tensors."""

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.arguments import check_per_token, check_tokens
from anyformer.model.block import Block as BlockBody
from anyformer.model.stack import FULL, LayerGroup, choose_kernel, kernel_for
from anyformer.model.token_layout import TokenLayout, attention_mask, declared_length, document_length, place
from anyformer.nn.part import Node, OneLayer, Part, as_pattern, check_rows, mask_problems, one_layer, spread
from anyformer.parts.attention import Attention as Body
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.global_attention import GlobalAttention, attention_body, global_queries
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import FeedForward, Mixer, Norm, Position
from anyformer.specs.codec import Problems, read
from anyformer.specs.patterns import Pattern


class Attention(Part):
    """Self-attention, or attention to a memory (cross=True), over x (batch, tokens, width).

    The words are those of [attention] in a spec: kv_heads below heads is GQA, 1 is MQA; `pattern` says who sees whom
    ("causal", "window(128)", "causal & strided(8)"; unset: everyone sees everyone); `position` is a scheme that works
    inside attention, as a kind, a table or a node ("rope", {"kind": "rope", "theta": 1e6}); `bias` names the projections
    that have one (letters of "qkvo", or True for all); qk_norm and v_norm are True or a table such as {"kind": "rmsnorm",
    "scope": "head"}; `scale` is a number or a formula such as "1/sqrt(head_dim)". `context` is the longest sequence, for
    patterns that count tokens.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        pattern: str | Pattern | None = None,
        position: Node | Position = "none",
        mixer: Node | Mixer = "softmax",
        bias: str | bool = "",
        scale: float | str | None = None,
        softcap: float | None = None,
        temperature: Mapping[str, Any] | None = None,
        qk_norm: bool | Node | None = None,
        v_norm: bool | Node | None = None,
        clip_qkv: float | None = None,
        dropout: float = 0.0,
        global_projections: bool = False,
        cross: bool = False,
        context: int | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        source, name = "af.nn.Attention", "cross" if cross else "attention"
        kind, refused = read_position(position, width)
        if cross and pattern is not None:
            refused.append("pattern: attention to a memory sees all of it; give mask= or memory_mask= in the call")
        node = {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "pattern": None if cross else pattern,
            "mixer": mixer, "bias": letters(bias), "scale": scale, "softcap": softcap, "temperature": temperature,
            "qk_norm": qk_norm, "v_norm": v_norm, "clip_qkv": clip_qkv, "dropout": dropout,
            "global_projections": global_projections, "cross_position": True if cross and kind != "none" else None,
        }  # fmt: skip
        layer = one_layer(
            source, width=width, attention=node, position=position, cross=cross, context=context, refused=refused
        )
        super().__init__(layer, {f"blocks.0.{name}.body": "body", "positions.0": "body.position"})
        with torch.device("meta"):
            self.body = attention_body(layer.layer.attention, layer.dims, layer.layer.position, layer=0, cross=cross)
            own_position(self.body, layer)
        self.start(device, dtype)

    def forward(
        self,
        x: Tensor,
        mask: Tensor | None = None,
        *,
        pattern: str | Pattern | None = None,
        positions: Tensor | None = None,
        attention_mask: Tensor | None = None,
        segments: Tensor | None = None,
        global_mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        """(batch, tokens, width) from x of that shape.

        mask: (queries, keys) or (batch or 1, heads or 1, queries, keys); boolean, True where a query may see a key, or
        numbers that are added to the scores. pattern: another one for this call. Not both: a mask stands for a pattern.
        positions: (batch, tokens) or (tokens,), by default 0, 1, 2 ... of the real tokens. attention_mask: (batch, tokens),
        1 = real, of padded rows; segments: (batch, tokens), equal = the same document, of packed ones; global_mask: (batch,
        tokens), 1 = global, for a pattern with global_tokens; all three go with a pattern. memory: (batch, keys, width), what cross-attention reads, with memory_mask (batch, keys), 1 = real.
        """
        source = "af.nn.Attention"
        check_rows(source, "x", x, self.layer.dims.width)
        where: dict[str, Any] = {"positions": positions, "padding": attention_mask}
        if self.body.cross:
            check_tokens(x.shape[0], x.shape[1], attention_mask, positions, segments)
            given = {"pattern": pattern, "segments": segments, "global_mask": global_mask}
            unused = [f"{name}: has no effect" for name, value in given.items() if value is not None]
            if memory is None or unused:
                raise InputError(
                    f"{source}: {', '.join(['memory: is missing'] if memory is None else unused)}; it was made with "
                    "cross=True, so it reads all of memory=, (batch, keys, width), that mask= or memory_mask= leaves"
                )
            metadata = cross_metadata(source, self.body, x, memory, mask, memory_mask=memory_mask, **where)
            return self.body(x, metadata, memory)
        if memory is not None or memory_mask is not None:
            raise InputError(f"{source}: memory: only an attention that was made with cross=True reads one")
        where |= {"pattern": pattern, "segments": segments, "global_mask": global_mask}
        return self.body(x, self_metadata(source, self.body, self.layer.pattern, x, mask, **where))


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
            self.body = BlockBody(layer.layer, layer.dims, index=0, cross=cross)
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


def letters(bias: str | bool) -> str:
    """Which projections have a bias."""
    return bias if isinstance(bias, str) else "qkvo" if bias else ""


def own_position(body: Body, layer: OneLayer) -> None:
    """Give an attention the position scheme that a stack would hold for all its layers."""
    leaf = body.leaf
    weights, constants = leaf.weights(layer.dims), leaf.constants(layer.dims)
    if body.position is None and (weights or constants):
        body.position = LeafModule(leaf, weights, constants)


def read_position(position: Node | Position, width: int) -> tuple[str, list[str]]:
    """A position's kind ("" if it can't be read); and why it is refused, if attention would not use it."""
    leaf = read(Position, position, "position", Problems())
    if not isinstance(leaf, Position):
        return "", []
    advice = f"write af.nn.PositionEmbedding({width}, {leaf.kind!r}) before it, and leave position out here"
    why = f"position: {leaf.kind!r} is added to embeddings and not used in attention; {advice}"
    return leaf.kind, [why] if leaf.overrides("embed") else []


def self_metadata(
    source: str,
    body: Body,
    own: Pattern,
    x: Tensor,
    mask: Tensor | None = None,
    *,
    pattern: str | Pattern | None = None,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
    segments: Tensor | None = None,
    global_mask: Tensor | None = None,
) -> AttentionMetadata:
    """What self-attention over x reads; `own` is the pattern of a part whose call gives none. Refuses what does not fit."""
    batch, tokens = x.shape[:2]
    check_tokens(batch, tokens, padding, positions, segments)
    used = _pattern_of_call(source, body, own, pattern, mask)
    check_per_token("global_mask", global_mask, batch, tokens)
    if global_mask is not None and not used.reads_marks:
        raise InputError(
            f"{source}: global_mask: the pattern '{used}' has no global tokens; write '{used} | global_tokens'"
        )
    _check_mask(source, mask, x, body.dims.heads, tokens)
    layout = _layout(x, body, padding, positions, segments)
    if global_mask is not None:
        layout.marked_BT = global_mask != 0
    if used.needs_length or used.evaluated().needs_length:
        layout.length_BT = document_length(layout, tokens)
    return _metadata(body, used if body.training else used.evaluated(), x, layout, layout, mask)


def cross_metadata(
    source: str,
    body: Body,
    x: Tensor,
    memory: Tensor,
    mask: Tensor | None = None,
    *,
    memory_mask: Tensor | None = None,
    positions: Tensor | None = None,
    padding: Tensor | None = None,
) -> AttentionMetadata:
    """What attention to a memory reads: every token of it, unless a mask says otherwise."""
    check_rows(source, "memory", memory, body.dims.width)
    if memory.shape[0] != x.shape[0]:
        raise InputError(f"{source}: memory: {memory.shape[0]} rows, but x has {x.shape[0]}")
    check_per_token("memory_mask", memory_mask, *memory.shape[:2])
    _check_mask(source, mask, x, body.dims.heads, memory.shape[1])
    return _metadata(body, FULL, x, _layout(x, body, padding, positions), _layout(memory, body, memory_mask), mask)


def _check_mask(source: str, mask: Any, x: Tensor, heads: int, keys: int) -> None:
    wrong = [] if mask is None else mask_problems(mask, x.shape[0], heads, x.shape[1], keys)
    if wrong:
        raise InputError("\n  ".join([f"{source}:", *wrong]))


def _pattern_of_call(
    source: str, body: Body, own: Pattern, pattern: str | Pattern | None, mask: Tensor | None
) -> Pattern:
    if mask is not None and (pattern is not None or not isinstance(own, Full)):
        whose = "the call" if pattern is not None else "this part"
        raise InputError(
            f"{source}: mask: {whose} has the pattern '{own if pattern is None else pattern}' already, and a mask stands for "
            "it; give one of them (padding and packing go with a pattern: attention_mask=, segments=)"
        )
    if mask is not None and not body.mixing.weighs:
        raise InputError(f"{source}: mask: mixer {body.mixing.kind!r} follows patterns only; give pattern= instead")
    if mask is not None and isinstance(body, GlobalAttention):
        raise InputError(f"{source}: mask: global_projections go by the pattern's global tokens; give pattern= instead")
    if pattern is None:
        return own
    found = as_pattern(pattern, source)
    why = None if body.mixing.weighs else body.mixing.serves(found)
    if why is not None:
        raise InputError(f"{source}: pattern: '{found}' does not go with mixer {body.mixing.kind!r}: {why}")
    return found


def _layout(
    x: Tensor, body: Body, padding: Tensor | None, positions: Tensor | None = None, segments: Tensor | None = None
) -> TokenLayout:
    """Where the tokens of an input are."""
    batch, tokens = x.shape[:2]
    layout = place(batch, tokens, x.device, mask_BT=padding, positions=positions, segments_BT=segments)
    if body.leaf.needs_length:
        layout.declared_BT = declared_length(layout, tokens, None)
    return layout


def _metadata(
    body: Body, pattern: Pattern, x: Tensor, queries: TokenLayout, keys: TokenLayout, given: Tensor | None
) -> AttentionMetadata:
    mask = attention_mask(pattern, queries, keys, heads=body.dims.heads)
    if given is not None:
        mask.given, mask.shape = spread(given, mask.queries, mask.keys), "pattern"
    q_rope, k_rope = (RotaryTables(tokens.pos_BT, tokens.declared_BT, None) for tokens in (queries, keys))
    metadata = AttentionMetadata(mask, q_rope=q_rope, k_rope=k_rope)
    kind = LayerGroup(
        attention=body.spec, position=body.leaf, mixer=body.mixing, pattern=pattern, evaluated=pattern, scale=body.scale,
        owner=None, turns=body.rotates, biases=body.biases, learned_bias=body.biases, reads_probs=body.reads_probs,
        layer=None,
    )  # fmt: skip
    choose_kernel(metadata, kind, x, training=body.training)
    if isinstance(body, GlobalAttention):
        metadata.globals_ = global_queries(
            pattern, mask, q_rope, lambda some: kernel_for(kind, some, x, training=body.training)
        )
    return metadata
