"""A stack: embedding norm, blocks in order, final norm. It owns one position module for each distinct spec, and
prepares one metadata for each kind of layer before the first block runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.kernels.attention import choice
from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import Kernel, KernelRequest, Phase, must_repeat
from anyformer.kernels.loss import Routed
from anyformer.model.block import Block
from anyformer.model.global_queries import global_rows
from anyformer.model.reversible import run_reversible
from anyformer.model.token_layout import TokenLayout, attention_mask
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import KVBlockPool
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.parts.patterns.full import Full
from anyformer.parts.positions.none import NoPosition
from anyformer.parts.static_cache import StaticKVCache
from anyformer.specs.axes import Mixer, Position, QKPositions
from anyformer.specs.embed_head import TokenEmbed
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Attention as AttentionSpec
from anyformer.specs.layer import mixer_of
from anyformer.specs.model import ModelSpec
from anyformer.specs.model import Stack as StackSpec
from anyformer.specs.parameters import projects, shared_positions
from anyformer.specs.patterns import Pattern
from anyformer.specs.stacks import pattern_of


@dataclass(frozen=True)
class LayerGroup:
    """A kind of layer: those that may share a metadata."""

    attention: AttentionSpec
    position: Position
    pattern: Pattern
    """In training."""
    evaluated: Pattern
    """In eval mode."""
    scale: float
    owner: int | None
    """Index of the position module that the stack owns, if the layers don't."""
    turns: bool
    """Whether the position scheme rotates."""
    biases: bool
    """Whether it adds to scores."""
    learned_bias: bool
    """Whether what it adds to scores has a gradient."""
    reads_probs: bool
    """Whether it adds to values."""
    layer: int | None
    """The layer's number, if its pattern reads it."""


class Stack(nn.Module):
    """The blocks of an encoder or a decoder, and what stands before and after them."""

    def __init__(self, spec: ModelSpec, stack: StackSpec) -> None:
        super().__init__()
        self.causal, self.reversible, self.merge = stack.causal, stack.reversible, stack.merge
        dims = [spec.dims(layer, stack) for layer in stack.layers]
        shared, _ = shared_positions(spec, stack)
        self.positions = nn.ModuleList(LeafModule(p, p.weights(d), p.constants(d)) for p, d in shared)
        last = isinstance(spec.embed, TokenEmbed) and spec.embed.project == "last" and projects(spec)
        width = spec.embed_width if last else spec.width
        self.embedding_norm = Norm(stack.norm.leaf, (width,)) if stack.embedding_norm else None
        bias = isinstance(spec.embed, TokenEmbed) and spec.embed.project_bias
        self.project = Linear(width, spec.width, bias=bias) if last else None
        self.blocks = nn.ModuleList(
            Block(layer, d, index=i, cross=stack.cross)
            for i, (layer, d) in enumerate(zip(stack.layers, dims, strict=True))
        )
        self.scores = [layer.ffn.score if isinstance(layer.ffn, Moe) else None for layer in stack.layers]
        """What the router of each layer makes of its logits, if it has one."""
        self.final_norm = Norm(stack.norm.leaf, (stack.out_width(spec.width),)) if stack.final_norm else None
        self.dropout = spec.embed.dropout
        kinds = layer_groups(spec, stack)
        self.kinds = list(dict.fromkeys(kinds))
        self.kind_of = [self.kinds.index(kind) for kind in kinds]
        self.first_of = [kinds.index(kind) for kind in self.kinds]
        """The first layer of each kind."""
        self.needs_rope_length = any(k.position.needs_length for k in self.kinds)
        """Whether a position scheme reads a declared length."""
        self.reads_document = any(k.pattern.needs_length or k.evaluated.needs_length for k in self.kinds)
        """Whether a pattern reads the length of its document."""
        self.reads_marks = any(k.pattern.reads_marks for k in self.kinds)
        """Whether a pattern reads which tokens are marked as global."""
        self.prefix = max((k.pattern.prefix() or 0 for k in self.kinds), default=0) if stack.causal else 0
        """How many of the first tokens see each other both ways, so that a cache is fed them at once."""
        limits = [n for k in self.kinds if (n := k.position.limit(spec.context)) is not None]
        self.limit: int | None = min(limits, default=None)
        """How many positions exist, if a scheme has only so many."""

    def forward(
        self,
        x_BTD: Tensor,
        places: TokenLayout,
        *,
        cache: KVCache | None = None,
        memory_BSD: Tensor | None = None,
        source: TokenLayout | None = None,
    ) -> Tensor:
        x_BTD = self.enter(x_BTD, places)
        new = x_BTD.shape[1]
        if cache is not None:
            cache.begin(places.pos_BT, places.valid_BT, places.marked_BT, ragged=not places.plain)
        by_group = [
            self.self_metadata(kind, first, x_BTD, places, cache)
            for kind, first in zip(self.kinds, self.first_of, strict=True)
        ]
        crossing: list[AttentionMetadata | None] = [None] * len(by_group)
        if source is not None:
            crossing = [self.cross_metadata(kind, x_BTD, places, source, cache, memory_BSD) for kind in self.kinds]
        if self.reversible:
            x_BTD = self.both_ways(x_BTD, by_group, crossing, memory_BSD)
        else:
            for block, kind, score in zip(self.blocks, self.kind_of, self.scores, strict=True):
                given = x_BTD, by_group[kind], crossing[kind], memory_BSD
                if places.heard is None or score is None:
                    x_BTD = block(*given)
                else:
                    x_BTD, logits_BTE, chosen_BTK = block(*given, True)
                    places.heard.append(Routed(logits_BTE, chosen_BTK, score == "sigmoid"))
        if cache is not None:
            cache.advance(new)
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)

    def both_ways(
        self,
        x_BTD: Tensor,
        by_group: list[AttentionMetadata],
        crossing: list[AttentionMetadata | None],
        memory_BSD: Tensor | None,
    ) -> Tensor:
        """The two streams of a reversible stack, merged."""
        each, across = [by_group[kind] for kind in self.kind_of], [crossing[kind] for kind in self.kind_of]
        shared = tuple(self.positions.parameters())
        streams = run_reversible(self.blocks, (x_BTD, x_BTD), each, across, memory_BSD, shared)
        return torch.cat(streams, -1) if self.merge == "concat" else (streams[0] + streams[1]) / 2

    def enter(self, x_BTD: Tensor, places: TokenLayout) -> Tensor:
        """From embeddings to the residual: added positions, norm, projection, dropout."""
        held: Any
        for held in self.positions:
            added = held.leaf.embed(held.tensors(), places.pos_BT, x_BTD)
            if added is not None:
                x_BTD = x_BTD + added
        if self.embedding_norm is not None:
            x_BTD = self.embedding_norm(x_BTD)
        if self.project is not None:
            x_BTD = self.project(x_BTD)
        return F.dropout(x_BTD, self.dropout, self.training) if self.dropout > 0 else x_BTD

    def self_metadata(
        self, kind: LayerGroup, first: int, x_BTD: Tensor, queries: TokenLayout, cache: KVCache | None
    ) -> AttentionMetadata:
        """What self-attention layers of this kind share."""
        if cache is not None and cache.paged:
            metadata = self.paged_metadata(kind, first, x_BTD, queries, cache)
            if metadata is not None:
                return metadata
        keys = queries
        if cache is not None:
            keys = queries if kind.attention.mixer.stateful else kept_places(cache, first, queries)
        pattern = kind.pattern if self.training else kind.evaluated
        mask = attention_mask(pattern, queries, keys, heads=kind.attention.heads, layer=kind.layer or 0)
        metadata = self.prepare(kind, kind.position, kind.attention.mixer, x_BTD, queries, mask, cache)
        # New keys sit where the queries sit; those in the cache are turned already.
        metadata.k_rope = metadata.q_rope
        if kind.attention.global_projections:
            metadata.globals_ = global_rows(
                pattern,
                mask,
                metadata.q_rope,
                lambda some: self.kernel_for(kind, some, kind.position, x_BTD, cached=cache is not None),
            )
        return metadata

    def paged_metadata(
        self, kind: LayerGroup, first: int, x_BTD: Tensor, queries: TokenLayout, cache: KVCache
    ) -> AttentionMetadata | None:
        """The same where a kernel reads the keys of each row in their pages; None if none does."""
        pages = cache.block_table(first, x_BTD.shape[1])
        if pages is None or not kind.attention.mixer.weighs:
            return None
        # Such a kernel asks the pattern, and not who sees whom of the keys that a gather would give.
        mask = attention_mask(kind.pattern, queries, queries, heads=kind.attention.heads, layer=kind.layer or 0)
        mask.shape = "pattern"
        if not self.kernel_for(kind, mask, kind.position, x_BTD, cached=True, paged=True).reads_pages:
            return None
        metadata = self.prepare(kind, kind.position, kind.attention.mixer, x_BTD, queries, mask, cache, paged=True)
        metadata.pages, metadata.k_rope = pages, metadata.q_rope
        return metadata

    def cross_metadata(
        self,
        kind: LayerGroup,
        x_BTD: Tensor,
        queries: TokenLayout,
        source: TokenLayout,
        cache: KVCache | None,
        memory_BSD: Tensor | None,
    ) -> AttentionMetadata:
        """What cross-attention layers of this kind share: every source token of the same document."""
        mask = attention_mask(FULL, queries, source, heads=kind.attention.heads)
        position = kind.position if kind.attention.cross_position else NoPosition()
        mixer = mixer_of(kind.attention, cross=True)
        metadata = self.prepare(kind, position, mixer, x_BTD, queries, mask, cache)
        if memory_BSD is not None:
            metadata.k_rope = self.turn(kind, position, source, memory_BSD)
        return metadata

    def turn(
        self, kind: LayerGroup, position: Position, places: TokenLayout, like: Tensor, cache: KVCache | None = None
    ) -> RotaryTables:
        """What rotates tokens at these places; a layer with parameters of its own computes the angles itself."""
        angles = None
        if kind.turns and kind.owner is not None and position is kind.position:
            kept = cache.rotary[kind.owner] if cache is not None and cache.rotary else None
            if kept is not None and cache is not None and places.plain:
                begin = cache.used
                angles = tuple([part[:, begin : begin + like.shape[1]] for part in kept])
            elif kept is not None and cache is not None and cache.positions_are_counts:
                angles = tuple([part[0][places.pos_BT] for part in kept])
            else:
                angles = position.angles(self.own(kind.owner), places.pos_BT, places.declared_BT, like)
        return RotaryTables(places.pos_BT, places.declared_BT, angles)

    def own(self, owner: int) -> dict[str, Tensor]:
        """Tensors of a position module that the stack owns."""
        held: Any = self.positions[owner]
        return held.tensors()

    def precompute_rotary(self, cache: StaticKVCache | KVBlockPool, like: Tensor) -> None:
        """Rotations of all positions that a cache has room for."""
        pos = torch.arange(cache.length, device=like.device)[None]
        length = torch.full((1, 1), cache.default_rope_length, device=like.device) if self.needs_rope_length else None
        held: Any
        for held in self.positions:
            turns = held.leaf.overrides("angles")
            cache.rotary.append(held.leaf.angles(held.tensors(), pos, length, like) if turns else None)

    def kernel_for(
        self,
        kind: LayerGroup,
        mask: AttentionMask,
        position: Position,
        x_BTD: Tensor,
        mixer: Mixer | None = None,
        *,
        cached: bool = False,
        paged: bool = False,
    ) -> Kernel:
        """The kernel that serves this kind of attention."""
        request = kernel_request(
            kind, mask, position, mixer, device=x_BTD.device.type, dtype=x_BTD.dtype, training=self.training,
            cached=cached, paged=paged,
        )  # fmt: skip
        return choice(request).kernel

    def prepare(
        self,
        kind: LayerGroup,
        position: Position,
        mixer: Mixer,
        x_BTD: Tensor,
        queries: TokenLayout,
        mask: AttentionMask,
        cache: KVCache | None,
        *,
        paged: bool = False,
    ) -> AttentionMetadata:
        """Positions, angles, score terms that no layer changes, and the kernel."""
        a, uses = kind.attention, position is kind.position
        metadata = AttentionMetadata(
            mask=mask,
            kernel=self.kernel_for(kind, mask, position, x_BTD, mixer, cached=cache is not None, paged=paged)
            if mixer.weighs
            else None,
            q_rope=self.turn(kind, position, queries, x_BTD, cache),
            cache=cache,
        )
        if uses and kind.owner is not None and (kind.biases or kind.reads_probs):
            metadata.own = own = self.own(kind.owner)
            if kind.biases and not position.reads_content and not self.reversible:
                # Such terms may know how many heads there are and in what dtype they come, and nothing of what is in
                # them. A reversible block makes its own: what it recomputes must lead back to the parameters.
                batch, heads, kv_heads = x_BTD.shape[0], a.heads, a.kv_heads or a.heads
                q, k = x_BTD.new_empty(batch, mask.queries, heads, 0), x_BTD.new_empty(batch, mask.keys, kv_heads, 0)
                metadata.scores = position.scores(own, q, k, QKPositions(mask.q.pos, mask.k.pos), kind.scale)
        if metadata.kernel is not None and metadata.kernel.prepare is not None:
            metadata.kernel.prepare(mask, position.reach if uses and a.softcap is None else None)
        mask.shut = not torch.compiler.is_compiling()
        return metadata


def layer_groups(spec: ModelSpec, stack: StackSpec) -> list[LayerGroup]:
    """The group of each layer."""
    _, owners = shared_positions(spec, stack)
    patterns = [pattern_of(stack, layer) for layer in stack.layers]
    return [
        LayerGroup(
            attention=layer.attention,
            position=layer.position,
            pattern=pattern,
            evaluated=pattern.evaluated(),
            scale=evaluate(layer.attention.scale, spec.dims(layer, stack).names()),
            owner=owner,
            turns=layer.position.overrides("rotate"),
            biases=layer.position.biases(),
            learned_bias=layer.position.biases()
            and (layer.position.reads_content or bool(layer.position.weights(spec.dims(layer, stack)))),
            reads_probs=layer.position.reads_probs(),
            layer=i if pattern.per_layer else None,
        )
        for i, (layer, pattern, owner) in enumerate(zip(stack.layers, patterns, owners, strict=True))
    ]


def kernel_request(
    kind: LayerGroup,
    mask: AttentionMask,
    position: Position,
    mixer: Mixer | None,
    *,
    device: str,
    dtype: torch.dtype,
    training: bool,
    cached: bool = False,
    paged: bool = False,
) -> KernelRequest:
    """What attention of these layers asks a kernel for: the layers' own scheme, or another `position` and `mixer`."""
    a, uses = kind.attention, position is kind.position
    phase: Phase = "train" if training else "decode" if mask.queries == 1 and mask.keys > 1 else "prefill"
    return KernelRequest(
        device=device, dtype=dtype, phase=phase, shape=mask.shape, pattern=mask.pattern, mixer=mixer or a.mixer,
        plain=mask.plain, bias=uses and kind.biases, reads_content=uses and position.reads_content,
        products=uses and position.products, softcap=a.softcap is not None, reads_probs=uses and kind.reads_probs,
        dropout=training and a.dropout > 0, compiling=torch.compiler.is_compiling(), paged=paged, cached=cached,
        recorded=fixed_shapes(device), learned_bias=uses and kind.learned_bias, deterministic=must_repeat(),
    )  # fmt: skip


FULL = Full()


def kept_places(cache: KVCache, layer: int, queries: TokenLayout) -> TokenLayout:
    """Where the keys are that a layer sees: those that its cache kept, and the new ones."""
    pos_BS, valid_BS, marked_BS = cache.key_positions(layer)
    ordered = queries.plain and valid_BS is None and (cache.used == 0 or cache.is_append_only(layer))
    return TokenLayout(
        pos_BT=pos_BS, valid_BT=valid_BS, marked_BT=marked_BS, length_BT=queries.length_BT, plain=ordered,
        trailing=queries.trailing,
    )  # fmt: skip
