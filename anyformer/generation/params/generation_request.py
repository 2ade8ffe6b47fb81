"""What `generate` is asked for: the checks that read values, and what follows from them."""

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.params.checks import whole
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.params.validate import ResolvedParams, problems, resolve_params
from anyformer.kernels.memory import free
from anyformer.model.arguments import check_ids
from anyformer.model.model import Model
from anyformer.specs.model import ModelSpec

LITTLE = 2**16
"""Tokens of all rows that are not looked at more closely."""
BOOKS = 64
"""Bytes that a token takes beside keys and values: its id, where it is, whether it is real."""


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A checked request. Whoever gets one may rely on it: nothing in it is refused later."""

    prompt_BT: Tensor
    """Of an encoder-decoder: the source."""
    mask_BT: Tensor | None
    """None: all tokens are real."""
    global_BT: Tensor | None
    """Which tokens of the prompt (or source) are global; None: no pattern asks, or none was marked."""
    decoder_BT: Tensor
    """What the new tokens are added to: the prompt, or the decoder's start token."""
    max_new_tokens: int
    pad_id: int
    """What finished rows are filled with."""
    rope_length: int | None
    """The length that was given for length-dependent positions."""
    max_length: int
    """Tokens of the longest row when all are there, padding not counted."""
    params: ResolvedParams
    """How tokens are chosen, and when a row ends."""
    tokenizer: Tokenizer | None

    def unpadded(self, rows_BT: Tensor) -> list[Tensor]:
        """Each row of the prompt (or source), or of what is as wide, without padding."""
        if self.mask_BT is None:
            return list(rows_BT)
        return [row_T[mask_T != 0] for row_T, mask_T in zip(rows_BT, self.mask_BT, strict=True)]

    def decoder_prompts(self) -> list[list[int]]:
        """What each row of a decoder has before its first new token, without padding."""
        if self.decoder_BT is not self.prompt_BT:
            return self.decoder_BT.tolist()
        return [row_T.tolist() for row_T in self.unpadded(self.decoder_BT)]


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


def context_length(model: Model, stack: Any = None) -> tuple[int, bool]:
    """Tokens that a stack (None: the decoder) is made for, and whether it has no more positions than that."""
    stack = model.decoder if stack is None else stack
    return (model.spec.context, False) if stack.limit is None else (stack.limit, True)


def check_request(
    model: Model,
    input_ids: Any,
    options: SamplingParams,
    *,
    attention_mask: Any = None,
    global_mask: Any = None,
    rope_length: Any = None,
    tokenizer: Tokenizer | None = None,
    stream: bool = False,
    details: bool = True,
    use_cache: bool = True,
    stacklevel: int = 1,
) -> GenerationRequest:
    """Check everything, and say all that is wrong at once."""
    spec = model.spec
    check_model(spec)
    check_ids("input_ids", input_ids)
    if not len(input_ids):
        raise InputError("input_ids: a batch of 0 rows; give at least one prompt")
    wrong: list[str] = []
    ids = input_ids.to(device=next(model.parameters()).device, dtype=torch.long)
    mask = _mask(attention_mask, ids, wrong)
    vocab, name = spec.input_vocab, "vocab" if spec.source_vocab is None else "source_vocab"
    out = (ids < 0) | (ids >= vocab)
    if bool(out.any()):
        row, column = out.nonzero()[0].tolist()
        wrong.append(
            f"input_ids: {int(ids[row, column])} in row {row}, column {column} is not an id below {name} = {vocab}"
        )
    longest = ids.shape[1] if mask is None else int(mask.sum(-1).max())
    seq2seq = spec.topology == "encoder-decoder"
    prompt = 1 if seq2seq else longest
    decoder: Any = model.decoder
    encoder: Any = model.encoder if seq2seq else None
    is_global = None
    if global_mask is not None and not (decoder if encoder is None else encoder).reads_marks:
        wrong.append("global_mask: no pattern of this model reads it; write one with global_tokens")
    elif global_mask is not None and _has_shape("global_mask", global_mask, ids, wrong):
        is_global = global_mask.to(ids.device)
    for tokens, stack, what in ((longest, encoder, "source"), (prompt, decoder, "prompt")):
        if stack is not None and stack.limit is not None and tokens > stack.limit:
            wrong.append(
                f"input_ids: a {what} of {tokens} tokens, but this model has {stack.limit} positions; shorten it"
            )
    if rope_length is not None:
        whole("rope_length", rope_length, 1, wrong)
        if not model.reads_length:
            wrong.append("rope_length: no position scheme of this model depends on the length")
    if options.prompt_logprobs is not None and seq2seq:
        wrong.append("prompt_logprobs: an encoder-decoder predicts no token of its source; leave it out")
    elif options.prompt_logprobs is not None and decoder.prefix:
        wrong.append(
            f"prompt_logprobs: the first {decoder.prefix} tokens of this prefix-LM see each other both ways, so none is "
            "predicted; leave it out"
        )
    params = resolve_params(
        options, spec, wrong, tokenizer=tokenizer, rows=len(ids), details=details, stream=stream, stacklevel=stacklevel + 1
    )  # fmt: skip
    if wrong or params is None:
        raise problems("generate", wrong)
    new = _max_new_tokens(model, params, prompt)
    if use_cache:
        _check_memory(model, len(ids) * params.options.n, prompt + new)
    if longest > spec.context:
        warnings.warn(
            f"a {'source' if seq2seq else 'prompt'} of {longest} tokens, and this model is made for {spec.context}: what it says after "
            "that may be poor",
            stacklevel=stacklevel + 1,
        )
    pad_id = spec.ids.pad if spec.ids.pad is not None else next(iter(spec.ids.eos), 0)
    decoder_ids = torch.full_like(ids[:, :1], spec.ids.start or 0) if seq2seq else ids
    return GenerationRequest(
        prompt_BT=ids, mask_BT=mask, global_BT=is_global, decoder_BT=decoder_ids, max_new_tokens=new, pad_id=pad_id,
        rope_length=rope_length, max_length=prompt + new, params=params, tokenizer=tokenizer,
    )  # fmt: skip


def _max_new_tokens(model: Model, params: ResolvedParams, prompt: int) -> int:
    """New tokens at most after a prompt of so many, if the model has room for them."""
    size, hard = context_length(model)
    new = params.max_new_tokens
    if new is None and params.choices is not None:
        new = params.choices.steps
    if new is None:
        new = size - prompt
        if new < 1:
            raise InputError(
                f"max_new_tokens: the prompt fills the {size} tokens that this model is made for; "
                "shorten it, or say how many tokens to add"
            )
    if hard and params.mode == "contrastive" and prompt + new > size:
        raise InputError(
            f"max_new_tokens: contrastive search reads its last token too, so {new} of them need {prompt + new} "
            f"positions, and this model has {size}; ask for one less"
        )
    # The last new token is never fed back, so it needs no position.
    if hard and prompt + new - 1 > size:
        raise InputError(
            f"max_new_tokens: {new} after a prompt of {prompt} need {prompt + new - 1} positions, and this model has "
            f"{size}; ask for at most {size - prompt + 1}"
        )
    if params.least > new:
        raise InputError(f"min_new_tokens: {params.least} is more than max_new_tokens, {new}")
    return new


def _check_memory(model: Model, rows: int, total: int) -> None:
    """Refuse more tokens than the cache of a model can have memory for."""
    like = next(model.parameters())
    # A device of its own says itself that it is full, and may hold what this very call will use again.
    if like.device.type != "cpu" or rows * total <= LITTLE:
        return
    needed = model.spec.count().kv_bytes(total, str(like.dtype), rows) + BOOKS * rows * total
    left = free(like.device)
    if needed > left:
        raise InputError(
            f"max_new_tokens: {total:,} tokens in each of {rows} rows take {needed / 2**30:,.1f} GiB, and {left / 2**30:,.1f} are "
            "free; ask for fewer"
        )


def _mask(mask: Any, ids: Tensor, wrong: list[str]) -> Tensor | None:
    """The mask as 0 and 1, or None if all tokens are real."""
    if mask is None or not _has_shape("attention_mask", mask, ids, wrong):
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


def _has_shape(name: str, given: Any, ids: Tensor, wrong: list[str]) -> bool:
    """Whether a mask is a tensor as large as the ids."""
    if isinstance(given, Tensor) and given.shape == ids.shape:
        return True
    what = tuple(given.shape) if isinstance(given, Tensor) else type(given).__name__
    wrong.append(f"{name}: expected (batch, tokens) = {tuple(ids.shape)}, like input_ids, got {what}")
    return False
