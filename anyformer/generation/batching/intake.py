"""From what a user submits to a ticket: everything is checked before anything is taken."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.data.tokenizer import Tokenizer
from anyformer.errors import InputError
from anyformer.generation.asking.options import Options
from anyformer.generation.asking.request import Request, request
from anyformer.generation.asking.stop import StopText
from anyformer.generation.batching.schedule import Schedule
from anyformer.generation.batching.ticket import Answer, Ticket
from anyformer.generation.samplers.draw import keys
from anyformer.generation.text.stream import TextStream
from anyformer.model.model import Model

HOST = torch.device("cpu")


def make_ticket(
    model: Model,
    schedule: Schedule,
    input_ids: Any,
    options: Options,
    *,
    name: Hashable,
    arrival: int,
    tokenizer: Tokenizer | None,
    global_mask: Any,
    rope_length: int | None,
    stacklevel: int,
) -> Ticket:
    """The ticket of a request that can be served, or an error that says why it can't."""
    asked = request(
        model, one_row("input_ids", input_ids), options, attention_mask=None,
        global_mask=None if global_mask is None else one_row("global_mask", global_mask), rope_length=rope_length,
        tokenizer=tokenizer, stream=False, details=True, cached=True, stacklevel=stacklevel + 1,
    )  # fmt: skip
    plan, two = asked.plan, model.spec.topology == "encoder-decoder"
    if plan.way != "one":
        option = "num_beams" if plan.way == "beam" else "penalty_alpha"
        raise InputError(f"{option}: a search is not served beside other requests; use generate")
    prefix, begun = schedule.pool.prefix, asked.begun_BT.shape[1]
    if begun < prefix and not (two and asked.new == 1):
        raise InputError(
            f"the first {prefix} tokens of this prefix-LM see each other both ways, but the prompt has {begun}; give "
            + (
                "it to generate with use_cache=False"
                if two
                else "a longer one, or recompute with generate and use_cache=False"
            )
        )
    most = asked.new
    if plan.new is None and plan.choices is None:
        # Nobody asked for so many: they are what the context has room for.
        most = max(1, min(most, schedule.pool.length - begun + 1))
    # The last new token is never read.
    why = schedule.too_much(begun + most - 1)
    if why is not None:
        raise InputError(f"a prompt of {begun} and {most} new tokens: {why}")
    declared = asked.declared
    if declared is None and model.reads_length:
        declared = begun + most
    ticket = Ticket(
        id=name, arrival=arrival, plan=plan, prompt=tuple(asked.prompt_BT[0].tolist()), most=most, declared=declared,
        source_declared=asked.declared if two else None, source_1S=asked.prompt_BT if two else None, marks_1T=asked.marks_BT,
        prompt_logprobs=[] if asked.reads_prompt else None,
    )  # fmt: skip
    tokens = [model.spec.ids.start or 0] if two else list(ticket.prompt)
    draws = [0] if plan.greedy else keys(plan.seed, 1, samples=plan.options.n, device=HOST).tolist()
    ticket.answers = [
        Answer(ticket, i, draws[i], list(tokens), begun, stream=_stream(asked, () if two else tokens))
        for i in range(plan.options.n)
    ]
    ticket.answers[0].twins = ticket.answers[1:]
    return ticket


def one_row(name: str, given: Any) -> Any:
    """Ids of one row as (1,T)."""
    if isinstance(given, Tensor):
        found = given
    else:
        if isinstance(given, str | bytes) or not isinstance(given, Sequence):
            raise InputError(f"{name}: expected token ids, a list of them or a tensor, got {type(given).__name__}")
        try:
            found = torch.tensor(list(given))
        except (TypeError, ValueError, RuntimeError, OverflowError) as error:
            raise InputError(f"{name}: expected whole numbers: {error}") from error
    row = found[None] if found.ndim == 1 else found
    if row.ndim != 2 or row.shape[0] != 1:
        raise InputError(f"{name}: a request is one row, (tokens) or (1, tokens), got {tuple(found.shape)}")
    return row


def _stream(asked: Request, before: Sequence[int]) -> StopText | None:
    """Where an answer's text is searched for stop strings; None: there are none."""
    if not asked.plan.stop_texts or asked.tokenizer is None:
        return None
    return StopText(TextStream(asked.tokenizer, before), asked.plan.stop_texts, least=asked.plan.least)
