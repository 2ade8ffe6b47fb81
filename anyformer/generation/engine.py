"""`generate`: continue token ids, one token at a time."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.generation.reader import Anew, Cached
from anyformer.generation.request import Request, request, unknown_option
from anyformer.generation.sampling import NEVER, only
from anyformer.model.models import Model
from anyformer.model.reading import reading


class Step(NamedTuple):
    """One step of a stream with details."""

    ids_B: Tensor
    logprobs_B: Tensor
    """Natural logarithms of the model's own probabilities, before temperature and filters; 0 in finished rows."""
    finished_B: Tensor
    """Rows that met a stop token, in this step or before."""


@dataclass(frozen=True, kw_only=True)
class Generated:
    """What `generate` gives with details."""

    ids: Tensor
    """What it gives without them."""
    logprobs: Tensor
    """(B, steps): natural logarithms of the model's own probabilities of the new tokens, before temperature and
    filters; 0 in finished rows."""
    lengths: tuple[int, ...]
    """New tokens of each row, its stop token included."""
    reasons: tuple[str, ...]
    """Why each row ended: `length` or `stop`."""


def generate(
    model: Model,
    input_ids: Tensor,
    *,
    attention_mask: Tensor | None = None,
    global_mask: Tensor | None = None,
    max_new_tokens: int | None = None,
    min_new_tokens: int = 0,
    temperature: float | None = None,
    top_k: int | None = None,
    top_p: float | None = None,
    do_sample: bool | None = None,
    seed: int | None = None,
    stop: Any = None,
    stream: bool = False,
    details: bool = False,
    use_cache: bool = True,
    rope_length: int | None = None,
    first: Sequence[int] | None = None,
    **unknown: Any,
) -> Any:
    """Continue each row of `input_ids` (B,T): the prompt and its new tokens, as one tensor of ids.

    An encoder-decoder reads `input_ids` as its source and answers the decoder's ids, the start token first.

    Args:
        model: A decoder or an encoder-decoder with an lm head. It runs in eval mode, and gets its mode back.
        input_ids: Token ids. Rows of different lengths are padded, on either side.
        attention_mask: (B,T), 1 is real; None: all are.
        global_mask: (B,T), 1 is a global token of the prompt (or source), where a pattern has `global_tokens`.
        max_new_tokens: None: as many as the model's context has room for.
        min_new_tokens: No row stops before it.
        temperature: None or 0 takes the likeliest token (None with do_sample: 1); else logits are divided by it.
        top_k: Draw from the k likeliest tokens.
        top_p: Draw from the fewest tokens that together have this probability.
        do_sample: None: draw if there is a temperature.
        seed: The same seed draws the same tokens. None: torch's own generator.
        stop: Ids that end a row. None: the spec's eos ids; (): never. A finished row is filled with the pad id
            (without one: the first eos id, else 0).
        stream: Yield a (B,) tensor of ids after each step instead; the model is in eval mode until the stream ends.
        details: Answer a `Generated` (each step of a stream: a `Step`), with log-probabilities and finish reasons.
        use_cache: False reads the whole row again in each step: slow, with the same tokens.
        rope_length: What length-dependent RoPE scalings read. None: the longest prompt and its new tokens.
        first: Ids among which the first new token of each row is chosen. None: all.
        unknown: Any other name is refused, with the right one.
    """
    if unknown:
        raise unknown_option(unknown)
    asked = request(
        model, input_ids, attention_mask=attention_mask, global_mask=global_mask, max_new_tokens=max_new_tokens,
        min_new_tokens=min_new_tokens,
        temperature=temperature, top_k=top_k, top_p=top_p, do_sample=do_sample, seed=seed, stop=stop,
        rope_length=rope_length, first=first,
    )  # fmt: skip
    steps = _steps(model, asked, cached=use_cache, details=details)
    if stream:
        return steps if details else _ids(steps)
    taken = list(steps)
    ids = torch.cat((asked.begun_BT, torch.stack([step.ids_B for step in taken], 1)), 1)
    if not details:
        return ids
    # A step counts for a row that had not finished before it.
    counts_B = len(taken) - torch.stack([step.finished_B for step in taken], 1)[:, :-1].sum(-1)
    return Generated(
        ids=ids,
        logprobs=torch.stack([step.logprobs_B for step in taken], 1),
        lengths=tuple(counts_B.tolist()),
        reasons=tuple("stop" if each else "length" for each in taken[-1].finished_B.tolist()),
    )


def _ids(steps: Generator[Step]) -> Iterator[Tensor]:
    """The ids of each step. Closing this stream closes the other one, so that the model gets its mode back at once."""
    with contextlib.closing(steps):
        for step in steps:
            yield step.ids_B


def _steps(model: Model, asked: Request, *, cached: bool, details: bool) -> Generator[Step]:
    """Choose tokens until all rows have finished or enough are there."""
    rows, device = asked.prompt_BT.shape[0], asked.prompt_BT.device
    finished_B = torch.zeros(rows, dtype=torch.bool, device=device)
    stop_S = torch.tensor(asked.stop, dtype=torch.long, device=device)
    logprobs_B = torch.zeros(rows, device=device)
    with reading(model):
        reader = (Cached if cached else Anew)(model, asked)
        logits_BV = reader.begin()
        for left in range(asked.new - 1, -1, -1):
            early = asked.new - left <= asked.least and bool(asked.stop)
            allowed_BV = logits_BV.index_fill(-1, stop_S, NEVER) if early else logits_BV
            if asked.first and left == asked.new - 1:
                allowed_BV = only(allowed_BV, asked.first)
            ids_B = asked.sampler(allowed_BV)
            if details:
                own_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
                logprobs_B = own_BV.gather(-1, ids_B[:, None])[:, 0].masked_fill(finished_B, 0)
            if asked.stop:
                ids_B = ids_B.masked_fill(finished_B, asked.pad)
                finished_B = finished_B | (ids_B[:, None] == stop_S).any(-1)
            yield Step(ids_B, logprobs_B, finished_B)
            if not left or (asked.stop and bool(finished_B.all())):
                return
            logits_BV = reader.go_on(ids_B)
