"""Speculative decoding: proposed tokens are read in one pass, and those that the model samples itself are kept."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from anyformer.generation.engine.proposers import Proposer
from anyformer.generation.engine.request import Sequence
from anyformer.parts.kv_pool import KVBlockPool

if TYPE_CHECKING:
    from anyformer.generation.engine.core import EngineCore


def verify(engine: EngineCore, proposer: Proposer, rows: list[Sequence]) -> None:
    """Read several proposed tokens in one pass, and keep those that the model samples itself."""
    blocks = engine.scheduler.blocks
    if blocks is None:
        raise TypeError("proposals are verified with a pool of blocks, which can go back")
    # The last token of a sequence is never read.
    room = [s.request.max_new_tokens - (len(s.tokens) - s.prompt_length) - 1 for s in rows]
    try:
        proposed = proposer.propose(rows, [max(0, min(n, proposer.most)) for n in room])
        kept = [
            (each, some)
            for each, guesses in zip(rows, proposed, strict=True)
            for some in _fitting(blocks, each, guesses)
        ]
        if not kept:
            return
        rows, proposed = [each for each, _ in kept], [guesses for _, guesses in kept]
        before = [blocks.snapshot(each.held) for each in rows]
        # A state that went back reads once more what was right after its snapshot.
        ids = [[*each.tokens[each.held.count :], *guesses] for each, guesses in kept]
        engine.stats.passes += 1
        engine.stats.proposed_tokens += sum(map(len, proposed))
        hidden_BTD = engine.runner.forward([each.held for each in rows], ids)
        logits = [
            engine.runner.logits(hidden_TD[len(new) - len(guesses) - 1 : len(new)])
            for hidden_TD, new, guesses in zip(hidden_BTD, ids, proposed, strict=True)
        ]
    except BaseException as error:
        engine.failed(rows, error)
        return
    alive, accepted = list(range(len(rows))), [0] * len(rows)
    for step in range(max(map(len, proposed)) + 1):
        sampled = engine.sampler.sample(torch.stack([logits[i][step] for i in alive]), [rows[i] for i in alive])
        for i, each in zip(list(alive), sampled, strict=True):
            engine.take(rows[i], each)
            right = step < len(proposed[i]) and proposed[i][step] == each.id
            accepted[i] += right
            if not right or rows[i].finish_reason is not None:
                alive.remove(i)
        if not alive:
            break
    engine.stats.accepted_tokens += sum(accepted)
    for i, sequence in enumerate(rows):
        if sequence.finish_reason is not None:
            engine.scheduler.remove(sequence, wipe=sequence.finish_reason == "failed")
            proposer.forget(sequence)
        elif accepted[i] < len(proposed[i]):
            known = len(ids[i]) - len(proposed[i])
            blocks.rewind(sequence.held, before[i], keep=0 if blocks.stateful else known + accepted[i])


def _fitting(blocks: KVBlockPool, sequence: Sequence, guesses: list[int]) -> list[list[int]]:
    """The proposals that there are blocks for: all, or none of them; nothing: the sequence waits for a later step."""
    known = len(sequence.tokens) - sequence.held.count
    return next(([some] for some in (guesses, []) if blocks.reserve(sequence.held, known + len(some))), [])
