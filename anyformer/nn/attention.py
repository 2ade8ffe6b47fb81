"""Attention alone: projections, heads, positions and a mask or a pattern, called on plain tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.arguments import check_per_token, check_positions, check_whole
from anyformer.nn.checks import check_rows, mask_problems
from anyformer.nn.one_layer import OneLayer, as_pattern, one_layer
from anyformer.nn.part import Part
from anyformer.nn.scene import cross_scene, placed, self_scene
from anyformer.parts.attention import Attention as Body
from anyformer.parts.attention_metadata import AttentionMetadata
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import Mixer, Position
from anyformer.specs.patterns import Pattern

Node = str | Mapping[str, Any]
"""A kind, or a table with a kind and its options, as in a spec."""


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
        if cross and pattern is not None:
            raise InputError(
                "af.nn.Attention: pattern: attention to a memory sees all of it; give mask= or memory_mask= in the call"
            )
        kind = position.kind if isinstance(position, Position) else position
        none = (kind.get("kind") if isinstance(kind, Mapping) else kind) == "none"
        node = {
            "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim, "pattern": pattern, "mixer": mixer,
            "bias": letters(bias), "scale": scale, "softcap": softcap, "temperature": temperature, "qk_norm": qk_norm,
            "v_norm": v_norm, "clip_qkv": clip_qkv, "dropout": dropout, "global_projections": global_projections,
            "cross_position": True if cross and not none else None,
        }  # fmt: skip
        source, name = "af.nn.Attention", "cross" if cross else "attention"
        layer = one_layer(source, width=width, attention=node, position=position, cross=cross, context=context)
        check_position(source, layer)
        super().__init__(layer, {f"blocks.0.{name}.body": "body", "positions.0": "body.position"})
        with torch.device("meta"):
            self.body = Body(layer.layer.attention, layer.dims, layer.layer.position, layer=0, cross=cross)
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
        source, dims = "af.nn.Attention", self.layer.dims
        check_rows(source, "x", x, dims.width)
        check_tokens_arguments(x, positions, attention_mask, segments)
        if self.body.cross:
            given = {"pattern": pattern, "segments": segments, "global_mask": global_mask}
            idle = [f"{name}: has no effect" for name, value in given.items() if value is not None]
            if memory is None or idle:
                raise InputError(
                    f"{source}: {', '.join(['memory: is missing'] if memory is None else idle)}; it was made with "
                    "cross=True, so it reads all of memory=, (batch, keys, width), that mask= or memory_mask= leaves"
                )
            scene = memory_scene(source, self.body, x, memory, mask, memory_mask, positions, attention_mask)
            return self.body(x, scene, memory)
        if memory is not None or memory_mask is not None:
            raise InputError(f"{source}: memory: only an attention that was made with cross=True reads one")
        used = pattern_of_call(source, self.body, self.layer.pattern, pattern, mask)
        check_global(source, used, global_mask, x)
        if mask is not None:
            check_mask(source, mask, x, dims.heads, x.shape[1])
        places = placed(
            x, self.body, used, attention_mask=attention_mask, positions=positions, segments=segments, global_mask=global_mask
        )  # fmt: skip
        return self.body(x, self_scene(self.body, used, x, places, mask))


def letters(bias: str | bool) -> str:
    """Which projections have a bias."""
    return bias if isinstance(bias, str) else "qkvo" if bias else ""


def own_position(body: Body, layer: OneLayer) -> None:
    """Give an attention the position scheme that a stack would hold for all its layers."""
    leaf = body.leaf
    weights, constants = leaf.weights(layer.dims), leaf.constants(layer.dims)
    if body.position is None and (weights or constants):
        body.position = LeafModule(leaf, weights, constants)


def check_position(source: str, layer: OneLayer) -> None:
    """Refuse a scheme that attention does not use: it would be silently without effect."""
    leaf = layer.layer.position
    if leaf.overrides("embed"):
        raise InputError(
            f"{source}: position {leaf.kind!r} is added to embeddings and not used in attention; write "
            f"af.nn.PositionEmbedding({layer.dims.width}, {leaf.kind!r}) before it, and leave position out here"
        )


def check_tokens_arguments(
    x: Tensor, positions: Tensor | None, attention_mask: Tensor | None, segments: Tensor | None
) -> None:
    """Refuse what does not fit the tokens of x."""
    batch, tokens = x.shape[:2]
    check_positions(positions, batch, tokens)
    check_per_token("attention_mask", attention_mask, batch, tokens)
    check_per_token("segments", segments, batch, tokens)
    check_whole("segments", segments)


def check_mask(source: str, mask: Any, x: Tensor, heads: int, keys: int) -> None:
    """Refuse a mask that does not fit."""
    wrong = mask_problems(mask, x.shape[0], heads, x.shape[1], keys)
    if wrong:
        raise InputError("\n  ".join([f"{source}:", *wrong]))


def check_global(source: str, pattern: Pattern, global_mask: Tensor | None, x: Tensor) -> None:
    """Refuse marks that nobody reads."""
    check_per_token("global_mask", global_mask, *x.shape[:2])
    if global_mask is not None and not pattern.reads_marks:
        raise InputError(
            f"{source}: global_mask: the pattern '{pattern}' has no global tokens; write '{pattern} | global_tokens'"
        )


def pattern_of_call(
    source: str, body: Body, own: Pattern, pattern: str | Pattern | None, mask: Tensor | None
) -> Pattern:
    """The pattern that a call follows: its own, or that of the part."""
    if mask is not None and (pattern is not None or not isinstance(own, Full)):
        whose = "the call" if pattern is not None else "this part"
        raise InputError(
            f"{source}: mask: {whose} has the pattern '{own if pattern is None else pattern}' already, and a mask stands for "
            "it; give one of them (padding and packing go with a pattern: attention_mask=, segments=)"
        )
    if mask is not None and not body.mixing.weighs:
        raise InputError(f"{source}: mask: mixer {body.mixing.kind!r} follows patterns only; give pattern= instead")
    if mask is not None and body.global_q is not None:
        raise InputError(f"{source}: mask: global_projections go by the pattern's global tokens; give pattern= instead")
    if pattern is None:
        return own
    found = as_pattern(pattern, source)
    why = None if body.mixing.weighs else body.mixing.serves(found)
    if why is not None:
        raise InputError(f"{source}: pattern: '{found}' does not go with mixer {body.mixing.kind!r}: {why}")
    return found


def memory_scene(
    source: str,
    body: Body,
    x: Tensor,
    memory: Tensor,
    mask: Tensor | None,
    memory_mask: Tensor | None,
    positions: Tensor | None = None,
    attention_mask: Tensor | None = None,
) -> AttentionMetadata:
    """What attention to a memory reads beside the tensors."""
    check_rows(source, "memory", memory, body.dims.width)
    if memory.shape[0] != x.shape[0]:
        raise InputError(f"{source}: memory: {memory.shape[0]} rows, but x has {x.shape[0]}")
    check_per_token("memory_mask", memory_mask, *memory.shape[:2])
    if mask is not None:
        check_mask(source, mask, x, body.dims.heads, memory.shape[1])
    full = Full()
    queries = placed(x, body, full, attention_mask=attention_mask, positions=positions)
    return cross_scene(body, x, queries, placed(memory, body, full, attention_mask=memory_mask), mask)
