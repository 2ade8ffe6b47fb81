"""The one place where parts that stand alone make what attention reads beside its tensors: a sight, a kernel, a scene."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.kernels.attention import choice
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import Kernel, KernelRequest, must_repeat
from anyformer.model.global_queries import global_rows
from anyformer.model.token_layout import TokenLayout, declared_length, document_length, place
from anyformer.model.token_layout import attention_mask as sight_of
from anyformer.nn.checks import spread
from anyformer.parts.attention import Attention
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.patterns.full import Full
from anyformer.specs.patterns import Pattern

FULL = Full()


def placed(
    x_BTD: Tensor,
    body: Attention,
    pattern: Pattern,
    *,
    attention_mask: Tensor | None = None,
    positions: Tensor | None = None,
    segments: Tensor | None = None,
    global_mask: Tensor | None = None,
) -> TokenLayout:
    """Where the tokens of an input are."""
    batch, tokens = x_BTD.shape[:2]
    places = place(
        batch, tokens, x_BTD.device, mask_BT=attention_mask, positions=positions, segments_BT=segments
    )  # fmt: skip
    if global_mask is not None:
        places.marked_BT = global_mask != 0
    if pattern.needs_length or pattern.evaluated().needs_length:
        places.length_BT = document_length(places, tokens)
    if body.leaf.needs_length:
        places.declared_BT = declared_length(places, tokens, None)
    return places


def self_scene(
    body: Attention, pattern: Pattern, x_BTD: Tensor, places: TokenLayout, mask: Tensor | None
) -> AttentionMetadata:
    """What self-attention reads."""
    pattern = pattern if body.training else pattern.evaluated()
    return _scene(body, sight_of(pattern, places, places, heads=body.dims.heads), x_BTD, places, places, mask)


def cross_scene(
    body: Attention, x_BTD: Tensor, queries: TokenLayout, source: TokenLayout, mask: Tensor | None
) -> AttentionMetadata:
    """What attention to a memory reads: every token of it, unless a mask says otherwise."""
    return _scene(body, sight_of(FULL, queries, source, heads=body.dims.heads), x_BTD, queries, source, mask)


def _scene(
    body: Attention, sight: AttentionMask, x_BTD: Tensor, queries: TokenLayout, keys: TokenLayout, mask: Tensor | None
) -> AttentionMetadata:
    if mask is not None:
        sight.given, sight.shape = spread(mask, sight.queries, sight.keys), "pattern"
    scene = AttentionMetadata(
        sight,
        q_rope=RotaryTables(queries.pos_BT, queries.declared_BT, None),
        k_rope=RotaryTables(keys.pos_BT, keys.declared_BT, None),
    )
    if body.mixing.weighs:
        scene.kernel = _kernel(body, sight, x_BTD)
        if body.global_q is not None:
            scene.globals_ = global_rows(
                sight.pattern, sight, scene.q_rope, lambda some: _kernel(body, some, x_BTD)
            )  # fmt: skip
        if scene.kernel.prepare is not None:
            scene.kernel.prepare(sight, body.leaf.reach if body.spec.softcap is None else None)
    sight.shut = not torch.compiler.is_compiling()
    return scene


def _kernel(body: Attention, sight: AttentionMask, x_BTD: Tensor) -> Kernel:
    """The kernel that serves."""
    position = body.leaf
    request = KernelRequest(
        device=x_BTD.device.type, dtype=x_BTD.dtype, phase="train" if body.training else "prefill", shape=sight.shape,
        pattern=sight.pattern, mixer=body.mixing, plain=sight.plain,
        bias=position.biases() or sight.adds_wider(x_BTD.dtype), reads_content=position.reads_content,
        products=position.products, softcap=body.spec.softcap is not None, reads_probs=position.reads_probs(),
        dropout=body.training and body.spec.dropout > 0, compiling=torch.compiler.is_compiling(),
        recorded=fixed_shapes(x_BTD.device.type), learned_bias=position.biases(), deterministic=must_repeat(),
        masked=sight.given is not None,
    )  # fmt: skip
    return choice(request).kernel
