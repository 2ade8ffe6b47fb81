"""Searches in an engine: their sequences are forked and freed as the policy says, and answered at its end."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

from torch import Tensor

from anyformer.generation.engine.request import Request, RequestOutput, Sequence
from anyformer.generation.search import Hypothesis, Moves

if TYPE_CHECKING:
    from anyformer.generation.engine.core import EngineCore


def advance_searches(engine: EngineCore, rows: list[Sequence], logits_BV: Tensor, hidden: Rows[Tensor] | None) -> None:
    """The next sequences of each search, forked from those before."""
    for request in dict.fromkeys(each.request for each in rows):
        index = [i for i, each in enumerate(rows) if each.request is request]
        search, mine = request.search, [rows[i] for i in index]
        if search is None or any(each.allocation is None for each in mine):
            # An older search has taken its blocks meanwhile; it is prefilled again, and asked then.
            continue
        process = functools.partial(engine.sampler.processed, sequences=mine)
        states = [hidden[i] for i in index] if search.reads_hidden and hidden is not None else []
        try:
            moves = search.advance(logits_BV[index], process, states)
        except Exception as error:
            for each in mine:
                engine.finish(each, "failed", error)
            continue
        if moves:
            _fork(engine, request, mine, moves)
        else:
            _finish(engine, request, mine, search.results)


def _fork(engine: EngineCore, request: Request, old: list[Sequence], moves: Moves) -> None:
    """Sequences with one more token each, in place of those before."""
    made = [
        Sequence(request, i, old[parent].key, [*old[parent].tokens, token], old[parent].prompt_length)
        for i, (parent, token) in enumerate(moves)
    ]
    parents = [parent for parent, _ in moves]
    for i, sequence in enumerate(old):
        engine.scheduler.running.remove(sequence)
        if i not in parents:
            engine.pool.free(sequence.kv)
            sequence.allocation = None
    request.sequences = made
    for i, sequence in enumerate(made):
        parent = old[parents[i]]
        # The last one that goes on from a sequence has what it held.
        last = parents[i] not in parents[i + 1 :]
        sequence.isolated = parent.isolated
        sequence.allocation = parent.allocation if last else engine.scheduler.fork(parent)
        if sequence.allocation is not None:
            engine.scheduler.start(sequence)
    if any(each.allocation is None for each in made):
        engine.scheduler.preempt(made[0])


def _finish(engine: EngineCore, request: Request, old: list[Sequence], found: list[Hypothesis]) -> None:
    """What a search has found, in place of its sequences."""
    for sequence in old:
        engine.scheduler.remove(sequence)
    prompt, request.sequences = old[0].tokens[: old[0].prompt_length], []
    for i, each in enumerate(found):
        reason = "stop" if each.stopped else "length"
        sequence = Sequence(request, i, 0, [*prompt, *each.ids], len(prompt), finish_reason=reason)
        sequence.logprobs = list(each.logprobs)
        request.sequences.append(sequence)
        engine.stats.new_tokens += len(each.ids)
        engine.stats.finished += 1
        engine.outputs.append(RequestOutput(request.id, i, each.ids, each.logprobs, finish_reason=reason))
    del engine.requests[request.id]
