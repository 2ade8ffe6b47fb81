"""The arguments of `model(...)`, and what is refused: unknown names, wrong shapes, and whatever would have no effect.

Only names, shapes and dtypes are looked at, never values, so that the checks cost nothing and compile.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.parts.kv_cache import KVCache
from anyformer.specs.model import ModelSpec

RENAMED = {
    "position_ids": "called 'positions'",
    "token_type_ids": "called 'token_types'",
    "past_key_values": "called 'cache'",
    "encoder_outputs": "called 'encoder_states'",
    "global_attention_mask": "called 'global_mask'",
    "inputs": "called 'input_ids'",
    "mask": "called 'attention_mask'",
    "document_ids": "called 'segments'",
}
"""Names that people bring from elsewhere."""

ENCODER_DECODER = ("decoder_input_ids", "decoder_attention_mask", "decoder_segments", "encoder_states")
SOURCE = ("input_ids", "encoder_states", "attention_mask", "positions", "segments", "token_types", "global_mask")
"""What describes the source of an encoder-decoder, which a cache remembers after the first call."""

CHOSEN = ("input_ids", "values", "pixel_values", "attention_mask", "positions", "token_types", "global_mask")
"""What has a row for each choice, where a head compares several."""


@dataclass
class Arguments:
    """Everything that can be passed to `model(...)`; None is absent."""

    input_ids: Tensor | None = None
    attention_mask: Tensor | None = None
    positions: Tensor | None = None
    segments: Tensor | None = None
    token_types: Tensor | None = None
    global_mask: Tensor | None = None
    labels: Tensor | None = None
    decoder_input_ids: Tensor | None = None
    decoder_attention_mask: Tensor | None = None
    decoder_segments: Tensor | None = None
    encoder_states: Tensor | None = None
    pixel_values: Tensor | None = None
    values: Tensor | None = None
    cache: KVCache | None = None
    rope_length: int | Tensor | None = None
    return_logits: bool = True
    """False: a pass with labels of tokens answers their loss without the logits, which may be most of its memory."""
    label_smoothing: float | None = None
    """None: the spec's."""

    def by_row(self, spec: ModelSpec) -> "ChoiceArguments":
        """Several rows each (batch, choices, tokens) as one row after the other."""
        rows: Tensor | None = getattr(self, spec.embed.reads)
        least = {"input_ids": 3, "values": 4, "pixel_values": 5}[spec.embed.reads]
        if rows is None or rows.dim() != least:
            raise InputError(
                f"{spec.embed.reads}: a 'choice' head compares several rows, so (batch, choices, ...) is expected, got "
                f"{None if rows is None else tuple(rows.shape)}"
            )
        given = {name: getattr(self, name) for name in CHOSEN}
        flat = {name: one.flatten(0, 1) for name, one in given.items() if one is not None and one.dim() > 2}
        own = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return ChoiceArguments(**own | flat, choices=rows.shape[1])

    def source(self, spec: ModelSpec) -> Tensor:
        """What the embedding reads."""
        name = spec.embed.reads
        found = getattr(self, name)
        inputs = ("input_ids", "pixel_values", "values")
        extra = [other for other in inputs if other != name and getattr(self, other) is not None]
        if extra or found is None:
            why = f", not {', '.join(extra)}" if extra else f"; {name} is missing"
            raise TypeError(f"this model reads {name}{why}")
        if name == "input_ids":
            check_ids(name, found)
        if self.token_types is not None:
            check_per_token("token_types", self.token_types, *found.shape[:2])
        return found


@dataclass
class ChoiceArguments(Arguments):
    """Those of a head that compares several rows, one row after the other."""

    choices: int = 1
    """Rows that belong together."""


NAMES = tuple(f.name for f in dataclasses.fields(Arguments))


def unknown_argument(
    source: str, given: Iterable[str], known: Iterable[str] = NAMES, renamed: Mapping[str, str] = RENAMED,
    *more: str,
) -> TypeError:  # fmt: skip
    """The error for names that are not arguments, and what else is wrong with them."""
    hints = [
        f"{n!r} is {renamed[n]} here" if n in renamed else f"{n!r} is unknown{nearest(n, known)}" for n in sorted(given)
    ]
    return TypeError(f"{source}: " + "; ".join((*hints, *more)))


def check(given: Arguments, spec: ModelSpec, *, reads_length: bool) -> None:
    """Refuse arguments that don't fit this kind of model, or each other."""
    if spec.topology != "encoder-decoder":
        for name in ENCODER_DECODER:
            if getattr(given, name) is not None:
                raise TypeError(f"{name} is for encoder-decoders; this model is a {spec.topology}")
    if given.cache is not None:
        _check_cache(given, given.cache, spec)
    if given.segments is not None and spec.head.pools:
        raise InputError(
            f"segments: a {spec.head.kind!r} head answers once for each row, so a row must be one document"
        )
    if given.token_types is not None:
        if not spec.embed.token_types and spec.head.kind != "pair":
            raise InputError("token_types: this model has no table for them (embed.token_types is 0)")
        if given.encoder_states is not None:
            raise InputError("token_types: they belong to the encoder's input, and encoder_states were given instead")
    if given.global_mask is not None and given.encoder_states is not None:
        raise InputError("global_mask: it belongs to the encoder's input, and encoder_states were given instead")
    if given.labels is not None and spec.head.kind == "none":
        raise InputError("labels: this model has no head to compare with them")
    if given.rope_length is not None and not reads_length:
        raise InputError("rope_length: no position scheme of this model depends on the length")


def _check_cache(given: Arguments, cache: KVCache, spec: ModelSpec) -> None:
    if not isinstance(cache, KVCache):
        raise TypeError(f"cache: expected what model.new_cache(...) returns, got {type(cache).__name__}")
    if spec.topology == "encoder":
        raise TypeError("cache: an encoder reads its input at once")
    if spec.head.pools:
        raise InputError(f"cache: a {spec.head.kind!r} head reads all tokens of a row at once")
    if given.segments is not None or given.decoder_segments is not None:
        raise InputError("segments: not with a cache, where one row is one request")
    if given.rope_length is not None:
        raise InputError("rope_length: fixed when the cache was made; pass it to new_cache")
    if given.positions is not None and spec.topology == "decoder" and cache.positions_are_counts:
        raise InputError(
            "positions: what this cache keeps is counted from the row's first token (in pages, or in the last columns of "
            "each block); leave positions out"
        )
    if cache.has_source:
        for name in SOURCE:
            if getattr(given, name) is not None:
                raise InputError(f"{name}: the cache holds the encoder's states already; pass decoder_input_ids only")


def check_ids(name: str, ids: Tensor) -> None:
    """Refuse token ids that are not whole numbers (batch, tokens)."""
    if not isinstance(ids, Tensor):
        raise TypeError(f"{name}: expected a tensor (batch, tokens), got {type(ids).__name__}")
    if ids.dim() != 2 or ids.shape[1] == 0:
        raise InputError(f"{name}: expected (batch, tokens) with at least one token, got {tuple(ids.shape)}")
    check_whole(name, ids)


def check_whole(name: str, tensor: Tensor | None) -> None:
    """Refuse numbers that are not whole."""
    if tensor is not None and (tensor.is_floating_point() or tensor.is_complex() or tensor.dtype == torch.bool):
        raise InputError(f"{name}: expected whole numbers, got {tensor.dtype}")


def check_per_token(name: str, tensor: Tensor | None, batch: int, tokens: int) -> None:
    """Refuse a per-token argument of another shape."""
    if tensor is not None and tuple(tensor.shape) != (batch, tokens):
        advice = "; masks for single pairs are patterns: write attention.pattern" if tensor.dim() == 4 else ""
        raise InputError(f"{name}: expected (batch, tokens) = {(batch, tokens)}, got {tuple(tensor.shape)}{advice}")


def check_tokens(
    batch: int, tokens: int, mask: Tensor | None, positions: Tensor | None, segments: Tensor | None, prefix: str = ""
) -> None:
    """Refuse arguments about the tokens of an input that don't fit them."""
    check_per_token(f"{prefix}attention_mask", mask, batch, tokens)
    check_per_token(f"{prefix}segments", segments, batch, tokens)
    check_whole(f"{prefix}segments", segments)
    check_positions(positions, batch, tokens)


def check_positions(positions: Tensor | None, batch: int, tokens: int) -> None:
    """Refuse positions that are neither (tokens,) nor (batch, tokens)."""
    if positions is None:
        return
    check_whole("positions", positions)
    if tuple(positions.shape) not in ((tokens,), (1, tokens), (batch, tokens)):
        raise InputError(f"positions: expected ({batch}, {tokens}) or ({tokens},), got {tuple(positions.shape)}")
