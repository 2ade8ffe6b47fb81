"""Parameters, FLOPs and bytes of a model, from the spec alone.

FLOPs are 2mnk of the matrix products of a forward pass (training: 3 times that). Attention counts the pairs that
the pattern allows, so causal is half of full. Bytes moved are what an ideal implementation must read and write:
weights once, each activation once out and once in, the cache as it stands. They say whether arithmetic or memory
sets the pace.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any, Literal

from anyformer.errors import InputError, nearest
from anyformer.specs.axes import Dims, Weight
from anyformer.specs.ends import TokenEmbed, TokenHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.nodes import Layer
from anyformer.specs.pairs import allowed_pairs, keys_seen
from anyformer.specs.stacks import Stack, pattern_of
from anyformer.specs.weights import projects, weights

Phase = Literal["train", "prefill", "decode"]
PHASES: tuple[Phase, ...] = ("train", "prefill", "decode")

BYTES = {"float64": 8, "float32": 4, "bfloat16": 2, "float16": 2, "int8": 1}


def dtype_bytes(dtype: Any) -> int:
    """Bytes of one element of a dtype, given by name or as torch's own."""
    name = str(dtype).removeprefix("torch.")
    if name not in BYTES:
        raise InputError(f"dtype {name!r} is unknown{nearest(name, BYTES)}")
    return BYTES[name]


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
    def weights(self) -> dict[str, Weight]:
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
        return self.params

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
        spec, lengths = self.spec, self._lengths(context, source)
        projections = scores = ffn = 0
        for stack in spec.stacks:
            length = lengths[stack.name]
            for layer in stack.layers:
                dims = spec.dims(layer, stack)
                queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
                projections += 2 * length * dims.width * (2 * queries + 2 * keys)
                scores += self._score_flops(layer, dims, allowed_pairs(pattern_of(stack, layer), length), length)
                if stack.cross:
                    read = lengths["encoder"]
                    projections += 2 * dims.width * (length * 2 * queries + read * 2 * keys)
                    scores += self._score_flops(layer, dims, length * read, length, own=layer.attention.cross_position)
                ffn += 2 * length * dims.width * dims.ffn_width * (len(layer.ffn.inputs) + 1)
        return Flops(
            projections=projections,
            scores=scores,
            ffn=ffn,
            embed=self._embed_flops(lengths),
            head=self._head_flops(context),
        )

    def flops_per_token(self, context: int, source: int | None = None) -> float:
        """Forward FLOPs for each token of a document of `context` tokens. Training costs 3 times that."""
        return self.flops(context, source).total / context

    def _score_flops(self, layer: Layer, dims: Dims, pairs: int, length: int, *, own: bool = True) -> int:
        own_pair, own_token = layer.position.flops(dims) if own else (0, 0)
        return pairs * (4 * dims.heads * dims.head_dim + own_pair) + length * own_token

    def _embed_flops(self, lengths: dict[str, int]) -> int:
        spec = self.spec
        if isinstance(spec.embed, TokenEmbed):
            each = 2 * spec.embed_width * spec.width if projects(spec) else 0
            return each * sum(lengths.values())
        matrix = next(w for name, w in self.weights.items() if w.role == "project" and name.startswith("embed."))
        tokens = sum(lengths.values()) - int(getattr(spec.embed, "class_token", False))
        return 2 * tokens * matrix.size

    def _head_flops(self, context: int) -> int:
        spec = self.spec
        matrices = sum(
            w.size for n, w in self.weights.items() if n.startswith("head.") and w.role in ("head", "dense", "project")
        )
        if isinstance(spec.head, TokenHead) and spec.head.tied:
            matrices += spec.vocab * spec.embed_width
        return 2 * matrices * (1 if spec.head.pools else context)

    def kv_bytes(self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None) -> int:
        """Bytes of a cache for `context` tokens in each of `batch` rows, cross-attention included."""
        return sum(self.kv_bytes_by_part(context, dtype, batch, source).values())

    def kv_bytes_by_part(
        self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None
    ) -> dict[str, int]:
        """The same by what fills it: layers of each pattern, and cross-attention. A cache keeps all tokens, also those
        that a window no longer sees.
        """
        self._check(context=context, batch=batch, source=source)
        lengths, each = self._lengths(context, source), batch * dtype_bytes(dtype)
        parts: dict[str, int] = {}
        for stack in self.spec.stacks:
            for layer in stack.layers if stack.causal else ():
                kept = {str(pattern_of(stack, layer)): context}
                if stack.cross:
                    kept["cross-attention"] = lengths["encoder"]
                for part, tokens in kept.items():
                    parts[part] = parts.get(part, 0) + tokens * self._stream(stack, layer) * each
        return parts

    def _stream(self, stack: Stack, layer: Layer) -> int:
        """Numbers that a layer of a decoder keeps for each token."""
        return sum(heads * dim for heads, dim in layer.attention.mixer.streams(self.spec.dims(layer, stack)))

    def activation_bytes(self, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None) -> int:
        """Estimate of what a training step keeps for the backward pass: inputs and outputs of every matrix, norm and
        activation, logits in fp32, scores not stored (fused attention).
        """
        self._check(context=context, batch=batch, source=source)
        size, lengths, total = dtype_bytes(dtype), self._lengths(context, source), 0
        for stack in self.spec.stacks:
            for layer in stack.layers:
                total += lengths[stack.name] * self._layer_activations(stack, layer) * size
        if isinstance(self.spec.head, TokenHead):
            total += context * self.spec.vocab * 4
        return total * batch

    def _layer_activations(self, stack: Stack, layer: Layer) -> int:
        dims = self.spec.dims(layer, stack)
        attention = 2 * dims.width + 2 * dims.heads * dims.head_dim + 2 * dims.kv_heads * dims.head_dim
        ffn = 2 * dims.width + (len(layer.ffn.inputs) + 1) * dims.ffn_width
        return attention * (2 if stack.cross else 1) + ffn

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
            for layer in decoder.layers:
                seen = keys_seen(pattern_of(decoder, layer), context, context)
                crossed = self._lengths(context, source)["encoder"] if decoder.cross else 0
                cached += (seen + 1 + crossed) * self._stream(decoder, layer)
            return read_weights + cached * batch * size
        activations = 2 * self.activation_bytes(context, dtype, batch, source)
        if phase == "prefill":
            return read_weights + activations + self.kv_bytes(context, dtype, batch, source)
        # Weights are read forward and backward, gradients written; activations written, then read.
        return 3 * self.params * size + 2 * activations

    def phase_flops(self, phase: Phase, context: int, batch: int = 1, source: int | None = None) -> int:
        """FLOPs of what `bytes_moved` describes."""
        self._check(context=context, batch=batch, source=source, phase=phase)
        if phase != "decode":
            return batch * self.flops(context, source).total * (3 if phase == "train" else 1)
        total, decoder = 0, self.spec.stack("decoder")
        for layer in decoder.layers:
            dims = self.spec.dims(layer, decoder)
            queries, keys = dims.heads * dims.head_dim, dims.kv_heads * dims.head_dim
            seen = keys_seen(pattern_of(decoder, layer), context, context + 1)
            total += 2 * dims.width * (2 * queries + 2 * keys) + self._score_flops(layer, dims, seen, 1)
            if decoder.cross:
                read, own = self._lengths(context, source)["encoder"], layer.attention.cross_position
                total += 4 * dims.width * queries + self._score_flops(layer, dims, read, 1, own=own)
            total += 2 * dims.width * dims.ffn_width * (len(layer.ffn.inputs) + 1)
        return batch * (total + self._embed_flops({"decoder": 1}) + self._head_flops(1))

    def intensity(
        self, phase: Phase, context: int, dtype: Any = "bfloat16", batch: int = 1, source: int | None = None
    ) -> float:
        """FLOPs for each byte moved. Below a machine's FLOP/s over bytes/s it is memory-bound, above compute-bound."""
        return self.phase_flops(phase, context, batch, source) / self.bytes_moved(phase, context, dtype, batch, source)

    def _lengths(self, context: int, source: int | None) -> dict[str, int]:
        names = [stack.name for stack in self.spec.stacks]
        return {name: context if source is None or name == names[-1] else source for name in names}

    def _check(self, *, context: int, source: int | None, batch: int = 1, phase: str = "train") -> None:
        sizes = {"context": context, "batch": batch, "source": 1 if source is None else source}
        for name, value in sizes.items():
            if value < 1:
                raise InputError(f"{name} must be at least 1, got {value}")
        if source is not None and len(self.spec.stacks) == 1:
            raise InputError(f"source is for encoder-decoders; topology is {self.spec.topology!r}")
        if phase not in PHASES:
            raise InputError(f"phase {phase!r} is unknown{nearest(phase, PHASES)}")
        if phase == "decode" and self.spec.topology == "encoder":
            raise InputError("phase 'decode' is for decoders; an encoder reads its input at once")


def part_of(name: str, weight: Weight) -> str:
    """The part of a model that a parameter belongs to, for people to read."""
    if weight.role in ("embedding", "position_embedding"):
        return "embedding"
    pieces = name.split(".")
    if pieces[0] in ("embed", "decoder_embed"):
        return "embedding"
    if pieces[0] == "head":
        return "head"
    if weight.role == "relative":
        return "position"
    for piece in pieces:
        if piece in ("inner", "outer", "after", "embedding_norm", "final_norm"):
            return "norm"
    return {"cross": "cross-attention"}.get(pieces[3], pieces[3]) if len(pieces) > 3 else "embedding"
