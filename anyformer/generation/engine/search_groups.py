"""Searches in an engine: their sequences are forked and freed as the policy says, and answered at its end."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from anyformer.generation.engine.request import Event, Request, Sequence

if TYPE_CHECKING:
    from anyformer.generation.engine.core import EngineCore


def advance_searches(engine: EngineCore, rows: list[Sequence], logits_BV: Tensor, hidden: Rows[Tensor] | None) -> None:
    """The next sequences of each search, forked from those before."""
    for request in dict.fromkeys(each.request for each in rows):
        index = [i for i, each in enumerate(rows) if each.request is request]
        search, mine = request.search, [rows[i] for i in index]
        if any(each.cached is None for each in mine):
            # An older search has taken its blocks meanwhile; it reads its tokens again, and is asked then.
            continue
        if search is None:
            raise TypeError("a search and plain sequences are read in passes of their own")
        states = None
        if search.reads_hidden and hidden is not None:
            states = torch.stack([hidden[i][-1] for i in index])
        try:
            if len(mine[0].tokens) == mine[0].prompt_length:
                search.begin(None if hidden is None else hidden[index[0]])
            moves = search.advance(
                logits_BV[index], lambda logits, mine=mine: engine.sampler.filtered(logits, mine), states
            )
        except Exception as error:
            for each in mine:
                engine.end(each, "failed", error)
            continue
        if moves:
            _move(engine, request, mine, moves)
        else:
            _answer(engine, request, mine)


def _move(engine: EngineCore, request: Request, old: list[Sequence], moves: list[tuple[int, int]]) -> None:
    """Sequences with one more token each, in place of those before."""
    made = [
        Sequence(request, i, old[parent].key, [*old[parent].tokens, token], old[parent].prompt_length)
        for i, (parent, token) in enumerate(moves)
    ]
    parents = [parent for parent, _ in moves]
    for i, sequence in enumerate(old):
        engine.scheduler.running.remove(sequence)
        if i not in parents:
            engine.pool.free(sequence.held)
            sequence.cached = None
    request.sequences = made
    for i, sequence in enumerate(made):
        parent = old[parents[i]]
        # The last one that goes on from a sequence has what it held.
        last = parents[i] not in parents[i + 1 :]
        sequence.isolated = parent.isolated
        sequence.cached = parent.held if last else engine.scheduler.fork(parent)
        if sequence.cached is not None:
            engine.scheduler.start(sequence)
    if any(each.cached is None for each in made):
        engine.scheduler.preempt(made[0])


def _answer(engine: EngineCore, request: Request, old: list[Sequence]) -> None:
    """What a search has found, in place of its sequences."""
    for sequence in old:
        engine.scheduler.remove(sequence)
    found = [] if request.search is None else request.search.results
    request.sequences = [
        Sequence(
            request, i, 0, [*old[0].tokens[: old[0].prompt_length], *each.ids], old[0].prompt_length,
            finish_reason="stop" if each.stopped else "length", logprobs=list(each.logprobs),
        )
        for i, each in enumerate(found)
    ]  # fmt: skip
    for sequence, each in zip(request.sequences, found, strict=True):
        engine.stats.new_tokens += len(each.ids)
        engine.stats.finished += 1
        engine.events.append(
            Event(request.id, sequence.index, each.ids, each.logprobs, finish_reason=sequence.finish_reason)
        )
    del engine.requests[request.id]
