"""A stack: embedding norm, blocks in order, final norm. It owns one position module for each distinct spec, and
prepares one metadata for each kind of layer before the first block runs.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
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
from anyformer.model.reversible import run_reversible
from anyformer.model.token_layout import TokenLayout, attention_mask
from anyformer.parts.attention_metadata import AttentionMetadata, RotaryTables
from anyformer.parts.ffns.moe import Moe
from anyformer.parts.global_attention import global_queries
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
    mixer: Mixer
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

    positions: Any

    def __init__(self, spec: ModelSpec, stack: StackSpec) -> None:
        super().__init__()
        self.causal, self.reversible, self.merge = stack.causal, stack.reversible, stack.merge
        shared, _ = shared_positions(spec, stack)
        self.positions = nn.ModuleList(LeafModule(p, p.weights(d), p.constants(d)) for p, d in shared)
        self.added_positions = [i for i, (p, _) in enumerate(shared) if p.overrides("embed")]
        """Which of them are added to the embeddings."""
        last = isinstance(spec.embed, TokenEmbed) and spec.embed.project == "last" and projects(spec)
        width = spec.embed_width if last else spec.width
        self.embedding_norm = Norm(stack.norm.leaf, (width,)) if stack.norm.embedding else None
        bias = isinstance(spec.embed, TokenEmbed) and spec.embed.project_bias
        self.project = Linear(width, spec.width, bias=bias) if last else None
        self.blocks = nn.ModuleList(
            Block(layer, spec.dims(layer, stack), index=i, cross=stack.cross) for i, layer in enumerate(stack.blocks)
        )
        self.shared = stack.shared
        """Which of them each layer runs, if some layers share one."""
        self.scores = [layer.ffn.score if isinstance(layer.ffn, Moe) else None for layer in stack.layers]
        """What the router of each layer makes of its logits, if it has one."""
        self.final_norm = Norm(stack.norm.leaf, (stack.out_width(spec.width),)) if stack.norm.has_final() else None
        self.dropout = spec.embed.dropout
        kinds = layer_groups(spec, stack)
        self.kinds = list(dict.fromkeys(kinds))
        self.cross_kinds = [cross_group(kind) for kind in self.kinds]
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
        limits = [n for p, _ in shared if (n := p.limit(spec.context)) is not None]
        limits += [n for k in self.kinds if (n := k.position.limit(spec.context)) is not None]
        self.limit: int | None = min(limits, default=None)
        """How many positions exist, if a scheme has only so many."""

    def forward(
        self,
        x_BTD: Tensor,
        layout: TokenLayout,
        *,
        cache: KVCache | None = None,
        encoder_BSD: Tensor | None = None,
        source: TokenLayout | None = None,
    ) -> Tensor:
        x_BTD = self.add_positions(x_BTD, layout)
        new = x_BTD.shape[1]
        if cache is not None:
            cache.begin(layout.pos_BT, layout.valid_BT, layout.marked_BT, ragged=not layout.plain)
        by_group = [
            self.self_metadata(kind, first, x_BTD, layout, cache)
            for kind, first in zip(self.kinds, self.first_of, strict=True)
        ]
        cross: list[AttentionMetadata | None] = [None] * len(by_group)
        if source is not None:
            cross = [self.cross_metadata(kind, x_BTD, layout, source, cache, encoder_BSD) for kind in self.cross_kinds]
        blocks: Iterable[nn.Module] = self.blocks
        each, across = [by_group[kind] for kind in self.kind_of], [cross[kind] for kind in self.kind_of]
        if self.shared:
            made = list(self.blocks)
            blocks = [made[i] for i in self.shared]
            if cache is not None:
                each = [metadata.of_layer(i) for i, metadata in enumerate(each)]
                across = [metadata and metadata.of_layer(i) for i, metadata in enumerate(across)]
        if self.reversible:
            extra = tuple(self.positions.parameters())
            streams = run_reversible(blocks, (x_BTD, x_BTD), each, across, encoder_BSD, extra)
        else:
            for block, metadata, other, score in zip(blocks, each, across, self.scores, strict=True):
                given = x_BTD, metadata, other, encoder_BSD
                if layout.router_outputs is None or score is None:
                    x_BTD = block(*given)
                else:
                    x_BTD, logits_BTE, chosen_BTK = block(*given, True)
                    layout.router_outputs.append(Routed(logits_BTE, chosen_BTK, score == "sigmoid"))
            streams = (x_BTD,)
        if cache is not None:
            cache.advance(new)
        return self.finish(streams)

    def finish(self, streams: Sequence[Tensor]) -> Tensor:
        """What the stack gives for its last residual, or for both streams of a reversible one: merged, and normed."""
        x_BTD = streams[0]
        if self.reversible:
            # Both streams begin as the embeddings.
            other_BTD = streams[-1]
            x_BTD = torch.cat((x_BTD, other_BTD), -1) if self.merge == "concat" else (x_BTD + other_BTD) / 2
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)

    def add_positions(self, x_BTD: Tensor, layout: TokenLayout) -> Tensor:
        """From embeddings to the residual: added positions, norm, projection, dropout."""
        for i in self.added_positions:
            held = self.positions[i]
            added = held.leaf.embed(held.tensors(), layout.pos_BT, x_BTD)
            x_BTD = x_BTD if added is None else x_BTD + added
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
            keys = queries if kind.mixer.stateful else cached_layout(cache, first, queries)
        pattern = kind.pattern if self.training else kind.evaluated
        mask = attention_mask(pattern, queries, keys, heads=kind.attention.heads, layer=kind.layer or 0)
        metadata = self.prepare(kind, x_BTD, queries, mask, cache)
        # New keys sit where the queries sit; those in the cache are turned already.
        metadata.k_rope = metadata.q_rope
        if kind.attention.global_projections:
            given = {"training": self.training, "cached": cache is not None}
            metadata.globals_ = global_queries(
                pattern, mask, metadata.q_rope, lambda some: kernel_for(kind, some, x_BTD, **given)
            )
        return metadata

    def paged_metadata(
        self, kind: LayerGroup, first: int, x_BTD: Tensor, queries: TokenLayout, cache: KVCache
    ) -> AttentionMetadata | None:
        """The same where a kernel reads the keys of each row in their pages; None if none does."""
        pages = cache.block_table(first, x_BTD.shape[1])
        if pages is None or not kind.mixer.weighs:
            return None
        # Such a kernel asks the pattern, and not who sees whom of the keys that a gather would give.
        mask = attention_mask(kind.pattern, queries, queries, heads=kind.attention.heads, layer=kind.layer or 0)
        mask.shape = "pattern"
        if not kernel_for(kind, mask, x_BTD, training=self.training, cached=True, paged=True).reads_pages:
            return None
        metadata = self.prepare(kind, x_BTD, queries, mask, cache, paged=True)
        metadata.pages, metadata.k_rope = pages, metadata.q_rope
        return metadata

    def cross_metadata(
        self,
        kind: LayerGroup,
        x_BTD: Tensor,
        queries: TokenLayout,
        source: TokenLayout,
        cache: KVCache | None,
        encoder_BSD: Tensor | None,
    ) -> AttentionMetadata:
        """What cross-attention layers of this kind share: every source token of the same document."""
        mask = attention_mask(kind.pattern, queries, source, heads=kind.attention.heads)
        metadata = self.prepare(kind, x_BTD, queries, mask, cache)
        if encoder_BSD is not None:
            metadata.k_rope = self.rotary(kind, source, encoder_BSD)
        return metadata

    def rotary(self, kind: LayerGroup, layout: TokenLayout, like: Tensor, cache: KVCache | None = None) -> RotaryTables:
        """What rotates these tokens; a layer with parameters of its own computes the angles itself."""
        angles = None
        if kind.turns and kind.owner is not None:
            kept = cache.rotary[kind.owner] if cache is not None and cache.rotary else None
            if kept is not None and cache is not None and layout.plain:
                begin = cache.used
                angles = tuple([part[:, begin : begin + like.shape[1]] for part in kept])
            elif kept is not None and cache is not None and cache.positions_are_counts:
                angles = tuple([part[0][layout.pos_BT] for part in kept])
            else:
                own = self.positions[kind.owner].tensors()
                angles = kind.position.angles(own, layout.pos_BT, layout.declared_BT, like)
        return RotaryTables(layout.pos_BT, layout.declared_BT, angles)

    @torch.no_grad()
    def precompute_rotary(self, cache: StaticKVCache | KVBlockPool, like: Tensor) -> None:
        """Rotations of all positions that a cache has room for."""
        pos = torch.arange(cache.length, device=like.device)[None]
        length = torch.full((1, 1), cache.default_rope_length, device=like.device) if self.needs_rope_length else None
        for held in self.positions:
            turns = held.leaf.overrides("angles")
            cache.rotary.append(held.leaf.angles(held.tensors(), pos, length, like) if turns else None)

    def prepare(
        self,
        kind: LayerGroup,
        x_BTD: Tensor,
        queries: TokenLayout,
        mask: AttentionMask,
        cache: KVCache | None,
        *,
        paged: bool = False,
    ) -> AttentionMetadata:
        """Positions, angles, score terms that no layer changes, and the kernel."""
        q_rope = self.rotary(kind, queries, x_BTD, cache)
        metadata = AttentionMetadata(mask=mask, q_rope=q_rope, cache=cache)
        if kind.owner is not None and (kind.biases or kind.reads_probs):
            metadata.own = own = self.positions[kind.owner].tensors()
            if kind.biases and not kind.position.reads_content and not self.reversible:
                # Such terms may know how many heads there are and in what dtype they come, and nothing of what is in
                # them. A reversible block makes its own: what it recomputes must lead back to the parameters.
                batch, heads = x_BTD.shape[0], kind.attention.heads
                q = x_BTD.new_empty(batch, mask.queries, heads, 0)
                k = x_BTD.new_empty(batch, mask.keys, kind.attention.kv_heads or heads, 0)
                metadata.scores = kind.position.scores(own, q, k, QKPositions(mask.q.pos, mask.k.pos), kind.scale)
        choose_kernel(metadata, kind, x_BTD, training=self.training, cached=cache is not None, paged=paged)
        return metadata

    def extra_repr(self) -> str:
        return f"{len(self.shared)} layers run {len(self.blocks)} of them" if self.shared else ""


def layer_groups(spec: ModelSpec, stack: StackSpec) -> list[LayerGroup]:
    """The group of each layer."""
    _, owners = shared_positions(spec, stack)
    found: list[LayerGroup] = []
    for i, (layer, owner) in enumerate(zip(stack.layers, owners, strict=True)):
        pattern, position, dims = pattern_of(stack, layer), layer.position, spec.dims(layer, stack)
        biases = position.biases()
        found.append(
            LayerGroup(
                attention=layer.attention, position=position, mixer=layer.attention.mixer, pattern=pattern,
                evaluated=pattern.evaluated(), scale=evaluate(layer.attention.scale, dims.names()), owner=owner,
                turns=position.overrides("rotate"), biases=biases,
                learned_bias=biases and (position.reads_content or bool(position.weights(dims))),
                reads_probs=position.reads_probs(), layer=i if pattern.per_layer else None,
            )
        )  # fmt: skip
    return found


FULL = Full()


def cross_group(kind: LayerGroup) -> LayerGroup:
    """The same of cross-attention, which sees every source token."""
    kind = replace(kind, pattern=FULL, evaluated=FULL, mixer=mixer_of(kind.attention, cross=True), layer=None)
    if kind.attention.cross_position:
        return kind
    unused = {"turns": False, "biases": False, "learned_bias": False, "reads_probs": False}
    return replace(kind, position=NoPosition(), owner=None, **unused)


def kernel_for(kind: LayerGroup, mask: AttentionMask, x_BTD: Tensor, **given: Any) -> Kernel:
    """The kernel that serves this kind of attention."""
    return choice(kernel_request(kind, mask, device=x_BTD.device.type, dtype=x_BTD.dtype, **given)).kernel


def choose_kernel(metadata: AttentionMetadata, kind: LayerGroup, x_BTD: Tensor, **given: Any) -> None:
    """Give the metadata the kernel that serves, if scores are weighed, and make its mask ready for all layers."""
    mask = metadata.mask
    if kind.mixer.weighs:
        metadata.kernel = kernel = kernel_for(kind, mask, x_BTD, **given)
        if kernel.prepare is not None:
            kernel.prepare(mask, kind.position.reach if kind.attention.softcap is None else None)
    mask.shut = not torch.compiler.is_compiling()


def kernel_request(
    kind: LayerGroup,
    mask: AttentionMask,
    *,
    device: str,
    dtype: torch.dtype,
    training: bool,
    cached: bool = False,
    paged: bool = False,
) -> KernelRequest:
    """What attention of these layers asks a kernel for."""
    a, position, masked = kind.attention, kind.position, mask.given is not None
    phase: Phase = "train" if training else "decode" if mask.queries == 1 and mask.keys > 1 else "prefill"
    return KernelRequest(
        device=device, dtype=dtype, phase=phase, shape=mask.shape, pattern=mask.pattern, mixer=kind.mixer,
        plain=mask.plain, bias=kind.biases or (masked and mask.adds_wider(dtype)), reads_content=position.reads_content,
        products=position.products, softcap=a.softcap is not None, reads_probs=kind.reads_probs,
        dropout=training and a.dropout > 0, compiling=torch.compiler.is_compiling(), paged=paged, cached=cached,
        recorded=fixed_shapes(device), learned_bias=kind.learned_bias, deterministic=must_repeat(), masked=masked,
    )  # fmt: skip


def cached_layout(cache: KVCache, layer: int, queries: TokenLayout) -> TokenLayout:
    """Where the keys are that a layer sees: those that its cache kept, and the new ones."""
    pos_BS, valid_BS, marked_BS = cache.key_positions(layer)
    ordered = queries.plain and valid_BS is None and (cache.used == 0 or cache.is_append_only(layer))
    return TokenLayout(
        pos_BT=pos_BS, valid_BT=valid_BS, marked_BT=marked_BS, length_BT=queries.length_BT, plain=ordered,
        right_padded=queries.right_padded,
    )  # fmt: skip
