"""Parameters, FLOPs and bytes of a model, from the spec alone.

FLOPs are 2mnk of the matrix products of a forward pass (training: 3 times that). Attention counts the pairs that
the pattern allows, so causal is half of full. Bytes moved are what an ideal implementation must read and write:
weights once, each activation once out and once in, the cache as it stands. They say whether arithmetic or memory
sets the pace.
"""

import functools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anyformer.errors import InputError, nearest
from anyformer.specs.axes import Dims, ParamSpec
from anyformer.specs.embed_head import TokenEmbed, TokenHead
from anyformer.specs.layer import Layer, absorbs, mixer_of
from anyformer.specs.model import ModelSpec
from anyformer.specs.pair_count import allowed_pairs, allowed_pairs_of_heads, keys_seen_of_heads
from anyformer.specs.parameters import projects, weights
from anyformer.specs.patterns import Tokens
from anyformer.specs.stacks import Stack, cache_specs, pattern_of

Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def dtype_bytes(dtype: Any) -> int:
    """Bytes of one element of a dtype, given by name or as torch's own."""
    name = str(dtype).removeprefix("torch.")
    if name not in BYTES:
        raise InputError(f"dtype {name!r} is unknown{nearest(name, BYTES)}")
    return BYTES[name]


def state_bytes(dtype: Any) -> int:
    """Bytes of one number of a mixer's state, which is kept in promote(dtype, float32)."""
    return max(dtype_bytes(dtype), BYTES["float32"])


@dataclass(frozen=True, kw_only=True)
class Flops:
    """Forward FLOPs of one document, by what spends them."""

    projections: int
    """q, k, v and o of every attention."""
    scores: int
    """Scores and weighted values, over the allowed pairs."""
    ffn: int
    embed: int
    """Projections of a factorised, patch or series embedding."""
    head: int

    @property
    def total(self) -> int:
        """All of them."""
        return self.projections + self.scores + self.ffn + self.embed + self.head


@dataclass(frozen=True, kw_only=True)
class Count:
    """What a spec costs. Sequences are documents of `context` tokens (of an encoder-decoder: target tokens,
    with `source` tokens on the encoder's side, as many unless given).
    """

    spec: ModelSpec

    @functools.cached_property
    def weights(self) -> dict[str, ParamSpec]:
        """Every parameter tensor by name."""
        return weights(self.spec)

    @property
    def params(self) -> int:
        """All parameters, a tied one once."""
        return sum(w.size for w in self.weights.values())

    @property
    def embedding_params(self) -> int:
        """Parameters of look-up tables (tokens, types, positions)."""
        return sum(w.size for w in self.weights.values() if w.role in ("embedding", "position_embedding"))

    @property
    def active_params(self) -> int:
        """Parameters that one token uses, embedding and head included. In a dense model: all."""
        return self.params - self._idle(self.spec.stacks)

    def _idle(self, stacks: Iterable[Stack], tokens: int = 1) -> int:
        """Parameters of experts that so many tokens can't all reach."""
        # A token comes by as often as layers share the experts.
        return sum(
            layer.ffn.idle(self.spec.width, tokens * stack.uses.count(i))
            for stack in stacks
            for i, layer in enumerate(stack.blocks)
        )

    @property
    def params_by_part(self) -> dict[str, int]:
        """Parameters of each part; the values add up to `params`."""
        parts: dict[str, int] = {}
        for name, weight in self.weights.items():
            part = part_of(name, weight)
            parts[part] = parts.get(part, 0) + weight.size
        return parts

    def flops(self, context: int, source: int | None = None) -> Flops:
        """Forward FLOPs of one document of `context` tokens."""
        self._check(context=context, source=source)
        lengths = self._lengths(context, source)
        spent = [self._stack_flops(stack, lengths) for stack in self.spec.stacks]
        projections, scores, ffn = (sum(part) for part in zip(*spent, strict=True))
        embed, head = self._embed_flops(lengths), self._head_flops(context)
        return Flops(projections=projections, scores=scores, ffn=ffn, embed=embed, head=head)

    def _stack_flops(self, stack: Stack, lengths: dict[str, int], place: int | None = None) -> tuple[int, int, int]:
        """Projections, scores and feed-forwards of a stack, for a document or (with its place) for one more token."""
        length = lengths[stack.name]
        tokens, projections, scores, ffn = length if place is None else 1, 0, 0, 0
        for i, layer in enumerate(stack.layers):
            dims = self.spec.dims(layer, stack)
            projections += self._projection_flops(stack, layer, length, place)
            if place is not None:
                pairs = self._keys_seen(stack, layer, i, place, length)
            elif layer.attention.mixer.weighs:
                pairs = allowed_pairs_of_heads(pattern_of(stack, layer), length, dims.heads, i)
            else:
                allowed = allowed_pairs(pattern_of(stack, layer), length)
                pairs = dims.heads * layer.attention.mixer.pairs(allowed, length, dims.head_dim)
            scores += self._score_flops(layer, dims, pairs, tokens)
            if stack.cross:
                # A cache holds keys and values of the source.
                read, own = lengths["encoder"], layer.attention.cross_position
                each, fresh = 2 * dims.heads * dims.head_dim, read if place is None else 0
                projections += 2 * dims.width * (tokens * each + fresh * 2 * dims.kv_heads * dims.head_dim)
                projections += self._vector_flops(layer, dims) if own else 0
                scores += self._score_flops(layer, dims, dims.heads * tokens * read, tokens, own=own)
            ffn += 2 * tokens * layer.ffn.products(dims.width)
        return projections, scores, ffn

    def flops_per_token(self, context: int, source: int | None = None) -> float:
        """Forward FLOPs for each token of a document of `context` tokens. Training costs 3 times that."""
        return self.flops(context, source).total / context

    def _projection_flops(self, stack: Stack, layer: Layer, length: int, place: int | None = None) -> int:
        """q, k, v and o of self-attention, for a document or (with its place) for one token of it."""
        dims, a = self.spec.dims(layer, stack), layer.attention
        queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
        tokens = length if place is None else 1
        each = 2 * queries + (1 if a.mixer.shares_keys else 2) * keys
        total = tokens * each
        if a.global_projections:
            # Queries of global tokens, those that a pattern fixes, as marks are unknown; keys and values of all tokens,
            # if there is a global one, and they are too many to do without.
            places: Any = np.arange(length) if place is None else np.asarray([place])
            chosen = int(np.sum(pattern_of(stack, layer).is_global(Tokens(places, 0, length))))
            total += chosen * queries
            if place is not None or (chosen and not absorbs(a, layer.position, dims, chosen)):
                total += tokens * 2 * keys
        return 2 * dims.width * total + self._vector_flops(layer, dims)

    def _vector_flops(self, layer: Layer, dims: Dims) -> int:
        """Of the vectors of a position scheme that go through the projections once in each pass."""
        as_queries, as_keys = layer.position.projects()
        return 2 * dims.width * dims.head_dim * (as_queries * dims.heads + as_keys * dims.kv_heads)

    def _score_flops(self, layer: Layer, dims: Dims, pairs: int, length: int, *, own: bool = True) -> int:
        """Of the pairs of all heads."""
        own_pair, own_token = layer.position.flops(dims) if own else (0, 0)
        return pairs * 4 * dims.head_dim + pairs * own_pair // dims.heads + length * own_token

    def _embed_flops(self, lengths: dict[str, int]) -> int:
        spec = self.spec
        if isinstance(spec.embed, TokenEmbed):
            return (2 * spec.embed_width * spec.width if projects(spec) else 0) * sum(lengths.values())
        matrix = next(w for name, w in self.weights.items() if w.role == "project" and name.startswith("embed."))
        tokens = sum(lengths.values()) - int(getattr(spec.embed, "class_token", False))
        return 2 * tokens * matrix.size

    def _head_flops(self, context: int) -> int:
        spec = self.spec
        roles = ("head", "dense", "project")
        matrices = sum(w.size for n, w in self.weights.items() if n.startswith("head.") and w.role in roles)
        if isinstance(spec.head, TokenHead) and spec.head.tied:
            matrices += spec.vocab * spec.embed_width
        return 2 * matrices * (1 if spec.head.pools and getattr(spec.head, "pool", "") != "late" else context)

    def kv_bytes(
        self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None, chunk: int = 1
    ) -> int:
        """Bytes of a cache for rows of up to `context` tokens, as it is made: of each layer, keys and values of the
        tokens that its pattern can still see (a window keeps a ring, with room for `chunk` tokens fed at once), or the
        state of its mixer; cross-attention keeps the source.
        """
        return sum(self.kv_bytes_by_part(context, dtype, batch, source, chunk).values())

    def kv_bytes_by_part(
        self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None, chunk: int = 1
    ) -> dict[str, int]:
        """The same by what fills it: layers of each pattern (of a mixer with a state: of each mixer), and
        cross-attention.
        """
        self._check(context=context, batch=batch, source=source, chunk=chunk)
        lengths, size = self._lengths(context, source), dtype_bytes(dtype)
        parts: dict[str, int] = {}
        for stack in self.spec.stacks:
            for layer, room in zip(stack.layers, cache_specs(self.spec, stack), strict=True) if stack.causal else ():
                kept = room.tokens(context, chunk) * room.per_token * size + room.per_row * state_bytes(dtype)
                part = layer.attention.mixer.called() if room.state else str(pattern_of(stack, layer))
                parts[part] = parts.get(part, 0) + kept * batch
                if stack.cross:
                    crossed = lengths["encoder"] * self._crossed(stack, layer) * size
                    parts["cross-attention"] = parts.get("cross-attention", 0) + crossed * batch
        return parts

    def _crossed(self, stack: Stack, layer: Layer) -> int:
        """Numbers that cross-attention keeps for each source token."""
        streams = mixer_of(layer.attention, cross=True).streams(self.spec.dims(layer, stack))
        return sum(heads * dim for heads, dim in streams)

    def activation_bytes(self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None) -> int:
        """Estimate of what a training step keeps for the backward pass: inputs and outputs of every matrix, norm and
        activation, logits in fp32, scores not stored (fused attention).
        """
        self._check(context=context, batch=batch, source=source)
        size, lengths = dtype_bytes(dtype), self._lengths(context, source)
        total, logits = 0, context * self.spec.vocab * 4 if isinstance(self.spec.head, TokenHead) else 0
        for stack in self.spec.stacks:
            tokens = batch * lengths[stack.name]
            each = [self._layer_activations(stack, layer, tokens, kept=True) for layer in stack.layers]
            # A reversible stack keeps the two streams that it ends with, and recomputes one block after the other.
            streams = 4 * tokens * self.spec.width
            total += (max(each) + streams if stack.reversible else sum(each)) * size
        return total + logits * batch

    def _layer_activations(self, stack: Stack, layer: Layer, tokens: int, *, kept: bool) -> int:
        """Numbers that a layer makes, or that it keeps for the backward pass: a chunked feed-forward keeps its input and
        output, and the inside of one chunk.
        """
        dims, chunk = self.spec.dims(layer, stack), layer.ffn.chunk
        attention = 2 * dims.width + 2 * dims.heads * dims.head_dim + 2 * dims.kv_heads * dims.head_dim
        inside = layer.ffn.inside(dims.width)
        alive = tokens if chunk is None or not kept else min(chunk, tokens)
        return tokens * (attention * (2 if stack.cross else 1) + 2 * dims.width) + alive * inside

    def bytes_moved(
        self, phase: Phase, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None
    ) -> int:
        """Least traffic with memory. train: one step over batch x context tokens; prefill: reading them into a cache;
        decode: one more token in each row, with `context` tokens in the cache.
        """
        self._check(context=context, batch=batch, source=source, phase=phase)
        size = dtype_bytes(dtype)
        # A step of decoding reads what the encoder left in the cache, not the encoder.
        used = {n: w for n, w in self.weights.items() if phase != "decode" or not n.startswith("encoder.")}
        matrices = sum(w.size for w in used.values() if w.role not in ("embedding", "position_embedding"))
        head = self.spec.head
        if isinstance(head, TokenHead) and head.tied:
            matrices += self.spec.vocab * self.spec.embed_width
        read_weights = matrices * size
        if phase == "decode":
            decoder, cached = self.spec.stack("decoder"), 0
            read_weights -= self._idle((decoder,), batch) * size
            for i, (layer, room) in enumerate(zip(decoder.layers, cache_specs(self.spec, decoder), strict=True)):
                heads = layer.attention.heads
                # Heads may see different keys: each reads its share of a token, and all of them write one.
                seen = self._keys_seen(decoder, layer, i, context, context) + heads
                cached += seen * room.per_token * size // heads
                # A state is read and written as a whole.
                cached += 2 * room.per_row * state_bytes(dtype)
                if decoder.cross:
                    cached += self._lengths(context, source)["encoder"] * self._crossed(decoder, layer) * size
            return read_weights + cached * batch
        lengths, once, again = self._lengths(context, source), 0, 0
        for stack in self.spec.stacks:
            tokens = batch * lengths[stack.name]
            made = sum(self._layer_activations(stack, layer, tokens, kept=False) for layer in stack.layers) * size
            once += made
            # The backward pass of a reversible stack makes everything once more.
            again += made if stack.reversible else 0
        once += batch * context * self.spec.vocab * 4 if isinstance(head, TokenHead) else 0
        if phase == "prefill":
            return read_weights + 2 * once + self.kv_bytes(context, dtype, batch, source)
        # Weights are read forward and backward, gradients written; activations written, then read.
        return 3 * self.params * size + 4 * once + 2 * again

    def phase_flops(self, phase: Phase, context: int, batch: int = 1, source: int | None = None) -> int:
        """FLOPs of what `bytes_moved` describes."""
        self._check(context=context, batch=batch, source=source, phase=phase)
        if phase != "decode":
            return batch * self.flops(context, source).total * (3 if phase == "train" else 1)
        lengths = self._lengths(context, source) | {"decoder": context + 1}
        total = sum(self._stack_flops(self.spec.stack("decoder"), lengths, context))
        return batch * (total + self._embed_flops({"decoder": 1}) + self._head_flops(1))

    def _keys_seen(self, stack: Stack, layer: Layer, index: int, place: int, keys: int) -> int:
        """Keys that the heads of a layer look at for one new token."""
        dims, mixer = self.spec.dims(layer, stack), layer.attention.mixer
        if mixer.stateful:
            return dims.heads * mixer.pairs(1, 1, dims.head_dim)
        return keys_seen_of_heads(pattern_of(stack, layer), place, keys, dims.heads, index)

    def intensity(
        self, phase: Phase, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None
    ) -> float:
        """FLOPs for each byte moved. Below a machine's FLOP/s over bytes/s it is memory-bound, above compute-bound."""
        return self.phase_flops(phase, context, batch, source) / self.bytes_moved(phase, context, dtype, batch, source)

    def _lengths(self, context: int, source: int | None) -> dict[str, int]:
        names = [stack.name for stack in self.spec.stacks]
        return {name: context if source is None or name == names[-1] else source for name in names}

    def _check(self, *, context: int, source: int | None, batch: int = 1, phase: str = "train", chunk: int = 1) -> None:
        sizes = {"context": context, "batch": batch, "source": 1 if source is None else source, "chunk": chunk}
        for name, value in sizes.items():
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if source is not None and len(self.spec.stacks) == 1:
            raise InputError(f"source is for encoder-decoders; topology is {self.spec.topology!r}")
        if phase not in PHASES:
            raise InputError(f"phase {phase!r} is unknown{nearest(phase, PHASES)}")
        if phase == "decode" and self.spec.topology == "encoder":
            raise InputError("phase 'decode' is for decoders; an encoder reads its input at once")


def part_of(name: str, weight: ParamSpec) -> str:
    """The part of a model that a parameter belongs to, for people to read."""
    pieces = name.split(".")
    if weight.role in ("embedding", "position_embedding") or pieces[0] in ("embed", "decoder_embed"):
        return "embedding"
    if pieces[0] == "head" or weight.role == "relative":
        return "head" if pieces[0] == "head" else "position"
    if {"inner", "outer", "after", "embedding_norm", "final_norm"} & set(pieces):
        return "norm"
    return {"cross": "cross-attention"}.get(pieces[3], pieces[3]) if len(pieces) > 3 else "embedding"
