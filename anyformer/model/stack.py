"""A stack: embedding norm, blocks in order, final norm. It owns one position module for each distinct spec, and
prepares one scene for each kind of layer before the first block runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from anyformer.kernels.attention import choice
from anyformer.kernels.choose import MaskClass, Phase, Request
from anyformer.model.block import Block
from anyformer.model.places import Places
from anyformer.parts.cache import Cache
from anyformer.parts.held import Held
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.documents import Documents
from anyformer.parts.patterns.full import Full
from anyformer.parts.positions.none import NoPosition
from anyformer.parts.scene import Scene, Turn
from anyformer.specs.axes import Position, Where
from anyformer.specs.ends import TokenEmbed
from anyformer.specs.model import ModelSpec
from anyformer.specs.model import Stack as StackSpec
from anyformer.specs.nodes import Attention as AttentionSpec
from anyformer.specs.patterns import Pattern, Tokens
from anyformer.specs.scale import evaluate
from anyformer.specs.stacks import pattern_of
from anyformer.specs.weights import projects, shared_positions


@dataclass(frozen=True)
class Kind:
    """A kind of layer: those that may share a scene."""

    attention: AttentionSpec
    position: Position
    pattern: Pattern
    scale: float
    owner: int | None
    """Index of the position module that the stack owns, if the layers don't."""
    turns: bool
    """Whether the position scheme rotates."""
    biases: bool
    """Whether it adds to scores."""
    reads_probs: bool
    """Whether it adds to values."""


class Stack(nn.Module):
    """The blocks of an encoder or a decoder, and what stands before and after them."""

    def __init__(self, spec: ModelSpec, stack: StackSpec) -> None:
        super().__init__()
        self.causal = stack.causal
        dims = [spec.dims(layer, stack) for layer in stack.layers]
        shared, uses = shared_positions(spec, stack)
        self.positions = nn.ModuleList(Held(p, p.weights(d), p.constants(d)) for p, d in shared)
        last = isinstance(spec.embed, TokenEmbed) and spec.embed.project == "last" and projects(spec)
        width = spec.embed_width if last else spec.width
        self.embedding_norm = Norm(stack.norm.leaf, (width,)) if stack.embedding_norm else None
        bias = isinstance(spec.embed, TokenEmbed) and spec.embed.project_bias
        self.project = Linear(width, spec.width, bias=bias) if last else None
        self.blocks = nn.ModuleList(
            Block(layer, d, index=i, cross=stack.cross)
            for i, (layer, d) in enumerate(zip(stack.layers, dims, strict=True))
        )
        self.final_norm = Norm(stack.norm.leaf, (spec.width,)) if stack.final_norm else None
        self.dropout = spec.embed.dropout
        kinds = [
            Kind(
                attention=layer.attention,
                position=layer.position,
                pattern=pattern_of(stack, layer),
                scale=evaluate(layer.attention.scale, d.names()),
                owner=owner,
                turns=layer.position.overrides("rotate"),
                biases=layer.position.biases(),
                reads_probs=layer.position.reads_probs(),
            )
            for layer, d, owner in zip(stack.layers, dims, uses, strict=True)
        ]
        self.kinds = list(dict.fromkeys(kinds))
        self.kind_of = [self.kinds.index(kind) for kind in kinds]
        self.wants_length = any(k.position.needs_length for k in self.kinds)
        """Whether a position scheme reads a declared length."""
        self.reads_document = any(k.pattern.needs_length for k in self.kinds)
        """Whether a pattern reads the length of its document."""
        limits = [n for k in self.kinds if (n := k.position.limit(spec.context)) is not None]
        self.limit: int | None = min(limits, default=None)
        """How many positions exist, if a scheme has only so many."""

    def forward(
        self,
        x_BTD: Tensor,
        places: Places,
        *,
        cache: Cache | None = None,
        memory_BSD: Tensor | None = None,
        source: Places | None = None,
    ) -> Tensor:
        x_BTD = self.enter(x_BTD, places)
        keys, new = places, x_BTD.shape[1]
        if cache is not None:
            k_pos, k_valid = cache.begin(places.pos_BT, places.valid_BT, ragged=not places.plain)
            keys = Places(pos_BT=k_pos, valid_BT=k_valid, plain=places.plain)
        scenes = [self.scene(kind, x_BTD, places, keys, cache) for kind in self.kinds]
        crossing: list[Scene | None] = [None] * len(scenes)
        if source is not None:
            crossing = [self.cross_scene(kind, x_BTD, places, source, cache, memory_BSD) for kind in self.kinds]
        for block, kind in zip(self.blocks, self.kind_of, strict=True):
            x_BTD = block(x_BTD, scenes[kind], crossing[kind], memory_BSD)
        if cache is not None:
            cache.advance(new)
        return x_BTD if self.final_norm is None else self.final_norm(x_BTD)

    def enter(self, x_BTD: Tensor, places: Places) -> Tensor:
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

    def scene(self, kind: Kind, x_BTD: Tensor, queries: Places, keys: Places, cache: Cache | None) -> Scene:
        """What self-attention layers of this kind share."""
        shape, mask = mask_for(kind.pattern, queries, keys, x_BTD.shape[1])
        scene = self.prepare(kind, kind.position, x_BTD, queries, keys, shape, mask, cache)
        # New keys sit where the queries sit; those in the cache are turned already.
        scene.k_turn = scene.q_turn
        return scene

    def cross_scene(
        self, kind: Kind, x_BTD: Tensor, queries: Places, source: Places, cache: Cache | None, memory_BSD: Tensor | None
    ) -> Scene:
        """What cross-attention layers of this kind share: every source token of the same document."""
        plain = source.valid_BT is None and queries.document_BT is None
        shape: MaskClass = "none" if plain else "dense"
        mask = None if plain else dense_mask(Full(), queries, source)
        position = kind.position if kind.attention.cross_position else NoPosition()
        scene = self.prepare(kind, position, x_BTD, queries, source, shape, mask, cache)
        if memory_BSD is not None:
            scene.k_turn = self.turn(kind, position, source, memory_BSD)
        return scene

    def turn(self, kind: Kind, position: Position, places: Places, like: Tensor, cache: Cache | None = None) -> Turn:
        """What rotates tokens at these places; a layer with parameters of its own computes the angles itself."""
        angles = None
        if kind.turns and kind.owner is not None and position is kind.position:
            kept = cache.angles[kind.owner] if cache is not None and places.plain else None
            if kept is not None and cache is not None:
                end = cache.used + like.shape[1]
                angles = tuple([part[:, cache.used : end] for part in kept])
            else:
                angles = position.angles(self.own(kind.owner), places.pos_BT, places.declared_BT, like)
        return Turn(places.pos_BT, places.declared_BT, angles)

    def own(self, owner: int) -> dict[str, Tensor]:
        """Tensors of a position module that the stack owns."""
        held: Any = self.positions[owner]
        return held.tensors()

    def fill_angles(self, cache: Cache, like: Tensor) -> None:
        """Rotations of all positions that a cache has room for."""
        pos = torch.arange(cache.length, device=like.device)[None]
        length = torch.full((1, 1), cache.declared_length, device=like.device) if self.wants_length else None
        held: Any
        for held in self.positions:
            turns = held.leaf.overrides("angles")
            cache.angles.append(held.leaf.angles(held.tensors(), pos, length, like) if turns else None)

    def prepare(
        self,
        kind: Kind,
        position: Position,
        x_BTD: Tensor,
        queries: Places,
        keys: Places,
        shape: MaskClass,
        mask: Tensor | None,
        cache: Cache | None,
    ) -> Scene:
        """Positions, angles, a bias that no layer changes, and the kernel."""
        a = kind.attention
        new, total = x_BTD.shape[1], keys.pos_BT.shape[1]
        phase: Phase = "train" if self.training else "decode" if new == 1 and total > 1 else "prefill"
        uses, where = position is kind.position, Where(queries.pos_BT, keys.pos_BT)
        request = Request(
            device=x_BTD.device.type, dtype=x_BTD.dtype, phase=phase, mask=shape, mixer=a.mixer,
            bias=uses and kind.biases, softcap=a.softcap is not None, reads_probs=uses and kind.reads_probs,
            dropout=self.training and a.dropout > 0,
        )  # fmt: skip
        scene = Scene(
            kernel=choice(request).kernel,
            where=where,
            causal=shape == "causal",
            mask=mask,
            q_turn=self.turn(kind, position, queries, x_BTD, cache),
            cache=cache,
        )
        if uses and kind.owner is not None and (kind.biases or kind.reads_probs):
            scene.own = own = self.own(kind.owner)
            if kind.biases and not position.reads_content:
                # Such a bias may know how many heads there are and in what dtype they come, and nothing of what is in them.
                batch, heads, kv_heads = x_BTD.shape[0], a.heads, a.kv_heads or a.heads
                q, k = x_BTD.new_empty(batch, new, heads, 0), x_BTD.new_empty(batch, total, kv_heads, 0)
                scene.bias = position.bias(own, q, k, where, kind.scale)
        return scene


def mask_for(pattern: Pattern, queries: Places, keys: Places, new: int) -> tuple[MaskClass, Tensor | None]:
    """The class of a mask, and the mask where one is needed."""
    if queries.plain:
        if isinstance(pattern, Full):
            return "none", None
        if isinstance(pattern, Causal):
            if keys.pos_BT.shape[1] == new:
                return "causal", None
            if new == 1:
                return "none", None
    return "dense", dense_mask(pattern, queries, keys)


def dense_mask(pattern: Pattern, queries: Places, keys: Places) -> Tensor:
    """(B,1,T,S), True where the pattern allows a real key of the same document."""
    q_doc: Any = 0 if queries.document_BT is None else queries.document_BT[:, :, None]
    k_doc: Any = 0 if keys.document_BT is None else keys.document_BT[:, None, :]
    if queries.document_BT is not None:
        pattern = pattern & Documents()
    length = None if queries.length_BT is None else queries.length_BT[:, :, None]
    q = Tokens(queries.pos_BT[:, :, None], q_doc, length)
    k = Tokens(keys.pos_BT[:, None, :], k_doc, length)
    allowed = pattern.allows(q, k)
    if keys.valid_BT is not None:
        allowed = allowed & keys.valid_BT[:, None, :]
    return allowed[:, None]
