"""The one model class: decoder, encoder and encoder-decoder are the same stacks between the same ends."""

import dataclasses
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from anyformer.errors import InputError
from anyformer.kernels.loss import (
    IGNORE,
    LossTerms,
    balance,
    binary_cross_entropy,
    cross_entropy,
    router_z,
    squared_error,
)
from anyformer.model.arguments import (
    Arguments,
    ChoiceArguments,
    check,
    check_ids,
    check_per_token,
    check_tokens,
    check_whole,
    unknown_argument,
)
from anyformer.model.stack import Stack
from anyformer.model.token_layout import TokenLayout, declared_length, document_length, follows, place
from anyformer.parts.embedding import TokenEmbedding, embedding
from anyformer.parts.heads import LossRequest, answered, eos_among, head_module, pool_hidden, pooled
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import KVBlockPool
from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.static_cache import StaticKVCache
from anyformer.specs.axes import ParamSpec
from anyformer.specs.embed_head import AnswerHead, ChoiceHead, RegressionHead, SequenceHead, TokenEmbed, TokenHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.number_format import ranges
from anyformer.specs.parameters import weights
from anyformer.specs.stacks import cache_specs

if TYPE_CHECKING:
    from anyformer.model.trace import Trace


@dataclass
class Output:
    """Results of `model(...)`."""

    hidden: Tensor
    """What the head reads: states (B,T,D), or one vector for each row (B,D) before a head that pools."""
    logits: Tensor | None = None
    """The head's answer, (B,T,V) for tokens; None without a head."""
    loss: Tensor | None = None
    """What is minimised, a mean over counted labels; None without labels."""
    losses: dict[str, Tensor] = field(default_factory=dict)
    """The terms of the loss, before weighting."""
    label_count: Tensor | None = None
    """How many labels counted."""
    cache: KVCache | None = None
    encoder_states: Tensor | None = None
    """The encoder's states in an encoder-decoder, to be passed back as `encoder_states=`."""


class Model(nn.Module):
    """Embedding -> stack(s) -> head, all from one spec."""

    encoder: Stack
    decoder: Stack
    family: str | None = None
    """Kind of the family whose checkpoint it was read from, which an export asks first; None if it was built here."""

    def __init__(self, spec: ModelSpec) -> None:
        super().__init__()
        self.spec = spec
        self.embed = embedding(spec)
        two = spec.topology == "encoder-decoder"
        apart = two and isinstance(spec.embed, TokenEmbed) and not spec.embed.shared
        self.decoder_embed = embedding(spec, target=True) if apart else None
        for stack in spec.stacks:
            self.add_module(stack.name, Stack(spec, stack))
        embed = self.decoder_embed if apart else self.embed
        self.head = head_module(spec, embed.tokens if isinstance(embed, TokenEmbedding) else None)
        layers = [layer for stack in spec.stacks for layer in stack.layers]
        self.reads_length = any(layer.position.needs_length for layer in layers)
        self.cache_specs = cache_specs(spec, spec.stacks[-1]) if spec.stacks[-1].causal else ()
        """What a cache keeps of a row, by layer of the decoder."""

    def forward(
        self,
        input_ids: Tensor | None = None,
        *,
        attention_mask: Tensor | None = None,
        positions: Tensor | None = None,
        segments: Tensor | None = None,
        token_types: Tensor | None = None,
        global_mask: Tensor | None = None,
        labels: Tensor | None = None,
        decoder_input_ids: Tensor | None = None,
        decoder_attention_mask: Tensor | None = None,
        decoder_segments: Tensor | None = None,
        encoder_states: Tensor | None = None,
        pixel_values: Tensor | None = None,
        values: Tensor | None = None,
        cache: KVCache | None = None,
        rope_length: int | Tensor | None = None,
        return_logits: bool = True,
        label_smoothing: float | None = None,
        **unknown: Any,
    ) -> Output:
        """One pass. See docs/spec.md for the arguments; shapes are (batch, tokens) unless said otherwise.

        A pass with a cache records no gradients: what it keeps would tie every step to all steps before it.
        """
        if unknown:
            raise unknown_argument("model(...)", unknown)
        given = Arguments(
            input_ids, attention_mask, positions, segments, token_types, global_mask, labels, decoder_input_ids,
            decoder_attention_mask, decoder_segments, encoder_states, pixel_values, values, cache, rope_length,
            return_logits, label_smoothing,
        )  # fmt: skip
        check(given, self.spec, reads_length=self.reads_length)
        if isinstance(self.spec.head, ChoiceHead):
            given = given.by_row(self.spec)
        run = self._forward_seq2seq if self.spec.topology == "encoder-decoder" else self._forward_single
        if cache is None or not torch.is_grad_enabled():
            return run(given)
        with torch.no_grad():
            return run(given)

    def inventory(self) -> dict[str, ParamSpec]:
        """What each parameter is for, by name."""
        return weights(self.spec)

    def new_cache(self, batch: int, length: int, *, rope_length: int | None = None, chunk: int = 1) -> StaticKVCache:
        """An empty cache for `length` tokens in each of `batch` rows, on the model's device and in its dtype.

        A layer keeps what its pattern can still see. Up to `chunk` tokens are attended to in place; more at once are
        served too, and cost a copy.

        `rope_length` is the length that length-dependent RoPE scalings read for the cache's whole life
        (default: `length`).
        """
        stack, like = self._cached(rope_length)
        cache = StaticKVCache(
            self.cache_specs, batch=batch, length=length, device=like.device, dtype=like.dtype, chunk=chunk,
            rope_length=rope_length,
        )  # fmt: skip
        stack.precompute_rotary(cache, like)
        return cache

    def new_pool(
        self,
        max_num_seqs: int,
        length: int,
        *,
        block_size: int = 16,
        num_blocks: int | None = None,
        chunk: int = 1,
        kv_cache_dtype: str = "model",
        rope_length: int | None = None,
    ) -> KVBlockPool:
        """An empty pool of blocks for up to `max_num_seqs` sequences of up to `length` tokens each, read at their own pace.

        A block has room for `block_size` tokens; `num_blocks` bounds how many there are for layers that keep every token
        (None: enough for all sequences). `kv_cache_dtype` is "model", or "int8" with a scale for each head of a token.
        """
        stack, like = self._cached(rope_length)
        pool = KVBlockPool(
            self.cache_specs, max_num_seqs=max_num_seqs, length=length, block_size=block_size, num_blocks=num_blocks,
            chunk=chunk, kv_cache_dtype=kv_cache_dtype, device=like.device, dtype=like.dtype, prefix=stack.prefix,
            global_marks=stack.reads_marks, needs_rope_length=stack.needs_rope_length, rope_length=rope_length,
        )  # fmt: skip
        if not stack.needs_rope_length:
            stack.precompute_rotary(pool, like)
        return pool

    def _cached(self, rope_length: int | None) -> tuple[Stack, Tensor]:
        """The stack that keeps what it has read, and a tensor like those that it computes; or why there is none."""
        if self.spec.topology == "encoder":
            raise InputError("an encoder reads its input at once; only a decoder has a cache")
        if self.spec.head.pools:
            raise InputError(
                f"a {self.spec.head.kind!r} head reads all tokens of a row at once, so a cache is of no use"
            )
        if rope_length is not None and not self.reads_length:
            raise InputError("rope_length: no position scheme of this model depends on the length")
        return self.decoder, next(self.parameters())

    def trace(
        self,
        input_ids: Tensor | None = None,
        *,
        residuals: Any = "all",
        attention: Any = None,
        logits: Any = None,
        **given: Any,
    ) -> "Trace":
        """One pass in eval mode, without gradients, and what it showed by name: `trace["decoder.3.attention.residual"]`.

        `residuals`: "all", None, or names and numbers of layers. `attention`: "all", None, or the heads of each layer,
        such as {0: "all", "decoder.1.cross": [0, 2]}. `logits`: "all", None, or the layers after which the head is
        asked. All else is what `model(...)` takes; see docs/trace.md.
        """
        from anyformer.model.trace import trace

        inputs = {"input_ids": input_ids, **given}
        return trace(self, inputs, residuals=residuals, attention=attention, logits=logits)

    def _forward_single(self, given: Arguments) -> Output:
        """A pass of a model with one stack."""
        x = self.embed(given.source(self.spec), given.token_types)
        decoder = self.spec.topology == "decoder"
        stack = self.decoder if decoder else self.encoder
        layout = self._layout(stack, x, given)
        return self._head_and_loss(stack(x, layout, cache=given.cache), layout, given, shift=decoder)

    def _forward_seq2seq(self, given: Arguments) -> Output:
        """A pass of an encoder-decoder."""
        if given.decoder_input_ids is None and not self.spec.head.predicts_tokens:
            given = self._reread(given)
        cache, states = given.cache, given.encoder_states
        if cache is not None and cache.has_source:
            source = TokenLayout(pos_BT=cache.source_pos_BS, valid_BT=cache.source_valid_BS)  # type: ignore[arg-type]
        else:
            states, source = self._encode(given)
            if cache is not None:
                cache.source_pos_BS, cache.source_valid_BS = source.pos_BT, source.valid_BT
            if (given.segments is None) != (given.decoder_segments is None):
                raise InputError("segments and decoder_segments go together: cross-attention stays within equal ids")
        target = given.decoder_input_ids
        if target is None:
            target = self._teacher_forced(given)
        check_ids("decoder_input_ids", target)
        if states is not None and states.shape[0] != target.shape[0]:
            raise InputError(f"decoder_input_ids: {target.shape[0]} rows against {states.shape[0]} of the encoder")
        x = (self.embed if self.decoder_embed is None else self.decoder_embed)(target, None)
        layout = self._layout(self.decoder, x, given, "decoder_")
        hidden = self.decoder(x, layout, cache=cache, encoder_BSD=states, source=source)
        out = self._head_and_loss(hidden, layout, given, shift=False, source=source)
        out.encoder_states = states
        return out

    def _encode(self, given: Arguments) -> tuple[Tensor, TokenLayout]:
        """The encoder's states, computed or given, and where they are."""
        states = given.encoder_states
        if (given.input_ids is None) == (states is None):
            raise TypeError("an encoder-decoder needs input_ids or encoder_states, one of them")
        if states is None:
            x = self.embed(given.source(self.spec), given.token_types)
            layout = self._layout(self.encoder, x, given)
            return self.encoder(x, layout), layout
        if states.dim() != 3 or states.shape[-1] != self.spec.width:
            wanted = f"(batch, tokens, {self.spec.width})"
            raise InputError(f"encoder_states: expected {wanted}, got {tuple(states.shape)}")
        return states, self._layout(self.encoder, states, given)

    def _layout(self, stack: Stack, x: Tensor, given: Arguments, prefix: str = "") -> TokenLayout:
        """Where the tokens of an input are, after a look at the shapes; `prefix`: of the arguments that say so."""
        batch, tokens = x.shape[:2]
        mask, positions, segments, marks = (
            (given.decoder_attention_mask, None, given.decoder_segments, None)
            if prefix
            else (given.attention_mask, given.positions, given.segments, given.global_mask)
        )
        if mask is not None or positions is not None or segments is not None or marks is not None:
            check_tokens(batch, tokens, mask, positions, segments, prefix)
            check_per_token("global_mask", marks, batch, tokens)
            if marks is not None and not stack.reads_marks:
                raise InputError("global_mask: no pattern of this model reads it; write one with global_tokens")
        cache = given.cache
        used, seen, declared = 0, None, given.rope_length
        if cache is not None and stack.causal:
            cache.check(self.cache_specs, batch, x)
            used, seen, declared = cache.used, cache.seen_B if cache.ragged else None, cache.rope_length
            if 0 < used < stack.prefix:
                raise InputError(
                    f"the first {stack.prefix} tokens see each other both ways, so a cache is fed them at once, but it "
                    f"was fed {used}; give a longer prompt, or recompute each step (use_cache=False)"
                )
        elif cache is not None:
            # A length that was declared for the cache holds for the source too.
            declared = cache.source_rope_length
        layout = place(
            batch, tokens, x.device, mask_BT=mask, positions=positions, segments_BT=segments, before=used, before_B=seen
        )
        if stack.limit is not None and layout.plain and used + tokens > stack.limit:
            raise InputError(
                f"{used + tokens} tokens are more than the {stack.limit} positions that this model has; shorten the input"
            )
        layout.right_padded = cache is not None and stack.causal and cache.right_padded
        if marks is not None:
            layout.marked_BT = marks != 0
        if stack.needs_rope_length:
            layout.declared_BT = declared_length(layout, tokens, declared)
        if stack.reads_document:
            layout.length_BT = document_length(layout, tokens)
        if given.labels is not None and (self.spec.loss.balance or self.spec.loss.router_z):
            layout.router_outputs = []
        return layout

    def _reread(self, given: Arguments) -> Arguments:
        """Decoder inputs for a head that predicts no tokens (BART, T5): the source once more, to be shifted."""
        if given.input_ids is None or self.spec.source_vocab is not None:
            why = "the source" if given.input_ids is None else "a source of the same vocabulary"
            raise TypeError(f"an encoder-decoder needs decoder_input_ids, or {why} to read once more in its decoder")
        return dataclasses.replace(given, decoder_attention_mask=given.attention_mask, decoder_segments=given.segments)

    def _teacher_forced(self, given: Arguments) -> Tensor:
        """Decoder inputs from labels, or from the source: the token before, and the start id where a document begins."""
        labels = given.labels if self.spec.head.predicts_tokens else given.input_ids
        if labels is None:
            raise TypeError("an encoder-decoder needs decoder_input_ids, or labels to make them from")
        start, pad = self.spec.ids.start, self.spec.ids.pad
        if start is None and (self.spec.head.predicts_tokens or given.segments is not None):
            raise InputError("decoder_input_ids: the spec has no ids.start to begin them with; set it, or pass them")
        check_ids("labels", labels)
        batch, tokens = labels.shape
        check_per_token("decoder_attention_mask", given.decoder_attention_mask, batch, tokens)
        check_per_token("decoder_segments", given.decoder_segments, batch, tokens)
        mask, segments = given.decoder_attention_mask, given.decoder_segments
        if start is None:
            # A row's last token, which says its language (mBART).
            first = pooled(labels[..., None], None if mask is None else mask != 0, "last")
        else:
            first = torch.full_like(labels[:, :1], start)
        before = torch.cat((first, labels[:, :-1]), 1)
        before = torch.where(before == IGNORE, first if pad is None else pad, before)
        follow = follows(place(batch, tokens, labels.device, mask_BT=mask, segments_BT=segments))
        return before if follow is None else torch.where(follow, before, first)

    def _head_and_loss(
        self, states: Tensor, layout: TokenLayout, given: Arguments, *, shift: bool, source: TokenLayout | None = None
    ) -> Output:
        """The head's answer, and the loss if there are labels."""
        head = self.spec.head
        hidden = states
        if head.pools:
            ids = given.input_ids if given.decoder_input_ids is None else given.decoder_input_ids
            hidden = pool_hidden(head, states, layout.valid_BT, given.token_types, eos_among(self.spec, ids))
        out = Output(hidden=hidden, cache=given.cache)
        if self.head is None:
            return out
        if given.labels is None or given.return_logits or not isinstance(head, TokenHead):
            out.logits = answered(head, self.head(hidden), layout.valid_BT)
        if isinstance(given, ChoiceArguments) and out.logits is not None:
            rows = (-1, given.choices)
            out.hidden, out.logits = hidden.unflatten(0, rows), out.logits.view(rows)
        if given.labels is not None:
            terms = self._with_router_losses(self._loss(out, given, given.labels, layout, shift=shift), source, layout)
            out.loss, out.losses, out.label_count = terms.total, terms.terms, terms.label_count
        return out

    def _loss(self, out: Output, given: Arguments, labels: Tensor, layout: TokenLayout, *, shift: bool) -> LossTerms:
        """Of the logits; or, if they were not made, of what the head reads."""
        spec, logits, rows = self.spec, out.logits, out.hidden.shape[: 1 if self.spec.head.pools else -1]
        asked = spec.head.problem if isinstance(spec.head, SequenceHead) else None
        if isinstance(spec.head, SequenceHead) and asked is None:
            # One label is a number, whatever the dtype: of a single class there is nothing to tell.
            asked = "regression" if spec.head.labels == 1 else "multi" if labels.is_floating_point() else None
        if logits is not None and (asked in ("multi", "regression") or isinstance(spec.head, RegressionHead)):
            wanted = labels if labels.dim() == 2 else labels[:, None]
            if wanted.shape != logits.shape:
                raise InputError(f"labels: expected {tuple(logits.shape)}, got {tuple(labels.shape)}")
            wanted = wanted if wanted.is_floating_point() else wanted.to(logits.dtype)
            return (binary_cross_entropy if asked == "multi" else squared_error)(logits, wanted)
        if isinstance(spec.head, AnswerHead):
            rows = (rows[0], 2)
        if labels.shape != rows:
            raise InputError(f"labels: expected {tuple(rows)}, got {tuple(labels.shape)}")
        check_whole("labels", labels)
        if isinstance(spec.head, AnswerHead) and logits is not None:
            # Classes are the tokens of a row: where the answer starts, and where it ends.
            logits = logits.transpose(1, 2)
            labels = labels.masked_fill(labels >= logits.shape[-1], -100)  # of an answer that was cut off
            if layout.valid_BT is not None:
                logits = logits.masked_fill(~layout.valid_BT[:, None], torch.finfo(logits.dtype).min)
        elif not spec.head.pools:
            shift = shift and isinstance(spec.head, TokenHead)
            labels = counted_labels(labels, layout, shift=shift, prefix=self.decoder.prefix if shift else 0)
        smoothing = spec.loss.label_smoothing if given.label_smoothing is None else given.label_smoothing
        z = spec.loss.z
        if logits is None:
            head: Any = self.head
            # Of a masked LM few tokens are predicted, of any other model nearly all.
            return head(out.hidden, LossRequest(labels, smoothing, z, few=spec.topology == "encoder"))
        return cross_entropy(logits, labels, smoothing=smoothing, z=z)

    def _with_router_losses(self, terms: LossTerms, *stacks: TokenLayout | None) -> LossTerms:
        """The loss with what its routers add to it."""
        routed = [(each, s.valid_BT) for s in stacks if s is not None for each in s.router_outputs or ()]
        if not routed:
            return terms
        total, found, loss = terms.total, dict(terms.terms), self.spec.loss
        for name, weight, term in (("balance", loss.balance, balance), ("router_z", loss.router_z, router_z)):
            if weight:
                found[name] = term(routed)
                total = total + weight * found[name]
        return LossTerms(total, found, terms.label_count)

    def __repr__(self) -> str:
        """The architecture as a tree: equal blocks once, empty slots not at all."""
        total, spec = sum(p.numel() for p in self.parameters()), self.spec
        known = f"{spec.vocab}" if spec.source_vocab is None else f"{spec.source_vocab} -> {spec.vocab}"
        title = f"{spec.topology}, {total:,} parameters, vocab {known}, context {spec.context}"
        return "\n".join([title, *_children(self, "  ")])


def counted_labels(labels: Tensor, layout: TokenLayout, *, shift: bool, prefix: int = 0) -> Tensor:
    """Labels that stand where their prediction is made, -100 where no prediction counts.

    Shifted: the label of the next token, unless that token is padding or of another document, or this one is padding, or
    the token is of a prefix, which those before it see.
    """
    if not shift:
        return labels if layout.valid_BT is None else labels.masked_fill(~layout.valid_BT, IGNORE)
    follow = follows(layout)
    if follow is not None:
        labels = labels.masked_fill(~follow, IGNORE)
    if prefix > 1:
        labels = labels.masked_fill(layout.pos_BT < prefix, IGNORE)
    return torch.cat((labels[:, 1:], torch.full_like(labels[:, :1], IGNORE)), 1)


def _children(module: nn.Module, indent: str) -> list[str]:
    lines: list[str] = []
    for name, child in module.named_children():
        lines += _blocks(name, child, indent) if isinstance(child, nn.ModuleList) else _node(name, child, indent)
    return lines


def _node(name: str, module: nn.Module, indent: str) -> list[str]:
    own = module.extra_repr()
    return [f"{indent}{name}{': ' + own if own else ''}", *_children(module, indent + "  ")]


def _blocks(name: str, modules: nn.ModuleList, indent: str) -> list[str]:
    """Equal members once, with their count and places."""
    places: dict[str, list[int]] = {}
    for i, member in enumerate(modules):
        places.setdefault("\n".join(_node("", member, "")), []).append(i)
    lines: list[str] = []
    for indices in places.values():
        first = modules[indices[0]]
        what = "position" if isinstance(first, LeafModule) else "block"
        lines += _node(f"{len(indices)} x {what} ({name} {', '.join(ranges(indices))})", first, indent)
    return lines
