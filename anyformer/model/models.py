"""The one model class: decoder, encoder and encoder-decoder are the same stacks between the same ends."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import InputError, nearest
from anyformer.kernels.loss import IGNORE, LossTerms, cross_entropy, squared_error
from anyformer.model.output import Output
from anyformer.model.places import Places, check_2d, place
from anyformer.model.stack import Stack
from anyformer.parts.cache import Cache
from anyformer.parts.embedding import TokenEmbedding, embedding
from anyformer.parts.heads import gather, head_module
from anyformer.specs.ends import RegressionHead, TokenEmbed, TokenHead
from anyformer.specs.model import ModelSpec

ARGUMENTS = (
    "input_ids", "attention_mask", "positions", "segments", "token_types", "labels", "decoder_input_ids",
    "decoder_attention_mask", "decoder_segments", "encoder_states", "pixel_values", "values", "cache", "rope_length",
)  # fmt: skip
RENAMED = {
    "position_ids": "positions",
    "token_type_ids": "token_types",
    "past_key_values": "cache",
    "encoder_outputs": "encoder_states",
    "inputs": "input_ids",
    "mask": "attention_mask",
    "document_ids": "segments",
}
"""Names that people bring from elsewhere."""


class Model(nn.Module):
    """Embedding -> stack(s) -> head, all from one spec."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = embedding(spec)
        two = spec.topology == "encoder-decoder"
        apart = two and isinstance(spec.embed, TokenEmbed) and not spec.embed.shared
        self.decoder_embed = embedding(spec) if apart else None
        for stack in spec.stacks:
            self.add_module(stack.name, Stack(spec, stack))
        embed = self.decoder_embed if apart else self.embed
        self.head = head_module(spec, embed.tokens if isinstance(embed, TokenEmbedding) else None)

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
        labels: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_segments: Tensor | None = None,
        encoder_states: Tensor | None = None,
        pixel_values: Tensor | None = None,
        values: Tensor | None = None,
        cache: Cache | None = None,
        rope_length: int | Tensor | None = None,
        **unknown: Any,
    ) -> Output:
        """One pass. See docs/spec.md for the arguments; shapes are (batch, tokens) unless said otherwise."""
        if unknown:
            raise _unknown_argument(sorted(unknown))
        self._check(
            labels=labels, decoder_input_ids=decoder_input_ids, decoder_attention_mask=decoder_attention_mask,
            decoder_segments=decoder_segments, encoder_states=encoder_states, segments=segments, token_types=token_types,
            cache=cache, rope_length=rope_length,
        )  # fmt: skip
        given = {"input_ids": input_ids, "pixel_values": pixel_values, "values": values}
        if self.spec.topology == "encoder-decoder":
            return self._translate(
                input_ids, encoder_states, attention_mask=attention_mask, positions=positions, segments=segments,
                token_types=token_types, labels=labels, target=decoder_input_ids, target_mask=decoder_attention_mask,
                target_segments=decoder_segments, cache=cache, rope_length=rope_length,
            )  # fmt: skip
        x = self._read(given, token_types)
        batch, tokens = x.shape[:2]
        stack: Any = self.decoder if self.spec.topology == "decoder" else self.encoder
        places = self._places(stack, batch, tokens, x.device, attention_mask, positions, segments, rope_length, cache)
        states = stack(x, places, cache=cache)
        return self._answer(states, places, token_types, labels, cache, shift=self.spec.topology == "decoder")

    def new_cache(self, batch: int, length: int, *, rope_length: int | None = None) -> Cache:
        """An empty cache for `length` tokens in each of `batch` rows, on the model's device and in its dtype.

        `rope_length` is the length that length-dependent RoPE scalings read for the cache's whole life
        (default: `length`).
        """
        spec = self.spec
        if spec.topology == "encoder":
            raise InputError("an encoder reads its input at once; only a decoder has a cache")
        stack: Any = self.decoder
        if stack.limit is not None and length > stack.limit:
            raise InputError(f"length: {length} is more than the {stack.limit} positions that this model has")
        decoder = spec.stack("decoder")
        streams = [layer.attention.mixer.streams(spec.dims(layer, causal=True)) for layer in decoder.layers]
        like = next(self.parameters())
        cache = Cache(
            streams, batch=batch, length=length, device=like.device, dtype=like.dtype, declared_length=rope_length
        )
        stack.fill_angles(cache, like)
        return cache

    # --- the steps of a pass ---------------------------------------------------------------------------------

    def _read(self, given: dict[str, Tensor | None], types: Tensor | None) -> Tensor:
        name = self.spec.embed.reads
        extra = [other for other, value in given.items() if value is not None and other != name]
        if extra or given[name] is None:
            raise TypeError(
                f"this model reads {name}" + (f", not {', '.join(extra)}" if extra else f"; {name} is missing")
            )
        if name == "input_ids" and given[name].dim() != 2:  # type: ignore[union-attr]
            raise InputError(f"input_ids: expected (batch, tokens), got {tuple(given[name].shape)}")  # type: ignore[union-attr]
        return self.embed(given[name], types)

    def _places(
        self,
        stack: Any,
        batch: int,
        tokens: int,
        device: torch.device,
        mask: Tensor | None,
        positions: Tensor | None,
        segments: Tensor | None,
        rope_length: int | Tensor | None,
        cache: Cache | None,
        prefix: str = "",
    ) -> Places:
        check_2d(f"{prefix}attention_mask", mask, (batch, tokens))
        check_2d(f"{prefix}segments", segments, (batch, tokens))
        if cache is not None and cache.batch != batch:
            raise InputError(f"cache: made for {cache.batch} rows, but {batch} were given")
        used = 0 if cache is None else cache.used
        if stack.limit is not None and positions is None and used + tokens > stack.limit:
            raise InputError(
                f"{used + tokens} tokens are more than the {stack.limit} positions that this model has; shorten the input"
            )
        return place(
            batch, tokens, device, mask_BT=mask, positions=positions, segments_BT=segments, wants_length=stack.wants_length,
            declared=rope_length if cache is None else cache.declared_length, before=used,
            before_B=cache.seen_B if cache is not None and cache.ragged else None,
        )  # fmt: skip

    def _translate(
        self,
        source: Tensor | None,
        states: Tensor | None,
        *,
        attention_mask: Tensor | None,
        positions: Tensor | None,
        segments: Tensor | None,
        token_types: Tensor | None,
        labels: Tensor | None,
        target: Tensor | None,
        target_mask: Tensor | None,
        target_segments: Tensor | None,
        cache: Cache | None,
        rope_length: int | Tensor | None,
    ) -> Output:
        encoder: Any = self.encoder
        decoder: Any = self.decoder
        target = self._teacher_forced(labels) if target is None else target
        remembered = cache is not None and bool(cache.cross)
        source_places: Places | None = None
        if remembered and (source is not None or states is not None):
            raise InputError("the cache holds the encoder's states already; pass decoder_input_ids only")
        if remembered and cache is not None and cache.source_pos_BS is not None:
            source_places = Places(pos_BT=cache.source_pos_BS, valid_BT=cache.source_valid_BS)
        else:
            if (source is None) == (states is None):
                raise TypeError("an encoder-decoder needs input_ids or encoder_states, one of them")
            batch, tokens = (source if states is None else states).shape[:2]  # type: ignore[union-attr]
            device = target.device
            source_places = self._places(
                encoder, batch, tokens, device, attention_mask, positions, segments, rope_length, None
            )
            if states is None:
                states = encoder(self._read({"input_ids": source}, token_types), source_places)
            if cache is not None:
                cache.source_pos_BS, cache.source_valid_BS = source_places.pos_BT, source_places.valid_BT
        batch, tokens = target.shape
        if states is not None and states.shape[0] != batch:
            raise InputError(f"decoder_input_ids: {batch} rows against {states.shape[0]} of the encoder")
        if (segments is None) != (target_segments is None) and not remembered:
            raise InputError("segments and decoder_segments go together: cross-attention stays within equal ids")
        places = self._places(
            decoder, batch, tokens, target.device, target_mask, None, target_segments, rope_length, cache, "decoder_"
        )
        x = (self.embed if self.decoder_embed is None else self.decoder_embed)(target, None)
        hidden = decoder(x, places, cache=cache, memory_BSD=states, source=source_places)
        out = self._answer(hidden, places, None, labels, cache, shift=False)
        out.encoder_states = states
        return out

    def _teacher_forced(self, labels: Tensor | None) -> Tensor:
        if labels is None:
            raise TypeError("an encoder-decoder needs decoder_input_ids, or labels to make them from")
        start, pad = self.spec.ids.start, self.spec.ids.pad
        if start is None:
            raise InputError(
                "decoder_input_ids: the spec has no ids.start to make them from labels; set it, or pass them"
            )
        before = torch.cat((torch.full_like(labels[:, :1], start), labels[:, :-1]), 1)
        return before.masked_fill(before == IGNORE, start if pad is None else pad)

    def _answer(
        self,
        states: Tensor,
        places: Places,
        types: Tensor | None,
        labels: Tensor | None,
        cache: Cache | None,
        *,
        shift: bool,
    ) -> Output:
        hidden = gather(self.spec.head, states, places.valid_BT, types)
        out = Output(hidden=hidden, cache=cache)
        if self.head is not None:
            out.logits = self.head(hidden)
        if labels is not None and out.logits is not None:
            terms = self._loss(out.logits, labels, places, shift=shift)
            out.loss, out.losses, out.label_count = terms.total, terms.terms, terms.label_count
        return out

    def _loss(self, logits: Tensor, labels: Tensor, places: Places, *, shift: bool) -> LossTerms:
        spec = self.spec
        if isinstance(spec.head, RegressionHead):
            wanted = labels if labels.dim() == 2 else labels[:, None]
            if wanted.shape != logits.shape:
                raise InputError(f"labels: expected {tuple(logits.shape)}, got {tuple(labels.shape)}")
            return squared_error(logits, wanted)
        if labels.shape != logits.shape[:-1]:
            raise InputError(f"labels: expected {tuple(logits.shape[:-1])}, got {tuple(labels.shape)}")
        if not spec.head.pools:
            labels = counted_labels(labels, places, shift=shift and isinstance(spec.head, TokenHead))
        return cross_entropy(logits, labels, smoothing=spec.loss.label_smoothing, z=spec.loss.z)

    def _check(
        self,
        *,
        labels: Tensor | None,
        decoder_input_ids: Tensor | None,
        decoder_attention_mask: Tensor | None,
        decoder_segments: Tensor | None,
        encoder_states: Tensor | None,
        segments: Tensor | None,
        token_types: Tensor | None,
        cache: Cache | None,
        rope_length: int | Tensor | None,
    ) -> None:
        spec = self.spec
        decoder_only = {
            "decoder_input_ids": decoder_input_ids, "decoder_attention_mask": decoder_attention_mask,
            "decoder_segments": decoder_segments, "encoder_states": encoder_states,
        }  # fmt: skip
        if spec.topology != "encoder-decoder":
            for name, value in decoder_only.items():
                if value is not None:
                    raise TypeError(f"{name} is for encoder-decoders; this model is a {spec.topology}")
        if cache is not None:
            if spec.topology == "encoder":
                raise TypeError("cache: an encoder reads its input at once")
            if segments is not None or decoder_segments is not None:
                raise InputError("segments: not with a cache, where one row is one request")
            if rope_length is not None:
                raise InputError("rope_length: fixed when the cache was made; pass it to new_cache")
        if segments is not None and spec.head.pools:
            raise InputError(
                f"segments: a {spec.head.kind!r} head answers once for each row, so a row must be one document"
            )
        if token_types is not None and not spec.embed.token_types and spec.head.kind != "pair":
            raise InputError("token_types: this model has no table for them (embed.token_types is 0)")
        if labels is not None and spec.head.kind == "none":
            raise InputError("labels: this model has no head to compare with them")
        if rope_length is not None and not self._reads_length():
            raise InputError("rope_length: no position scheme of this model depends on the length")

    def _reads_length(self) -> bool:
        return any(layer.position.needs_length for stack in self.spec.stacks for layer in stack.layers)

    def __repr__(self) -> str:
        from anyformer.model.show import show

        return show(self)


def counted_labels(labels: Tensor, places: Places, *, shift: bool) -> Tensor:
    """Labels that stand where their prediction is made, -100 where no prediction counts.

    Shifted: the label of the next token, unless that token is padding or of another document, or this one is padding.
    """
    valid, document = places.valid_BT, places.document_BT
    if shift:
        end = torch.full_like(labels[:, :1], IGNORE)
        labels = torch.cat((labels[:, 1:], end), 1)
        if valid is not None:
            following = torch.cat((valid[:, 1:], torch.zeros_like(valid[:, :1])), 1)
            labels = labels.masked_fill(~(valid & following), IGNORE)
        if document is not None:
            same = torch.cat(
                (document[:, 1:] == document[:, :-1], torch.zeros_like(document[:, :1], dtype=torch.bool)), 1
            )
            labels = labels.masked_fill(~same, IGNORE)
    elif valid is not None:
        labels = labels.masked_fill(~valid, IGNORE)
    return labels


def _unknown_argument(names: list[str]) -> TypeError:
    hints = [
        f"{n!r} is called {RENAMED[n]!r} here" if n in RENAMED else f"{n!r} is unknown{nearest(n, ARGUMENTS)}"
        for n in names
    ]
    return TypeError("model(...): " + "; ".join(hints))
