"""What attention of parts that stand alone reads beside its tensors: arguments checked, a mask, a kernel, metadata."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.arguments import check_per_token, check_tokens
from anyformer.model.stack import FULL, LayerGroup, choose_kernel, kernel_for
from anyformer.model.token_layout import TokenLayout, attention_mask, declared_length, document_length, place
from anyformer.nn.checks import check_rows, mask_problems, spread
from anyformer.nn.part import as_pattern
from anyformer.parts.attention import Attention
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.global_attention import GlobalAttention, global_queries
from anyformer.parts.patterns.full import Full
from anyformer.specs.patterns import Pattern


def self_metadata(
    source: str,
    body: Attention,
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
    body: Attention,
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
    source: str, body: Attention, own: Pattern, pattern: str | Pattern | None, mask: Tensor | None
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
    x: Tensor, body: Attention, padding: Tensor | None, positions: Tensor | None = None, segments: Tensor | None = None
) -> TokenLayout:
    """Where the tokens of an input are."""
    batch, tokens = x.shape[:2]
    layout = place(batch, tokens, x.device, mask_BT=padding, positions=positions, segments_BT=segments)
    if body.leaf.needs_length:
        layout.declared_BT = declared_length(layout, tokens, None)
    return layout


def _metadata(
    body: Attention, pattern: Pattern, x: Tensor, queries: TokenLayout, keys: TokenLayout, given: Tensor | None
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
