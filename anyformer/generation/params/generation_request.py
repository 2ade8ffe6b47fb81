"""What `generate` is asked for: the checks that read values, and the plan that follows from them."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.params.checks import whole
from anyformer.generation.params.memory_check import check_memory
from anyformer.generation.params.sampling_params import SamplingParams
from anyformer.generation.params.validate import ResolvedParams, check_params, problems
from anyformer.model.arguments import check_ids
from anyformer.model.model import Model
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class GenerationRequest:
    """A checked request. Whoever gets one may rely on it: nothing in it is refused later."""

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
    pad: int
    """What finished rows are filled with."""
    declared: int | None
    """The length that was declared for length-dependent positions."""
    total: int
    """Tokens of the longest row when all are there, padding not counted."""
    params: ResolvedParams
    """How tokens are chosen, and when a row ends."""
    tokenizer: Tokenizer | None
    cached: bool
    """Whether a cache is used; otherwise everything is read again in each step."""

    @property
    def reads_prompt(self) -> bool:
        """Whether the prompt's own log-probabilities were asked for."""
        return self.params.options.prompt_logprobs is not None

    def starts(self) -> list[list[int]]:
        """What each row of a decoder has before its first new token, without padding."""
        mask_BT = self.begun_mask_BT
        if mask_BT is None:
            return self.begun_BT.tolist()
        return [ids_T[mask_T != 0].tolist() for ids_T, mask_T in zip(self.begun_BT, mask_BT, strict=True)]

    def prompts(self) -> list[Tensor]:
        """Each row of the prompt (or source), without padding."""
        if self.mask_BT is None:
            return list(self.prompt_BT)
        return [ids_T[mask_T != 0] for ids_T, mask_T in zip(self.prompt_BT, self.mask_BT, strict=True)]

    def marks(self) -> list[Tensor] | None:
        """Which tokens of each prompt are global, without padding; None: no mask was given."""
        if self.marks_BT is None or self.mask_BT is None:
            return None if self.marks_BT is None else list(self.marks_BT)
        return [marks_T[mask_T != 0] for marks_T, mask_T in zip(self.marks_BT, self.mask_BT, strict=True)]

    @property
    def begun_mask_BT(self) -> Tensor | None:
        """Which of `begun_BT` are real; None: all."""
        return self.mask_BT if self.begun_BT is self.prompt_BT else None


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
    options: SamplingParams,
    *,
    attention_mask: Any,
    global_mask: Any,
    rope_length: Any,
    tokenizer: Tokenizer | None,
    stream: bool,
    details: bool,
    cached: bool,
    stacklevel: int,
) -> GenerationRequest:
    """Check everything, and say all that is wrong at once."""
    spec = model.spec
    check_model(spec)
    check_ids("input_ids", input_ids)
    if not len(input_ids):
        raise InputError("input_ids: a batch of 0 rows; give at least one prompt")
    wrong: list[str] = []
    device = next(model.parameters()).device
    ids = input_ids.to(device=device, dtype=torch.long)
    mask = _mask(attention_mask, ids, wrong)
    marks = _marks(global_mask, ids, model, wrong)
    _check_range(ids, spec, wrong)
    longest = ids.shape[1] if mask is None else int(mask.sum(-1).max())
    two = spec.topology == "encoder-decoder"
    begun = 1 if two else longest
    decoder: Any = model.decoder
    if two:
        encoder: Any = model.encoder
        _check_positions(longest, encoder.limit, "source", wrong)
    _check_positions(begun, decoder.limit, "prompt", wrong)
    if rope_length is not None:
        whole("rope_length", rope_length, 1, wrong)
        if not model.reads_length:
            wrong.append("rope_length: no position scheme of this model depends on the length")
    if options.prompt_logprobs is not None and two:
        wrong.append("prompt_logprobs: an encoder-decoder predicts no token of its source; leave it out")
    elif options.prompt_logprobs is not None and decoder.prefix:
        wrong.append(
            f"prompt_logprobs: the first {decoder.prefix} tokens of this prefix-LM see each other both ways, so none is "
            "predicted; leave it out"
        )
    plan = check_params(
        options, spec, tokenizer=tokenizer, rows=len(ids), details=details, stream=stream, wrong=wrong,
        stacklevel=stacklevel + 1,
    )  # fmt: skip
    if wrong or plan is None:
        raise problems("generate", wrong)
    new = new_tokens(model, plan, begun)
    if cached:
        check_memory(model, len(ids) * plan.options.n, begun + new)
    if longest > spec.context:
        warnings.warn(
            f"a {'source' if two else 'prompt'} of {longest} tokens, and this model is made for {spec.context}: what it says after "
            "that may be poor",
            stacklevel=stacklevel + 1,
        )
    fill = spec.ids.pad if spec.ids.pad is not None else next(iter(spec.ids.eos), 0)
    return GenerationRequest(
        prompt_BT=ids, mask_BT=mask, marks_BT=marks, begun_BT=torch.full_like(ids[:, :1], spec.ids.start or 0) if two else ids,
        new=new, pad=fill, declared=rope_length, total=begun + new, params=plan, tokenizer=tokenizer, cached=cached,
    )  # fmt: skip


def new_tokens(model: Model, plan: ResolvedParams, begun: int) -> int:
    """New tokens at most after a prompt of `begun`, if the model has room for them."""
    size, hard = room(model)
    new = plan.new
    if new is None and plan.choices is not None:
        new = plan.choices.steps
    if new is None:
        new = size - begun
        if new < 1:
            raise InputError(
                f"max_new_tokens: the prompt fills the {size} tokens that this model is made for; "
                "shorten it, or say how many tokens to add"
            )
    if hard and plan.way == "contrastive" and begun + new > size:
        raise InputError(
            f"max_new_tokens: contrastive search reads its last token too, so {new} of them need {begun + new} "
            f"positions, and this model has {size}; ask for one less"
        )
    # The last new token is never fed back, so it needs no position.
    if hard and begun + new - 1 > size:
        raise InputError(
            f"max_new_tokens: {new} after a prompt of {begun} need {begun + new - 1} positions, and this model has "
            f"{size}; ask for at most {size - begun + 1}"
        )
    if plan.least > new:
        raise InputError(f"min_new_tokens: {plan.least} is more than max_new_tokens, {new}")
    return new


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


def _check_range(ids: Tensor, spec: ModelSpec, wrong: list[str]) -> None:
    vocab, name = spec.input_vocab, "vocab" if spec.source_vocab is None else "source_vocab"
    out = (ids < 0) | (ids >= vocab)
    if bool(out.any()):
        row, column = out.nonzero()[0].tolist()
        wrong.append(
            f"input_ids: {int(ids[row, column])} in row {row}, column {column} is not an id below {name} = {vocab}"
        )


def _check_positions(tokens: int, limit: int | None, what: str, wrong: list[str]) -> None:
    if limit is not None and tokens > limit:
        wrong.append(f"input_ids: a {what} of {tokens} tokens, but this model has {limit} positions; shorten it")
