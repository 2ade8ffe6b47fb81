"""Speculative decoding: a proposer says what may come next, and one pass keeps those tokens that the model samples itself."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence as Rows
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.generation.engine.request import Sequence
from anyformer.generation.samplers.batched import sample, sampling_kind, sampling_tensors
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool

if TYPE_CHECKING:
    from anyformer.generation.engine.core import EngineCore

NGRAMS = (4, 3, 2)
"""Lengths of the runs of tokens that are looked up, the surest first."""


class PromptLookup:
    """What followed when the last tokens occurred before in the sequence: texts that quote or edit repeat themselves."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._ends: defaultdict[Sequence, dict[tuple[int, ...], int]] = defaultdict(dict)
        """Behind which token each run ended last, and under () how many tokens were looked at."""

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        """Up to `most` tokens that followed the latest occurrence of the longest run; none where there is no proposal."""
        return [self._propose(each, n) for each, n in zip(sequences, most, strict=True)]

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        self._ends.pop(sequence, None)

    def _propose(self, sequence: Sequence, most: int) -> list[int]:
        ends, ids = self._ends[sequence], sequence.tokens
        # The run that ends the sequence is not yet among those that were followed by something.
        for end in range(ends.get((), 0), len(ids)):
            for size in NGRAMS:
                if size <= end:
                    ends[tuple(ids[end - size : end])] = end
        ends[()] = len(ids)
        for size in NGRAMS:
            end = ends.get(tuple(ids[-size:])) if size <= len(ids) else None
            if end is not None:
                found = ids[end : end + most]
                # Where the sequence ends, the proposal goes on with its own beginning.
                while found and len(found) < most:
                    found += found[: most - len(found)]
                return found
        return []


class DraftModel:
    """A smaller model with the same vocabulary, which goes on by itself for a few tokens.

    It samples with the same numbers as the model, so it says what the model would say if both thought alike.
    """

    def __init__(self, model: Model, sequences: int, length: int, most: int) -> None:
        if model.spec.topology != "decoder":
            raise InputError("draft: tokens are proposed by a decoder; give one with the same vocabulary")
        self.model, self.most = model, most
        decoder: Any = model.decoder
        self.length: int = length if decoder.limit is None else min(length, decoder.limit)
        self.pool: KVBlockPool = model.new_pool(sequences, self.length, chunk=self.length)
        self.runner = ModelRunner(model, self.pool)
        self._kv: dict[Sequence, CachedSequence] = {}
        self._computed: dict[Sequence, list[int]] = {}
        """The tokens whose keys and values are there."""

    def propose(self, sequences: Rows[Sequence], most: Rows[int]) -> list[list[int]]:
        """Up to `most` tokens that the smaller model would say; it runs in eval mode, and gets its mode back."""
        found: list[list[int]] = [[] for _ in sequences]
        # A prefix that sees itself both ways must be there as a whole.
        least = max(1, self.pool.prefix)
        some = [
            i for i, each in enumerate(sequences)
            if most[i] > 0 and least <= len(each.tokens) and len(each.tokens) + most[i] <= self.length
        ]  # fmt: skip
        if not some:
            return found
        with eval_mode(self.model):
            kv, logits_BV = self._prefill([sequences[i] for i in some])
            while True:
                arguments = [(*sequences[i].sampling[:-1], sequences[i].num_new_tokens + len(found[i])) for i in some]
                given = sampling_tensors(arguments, self.pool.device)
                ids = sample(logits_BV, *given, kind=sampling_kind(arguments)).tolist()
                for i, token in zip(some, ids, strict=True):
                    found[i].append(token)
                # A sequence that has its proposals computes no further: it may have no room for more.
                left = [k for k, i in enumerate(some) if len(found[i]) < most[i]]
                if not left:
                    return found
                some, kv, ids = [some[k] for k in left], [kv[k] for k in left], [ids[k] for k in left]
                for each in kv:
                    self.pool.grow(each, 1)
                logits_BV = self.runner.decode(kv, ids)
                for i in some:
                    self._computed[sequences[i]].append(found[i][-1])

    def forget(self, sequence: Sequence) -> None:
        """A sequence has ended."""
        kv = self._kv.pop(sequence, None)
        self._computed.pop(sequence, None)
        if kv is not None:
            self.pool.free(kv)

    def _rewound(self, sequence: Sequence) -> CachedSequence:
        """What is kept of a sequence, gone back to where its tokens are still the same, with at least one to compute."""
        computed, ids = self._computed.setdefault(sequence, []), sequence.tokens
        same = 0
        while same < min(len(computed), len(ids) - 1) and computed[same] == ids[same]:
            same += 1
        kv = self._kv.get(sequence)
        if kv is not None and same < len(computed):
            if self.pool.stateful:
                self.pool.free(kv)
                kv = None
            else:
                self.pool.rewind(kv, same)
        if kv is None:
            kv, same = self.pool.add(), 0
        if kv is None:
            raise InputError(f"all {self.pool.max_num_seqs} slots of the draft's pool are taken")
        del computed[same:]
        self._kv[sequence] = kv
        return kv

    def _prefill(self, rows: list[Sequence]) -> tuple[list[CachedSequence], Tensor]:
        """What is kept of each sequence when all of its tokens are computed, and the logits (B,V) after them."""
        kv = [self._rewound(each) for each in rows]
        new = [row.tokens[each.num_computed_tokens :] for row, each in zip(rows, kv, strict=True)]
        for each, ids in zip(kv, new, strict=True):
            self.pool.grow(each, len(ids))
        hidden_BTD = self.runner.forward(kv, new)
        # Only what was computed counts: a pass that fails may be made again.
        for row, ids in zip(rows, new, strict=True):
            self._computed[row] += ids
        return kv, self.runner.last_logits(hidden_BTD, [len(ids) for ids in new])


Proposer = PromptLookup | DraftModel
"""Proposes the next tokens of some sequences, at most `most` at once."""


def make_proposer(
    model: Model, sequences: int, length: int, *, draft: Model | None, lookup: bool, guesses: int
) -> Proposer | None:
    """What proposes tokens, if anything does."""
    if draft is None:
        return PromptLookup(guesses) if lookup else None
    if model.spec.vocab != draft.spec.vocab:
        raise InputError(
            f"draft: has {draft.spec.vocab} tokens and the model {model.spec.vocab}; both must have the same vocabulary"
        )
    devices = {next(m.parameters()).device for m in (model, draft)}
    if len(devices) > 1:
        raise InputError(f"draft: it is not where the model is: {', '.join(sorted(map(str, devices)))}")
    return DraftModel(draft, sequences, length, guesses)


def verify(engine: EngineCore, proposer: Proposer, rows: list[Sequence]) -> None:
    """Compute several proposed tokens in one pass, and keep those that the model samples itself."""
    blocks = engine.scheduler.blocks
    if blocks is None:
        raise TypeError("proposals are verified with a pool of blocks, which can go back")
    # The last token of a sequence is never computed.
    left = [s.request.max_new_tokens - s.num_new_tokens - 1 for s in rows]
    try:
        proposed = proposer.propose(rows, [max(0, min(n, proposer.most)) for n in left])
        fitting: list[tuple[Sequence, list[int]]] = []
        for each, found in zip(rows, proposed, strict=True):
            guesses = found if each.guide is None else each.guide.fitting(found)
            pending = len(each.tokens) - each.kv.num_computed_tokens
            # All proposals, or none of them; one without blocks for that waits for a later step.
            if blocks.reserve(each.kv, pending + len(guesses)):
                fitting.append((each, guesses))
            elif blocks.reserve(each.kv, pending):
                fitting.append((each, []))
        if not fitting:
            return
        rows, proposed = [each for each, _ in fitting], [guesses for _, guesses in fitting]
        before = [blocks.snapshot(each.kv) for each in rows]
        # A state that went back computes once more what was right after its snapshot.
        ids = [[*each.tokens[each.kv.num_computed_tokens :], *guesses] for each, guesses in fitting]
        engine.stats.passes += 1
        engine.stats.proposed_tokens += sum(map(len, proposed))
        hidden_BTD = engine.runner.forward([each.kv for each in rows], ids)
        logits = [
            engine.runner.logits(hidden_TD[len(new) - len(guesses) - 1 : len(new)])
            for hidden_TD, new, guesses in zip(hidden_BTD, ids, proposed, strict=True)
        ]
    except BaseException as error:
        engine.retry_alone(rows, error)
        return
    alive, accepted = list(range(len(rows))), [0] * len(rows)
    for step in range(max(map(len, proposed)) + 1):
        sampled = engine.sampler.sample(torch.stack([logits[i][step] for i in alive]), [rows[i] for i in alive])
        for i, each in zip(list(alive), sampled, strict=True):
            engine.append_token(rows[i], each)
            right = step < len(proposed[i]) and proposed[i][step] == each.id
            accepted[i] += right
            if not right or rows[i].finish_reason is not None:
                alive.remove(i)
        if not alive:
            break
    engine.stats.accepted_tokens += sum(accepted)
    for i, sequence in enumerate(rows):
        if not engine.release_if_finished(sequence) and accepted[i] < len(proposed[i]):
            count, states = before[i]
            # A state went too far; of keys those of the wrong tokens are dropped.
            right = 0 if blocks.stateful else len(ids[i]) - len(proposed[i]) + accepted[i]
            blocks.rewind(sequence.kv, count + right, states)
