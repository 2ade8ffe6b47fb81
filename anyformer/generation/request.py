"""What `generate` is asked for: the checks that read values, and the plan that follows from them."""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.generation.sampling import Sampler, sampler
from anyformer.model.arguments import check_ids
from anyformer.model.models import Model
from anyformer.specs.model import ModelSpec

RENAMED = {
    "max_length": "max_new_tokens",
    "max_tokens": "max_new_tokens",
    "min_length": "min_new_tokens",
    "eos_token_id": "stop",
    "stop_token_ids": "stop",
    "stopping_criteria": "stop",
    "streamer": "stream",
    "generator": "seed",
    "return_dict_in_generate": "details",
    "output_scores": "details",
    "inputs": "input_ids",
    "prompt": "input_ids",
    "mask": "attention_mask",
    "global_attention_mask": "global_mask",
}
"""Names that people bring from elsewhere."""

NAMES = (
    "input_ids", "attention_mask", "global_mask", "max_new_tokens", "min_new_tokens", "temperature", "top_k", "top_p", "do_sample",
    "seed", "stop", "stream", "details", "use_cache", "rope_length", "first",
)  # fmt: skip
SEEDS = 2**63


@dataclass(frozen=True, kw_only=True)
class Request:
    """A checked request."""

    prompt_BT: Tensor
    """Of an encoder-decoder: the source."""
    mask_BT: Tensor | None
    """None: all tokens are real."""
    marks_BT: Tensor | None
    """Which tokens of the prompt (or source) are global; None: no pattern asks, or none was marked."""
    begun_BT: Tensor
    """What the new tokens are added to: the prompt, or the decoder's start token."""
    new: int
    """New tokens at most."""
    least: int
    """New tokens before which no row may stop."""
    stop: tuple[int, ...]
    pad: int
    """What finished rows are filled with."""
    sampler: Sampler
    first: tuple[int, ...]
    """Ids among which the first new token is chosen; empty: all."""
    declared: int | None
    """The length that was declared for length-dependent positions."""
    total: int
    """Tokens of the longest row when all are there, padding not counted."""


def unknown_option(names: Iterable[str]) -> TypeError:
    """The error for names that are not options."""
    hints = [
        f"{n!r} is called {RENAMED[n]!r} here" if n in RENAMED else f"{n!r} is unknown{nearest(n, NAMES)}"
        for n in sorted(names)
    ]
    return TypeError("generate(...): " + "; ".join(hints))


def check_model(spec: ModelSpec) -> None:
    """Refuse a model that can't continue a text."""
    if spec.topology == "encoder":
        raise InputError("an encoder reads a text at once and continues none; generate needs a causal decoder")
    if spec.embed.reads != "input_ids":
        raise InputError(f"this model reads {spec.embed.reads}, so what it generates could not be fed back to it")
    if not spec.head.predicts_tokens:
        raise InputError(f'a {spec.head.kind!r} head predicts no tokens; generate needs head.kind = "lm"')
    if spec.topology == "encoder-decoder" and spec.ids.start is None:
        raise InputError("the spec has no ids.start, with which the decoder begins; set it")


def room(model: Model) -> tuple[int, bool]:
    """Tokens that a decoder is made for, and whether it has no more positions than that."""
    stack: Any = model.decoder
    if stack.limit is not None:
        return stack.limit, True
    return model.spec.context, False


def request(
    model: Model,
    input_ids: Any,
    *,
    attention_mask: Any,
    global_mask: Any,
    max_new_tokens: Any,
    min_new_tokens: Any,
    temperature: Any,
    top_k: Any,
    top_p: Any,
    do_sample: Any,
    seed: Any,
    stop: Any,
    rope_length: Any,
    first: Any,
) -> Request:
    """Check everything, and say all that is wrong at once."""
    spec = model.spec
    check_model(spec)
    check_ids("input_ids", input_ids)
    wrong: list[str] = []
    device = next(model.parameters()).device
    ids = input_ids.to(device=device, dtype=torch.long)
    mask = _mask(attention_mask, ids, wrong)
    marks = _marks(global_mask, ids, model, wrong)
    _check_range(ids, spec.vocab, wrong)
    longest = ids.shape[1] if mask is None else int(mask.sum(-1).max())
    two = spec.topology == "encoder-decoder"
    begun = 1 if two else longest
    if two:
        encoder: Any = model.encoder
        _check_positions(longest, encoder.limit, "source", wrong)
    size, hard = room(model)
    _check_positions(begun, size if hard else None, "prompt", wrong)

    for name, value, least in (
        ("max_new_tokens", max_new_tokens, 1), ("min_new_tokens", min_new_tokens, 0), ("top_k", top_k, 1),
        ("seed", seed, 0), ("rope_length", rope_length, 1),
    ):  # fmt: skip
        _check_whole(name, value, least, wrong)
    heat = _temperature(temperature, do_sample, wrong)
    if top_p is not None and not (_is_number(top_p) and 0 < top_p <= 1):
        wrong.append(f"top_p: {top_p!r} is not above 0 and at most 1")
    stops = _stops(stop, spec, wrong)
    allowed = _first(first, spec.vocab, wrong)
    if rope_length is not None and not model.reads_length:
        wrong.append("rope_length: no position scheme of this model depends on the length")
    if wrong:
        raise InputError("\n  ".join(["generate(...):", *wrong]) if len(wrong) > 1 else wrong[0])

    new = max_new_tokens
    if new is None:
        new = size - begun
        if new < 1:
            raise InputError(
                f"max_new_tokens: the prompt fills the {size} tokens that this model is made for; "
                "shorten it, or say how many tokens to add"
            )
    # The last new token is never fed back, so it needs no position.
    if hard and begun + new - 1 > size:
        raise InputError(
            f"max_new_tokens: {new} after a prompt of {begun} need {begun + new - 1} positions, and this model has "
            f"{size}; ask for at most {size - begun + 1}"
        )
    if min_new_tokens > new:
        raise InputError(f"min_new_tokens: {min_new_tokens} is more than max_new_tokens, {new}")
    if min_new_tokens and len(stops) >= spec.vocab:
        raise InputError("min_new_tokens: every token is a stop token, so none is left to begin with")
    fill = spec.ids.pad if spec.ids.pad is not None else next(iter(spec.ids.eos), 0)
    return Request(
        prompt_BT=ids, mask_BT=mask, marks_BT=marks, begun_BT=torch.full_like(ids[:, :1], spec.ids.start or 0) if two else ids, new=new, least=min_new_tokens, stop=stops, pad=fill, first=allowed, declared=rope_length,
        total=begun + new,
        sampler=sampler(temperature=heat, top_k=top_k, top_p=top_p, seed=seed, device=device),
    )  # fmt: skip


def _first(first: Any, vocab: int, wrong: list[str]) -> tuple[int, ...]:
    """The ids that the first new token is chosen from."""
    if first is None:
        return ()
    ids = tuple(first) if isinstance(first, Sequence) and not isinstance(first, str) else ()
    if not ids or not all(type(i) is int and 0 <= i < vocab for i in ids):
        wrong.append(f"first: {first!r} is not a list of ids below vocab = {vocab}")
    return ids


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value


def _check_whole(name: str, value: Any, least: int, wrong: list[str]) -> None:
    if value is None:
        return
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        wrong.append(f"{name}: expected a whole number, got {value!r}")
    elif number < least:
        wrong.append(f"{name}: {number} is not at least {least}")
    elif number >= SEEDS:
        wrong.append(f"{name}: {number} is not below 2^63")


def _temperature(temperature: Any, do_sample: Any, wrong: list[str]) -> float:
    """The temperature; 0 takes the likeliest token."""
    if do_sample is not None and not isinstance(do_sample, bool):
        wrong.append(f"do_sample: expected True, False or None, got {do_sample!r}")
        return 0.0
    if temperature is None:
        return 1.0 if do_sample else 0.0
    if not (_is_number(temperature) and 0 <= temperature < float("inf")):
        wrong.append(f"temperature: {temperature!r} is not a finite number of at least 0 (0 takes the likeliest token)")
        return 0.0
    if do_sample and temperature == 0:
        wrong.append("temperature: 0 takes the likeliest token, but do_sample asks for a draw; leave one of them out")
    if do_sample is False:
        if temperature not in (0, 1):
            warnings.warn(f"temperature={temperature} has no effect, as do_sample is False", stacklevel=4)
        return 0.0
    return float(temperature)


def _mask(mask: Any, ids: Tensor, wrong: list[str]) -> Tensor | None:
    """The mask as 0 and 1, or None if all tokens are real."""
    if mask is None:
        return None
    if not isinstance(mask, Tensor) or mask.shape != ids.shape:
        what = tuple(mask.shape) if isinstance(mask, Tensor) else type(mask).__name__
        wrong.append(f"attention_mask: expected (batch, tokens) = {tuple(ids.shape)}, like input_ids, got {what}")
        return None
    mask = mask.to(ids.device)
    other = (mask != 0) & (mask != 1)
    if bool(other.any()):
        wrong.append(f"attention_mask: 1 is real and 0 is padding, but it holds {mask[other][0].item()}")
        return None
    real = mask != 0
    empty = real.any(-1).logical_not()
    if bool(empty.any()):
        wrong.append(f"attention_mask: row {int(empty.long().argmax())} has no real token")
        return None
    return None if bool(real.all()) else real.long()


def _marks(marks: Any, ids: Tensor, model: Model, wrong: list[str]) -> Tensor | None:
    """The mask of global tokens."""
    if marks is None:
        return None
    reader: Any = model.encoder if model.spec.topology == "encoder-decoder" else model.decoder
    if not reader.reads_marks:
        wrong.append("global_mask: no pattern of this model reads it; write one with global_tokens")
    elif not isinstance(marks, Tensor) or marks.shape != ids.shape:
        what = tuple(marks.shape) if isinstance(marks, Tensor) else type(marks).__name__
        wrong.append(f"global_mask: expected (batch, tokens) = {tuple(ids.shape)}, like input_ids, got {what}")
    else:
        return marks.to(ids.device)
    return None


def _check_range(ids: Tensor, vocab: int, wrong: list[str]) -> None:
    out = (ids < 0) | (ids >= vocab)
    if bool(out.any()):
        row, column = out.nonzero()[0].tolist()
        wrong.append(
            f"input_ids: {int(ids[row, column])} in row {row}, column {column} is not an id below vocab = {vocab}"
        )


def _check_positions(tokens: int, limit: int | None, what: str, wrong: list[str]) -> None:
    if limit is not None and tokens > limit:
        wrong.append(f"input_ids: a {what} of {tokens} tokens, but this model has {limit} positions; shorten it")


def _stops(stop: Any, spec: ModelSpec, wrong: list[str]) -> tuple[int, ...]:
    """Ids that end a row."""
    if stop is None:
        return tuple(spec.ids.eos)
    given = [stop] if isinstance(stop, int) else stop
    if isinstance(given, str) or not isinstance(given, Iterable):
        wrong.append(f"stop: expected token ids, got {stop!r}")
        return ()
    found: list[int] = []
    for each in given:
        try:
            found.append(operator.index(each))
        except TypeError:
            wrong.append(f"stop: expected token ids, got {each!r}")
    wrong += [f"stop: {each} is not an id below vocab = {spec.vocab}" for each in found if not 0 <= each < spec.vocab]
    return tuple(dict.fromkeys(found))
