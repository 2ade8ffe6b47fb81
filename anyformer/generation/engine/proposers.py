"""Proposers: what may come next, said by something cheaper than the model that decides."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from typing import Any, Protocol

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.request import Sequence
from anyformer.generation.engine.sampler import SamplingState
from anyformer.generation.samplers.batched import sample
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool

NGRAMS = (4, 3, 2)
"""Lengths of the runs of tokens that are looked up, the surest first."""


class Proposer(Protocol):
    """Proposes the next tokens of some sequences."""

    most: int
    """Tokens that are proposed at once."""

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        """Up to `most` tokens that may follow each sequence; none where there is no proposal."""
        ...

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        ...


class PromptLookup:
    """What followed when the last tokens occurred before in the same sequence: texts that are edited, quoted or
    summarised repeat themselves. It costs no model.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._places: dict[Sequence, dict[tuple[int, ...], int]] = {}
        """Behind which token each run ended last."""
        self._read: dict[Sequence, int] = {}
        """How many tokens are in that table."""

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        """The tokens after the latest occurrence of the longest run."""
        return [self._propose(each, n) for each, n in zip(sequences, most, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        self._places.pop(sequence, None)
        self._read.pop(sequence, None)

    def _propose(self, sequence: Sequence, most: int) -> list[int]:
        places, ids = self._places.setdefault(sequence, {}), sequence.tokens
        # The run that ends the sequence is not yet among those that were followed by something.
        for end in range(self._read.get(sequence, 0), len(ids)):
            for size in NGRAMS:
                if size <= end:
                    places[tuple(ids[end - size : end])] = end
        self._read[sequence] = len(ids)
        for size in NGRAMS:
            place = places.get(tuple(ids[-size:])) if size <= len(ids) else None
            if place is not None:
                return _follow(ids, place, most)
        return []


def _follow(ids: list[int], place: int, most: int) -> list[int]:
    """The tokens from a place on; where the sequence ends, the proposal goes on with its own beginning."""
    found = ids[place : place + most]
    while found and len(found) < most:
        found += found[: most - len(found)]
    return found


class DraftModel:
    """A smaller model with the same vocabulary, which goes on by itself for a few tokens.

    It samples with the same numbers as the model, so it says what the model would say if both thought alike.
    """

    def __init__(self, model: Model, sequences: int, length: int, most: int) -> None:
        if model.spec.topology != "decoder":
            raise InputError("draft: tokens are proposed by a decoder; give one with the same vocabulary")
        self.model, self.most = model, most
        decoder: Any = model.decoder
        limit: int | None = decoder.limit
        self.length = length if limit is None else min(length, limit)
        self.pool: KVBlockPool = model.new_pool(sequences, self.length, chunk=self.length)
        self.runner = ModelRunner(model, self.pool)
        self._cached: dict[Sequence, CachedSequence] = {}
        self._fed: dict[Sequence, list[int]] = {}
        """The tokens that were read."""

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        """What the smaller model would say; it runs in eval mode, and gets its mode back."""
        found: list[list[int]] = [[] for _ in sequences]
        # A prefix that is read both ways must be there as a whole.
        least = max(1, self.pool.prefix)
        some = [
            i for i, each in enumerate(sequences)
            if most[i] > 0 and least <= len(each.tokens) and len(each.tokens) + most[i] <= self.length
        ]  # fmt: skip
        if some:
            with eval_mode(self.model):
                self._propose(sequences, most, some, found)
        return found

    def forget(self, sequence: Sequence) -> None:
        cached = self._cached.pop(sequence, None)
        self._fed.pop(sequence, None)
        if cached is not None:
            self.pool.free(cached)

    def _propose(self, sequences: Rows[Sequence], most: Rows[int], some: list[int], found: list[list[int]]) -> None:
        rows = [sequences[i] for i in some]
        cached = [self._rewound(each) for each in rows]
        logits_BV = self._prefill(rows, cached)
        while True:
            state = SamplingState.of([sequences[i] for i in some])
            *given, steps_B = state.tensors(self.pool.device)
            ahead_B = torch.tensor([len(found[i]) for i in some], device=self.pool.device)
            ids = sample(logits_BV, *given, steps_B + ahead_B, kind=state.kind).tolist()
            for i, token in zip(some, ids, strict=True):
                found[i].append(token)
            # A sequence that has its proposals reads no further: it may have no room for more.
            left = [k for k, i in enumerate(some) if len(found[i]) < most[i]]
            if not left:
                return
            some, cached, ids = [some[k] for k in left], [cached[k] for k in left], [ids[k] for k in left]
            for each in cached:
                self.pool.grow(each, 1)
            logits_BV = self.runner.decode(cached, ids)
            for i in some:
                self._fed[sequences[i]].append(found[i][-1])

    def _rewound(self, sequence: Sequence) -> CachedSequence:
        """What is kept of a sequence, gone back to where its tokens are still the same, and at least one is left to read."""
        fed, ids = self._fed.setdefault(sequence, []), sequence.tokens
        same = 0
        while same < min(len(fed), len(ids) - 1) and fed[same] == ids[same]:
            same += 1
        cached = self._cached.get(sequence)
        if cached is not None and same < len(fed):
            if self.pool.stateful:
                self.pool.free(cached)
                cached = None
            else:
                self.pool.rewind(cached, self.pool.snapshot(cached).before(cached.count - same))
        if cached is None:
            cached, same = self.pool.allocate(0), 0
        del fed[same:]
        self._cached[sequence] = cached
        return cached

    def _prefill(self, rows: list[Sequence], cached: list[CachedSequence]) -> Tensor:
        new = [row.tokens[each.count :] for row, each in zip(rows, cached, strict=True)]
        for each, ids in zip(cached, new, strict=True):
            self.pool.grow(each, len(ids))
        hidden_BTD = self.runner.forward(cached, new)
        # Only what was read counts: a pass that fails may be made again.
        for row, ids in zip(rows, new, strict=True):
            self._fed[row] += ids
        return self.runner.logits(self.runner.last(hidden_BTD, [len(ids) for ids in new]))


def check_draft(model: Model, draft: Model) -> None:
    """Refuse a draft whose tokens are not the model's."""
    if model.spec.vocab != draft.spec.vocab:
        raise InputError(
            f"draft: has {draft.spec.vocab} tokens and the model {model.spec.vocab}; both must have the same vocabulary"
        )
    devices = {next(m.parameters()).device for m in (model, draft)}
    if len(devices) > 1:
        raise InputError(f"draft: it is not where the model is: {', '.join(sorted(map(str, devices)))}")
