"""The scheduler: which sequences wait, which run, and what the next step computes, within a budget of tokens.

Running sequences decode first, one token each; what is left of the budget goes to prefill, first come first served. Where
blocks run out, the youngest gives back all that it holds and is prefilled again later: it then has the same logits, and
draws at the same place of its stream, so its answer is the same. The beams of a search are admitted and preempted as one
group.
"""

import bisect
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.generation.engine.request import Sequence
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool, Pool

PADDING = {"cuda": 2048}
"""Padding that a pass may have, in tokens: about what another pass would cost the host."""
LITTLE = 8
"""The same on any other device."""
SHARE = 8
"""Or one for so many real tokens, if that is more."""
WHOLE = 1 << 60
"""A limit that is none."""

Chunk = tuple[Sequence, int]
"""A sequence, and how many of its tokens a pass computes."""


@dataclass
class Stats:
    """What an engine has done so far, in numbers."""

    seconds: float = 0.0
    steps: int = 0
    passes: int = 0
    """Runs of the model: a step has one for all rows that decode, and some for prefill."""
    new_tokens: int = 0
    decode_tokens: int = 0
    prefill_tokens: int = 0
    """Computed tokens of prompts, again after a preemption too."""
    source_tokens: int = 0
    cached_tokens: int = 0
    """Tokens that were not computed, as cached blocks held them already."""
    forked_tokens: int = 0
    """Tokens that further answers of a request share with the first one."""
    padding_tokens: int = 0
    """Computed beside, to make the rows of a pass equally long."""
    proposed_tokens: int = 0
    accepted_tokens: int = 0
    preemptions: int = 0
    retries: int = 0
    """Requests that begin again alone, as a pass with others failed."""
    finished: int = 0
    """Answers that ended, whatever the reason."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a step may compute. By default everything at once."""

    max_num_batched_tokens: int = WHOLE
    """Tokens of a step: one of each running sequence, and as many of prompts as are left."""
    prefill_chunk: int = WHOLE
    """Tokens of one prompt at once."""
    max_pass_tokens: int = WHOLE
    """Tokens of one prefill pass, padding included."""
    watermark: int = 0
    """Blocks for each running sequence that stay free for it when another one is admitted."""
    max_padding: int = WHOLE
    enable_prefix_caching: bool = False
    batch_invariant: bool = False
    """Whether a prompt has prefill passes of its own, of sizes that depend on nobody else."""
    lockstep: bool = False
    """Whether all prompts share one pass, as the rows of a static cache must."""


class Scheduler:
    """Queues over a pool."""

    def __init__(self, pool: Pool, limits: Limits, stats: Stats, *, speculative: bool = False) -> None:
        self.pool, self.limits, self.stats, self.speculative = pool, limits, stats, speculative
        self.blocks: KVBlockPool | None = pool if isinstance(pool, KVBlockPool) else None
        self.waiting: deque[Sequence] = deque()
        """The oldest first; a group by its first sequence."""
        self.running: list[Sequence] = []
        """Those that the pool holds, the oldest first."""
        self._full = False
        """Whether the first who waits did not fit, and nothing was given back since."""
        self._bounded: list[int] = []
        """Policies whose blocks can run out."""
        self._every, slots = WHOLE, 0
        """A sequence needs no new block unless its number of computed tokens is a multiple of this."""
        if self.blocks is not None:
            blocks, slots = self.blocks, self.blocks.max_num_seqs
            most = [slots * max(1, blocks.blocks_for(i, blocks.length)) for i in range(len(blocks.totals))]
            self._bounded = [i for i, total in enumerate(blocks.totals) if total < most[i]]
            self._every = blocks.block_size if all(keep.columns == 0 for keep in blocks.policies) else 1
        self.min_chunk = max(1, min(limits.prefill_chunk // 4, limits.max_num_batched_tokens - slots))
        """Tokens of a longer prompt below which a pass is not worth it."""

    def too_much(self, tokens: int, sequences: int = 1) -> str | None:
        """Why so many tokens of each of some sequences can never be held at once; None: they can."""
        pool = self.blocks
        if pool is None:
            return None
        if tokens > pool.length:
            return f"{tokens} tokens, and the engine serves up to {pool.length} of a sequence; make it with a larger max_model_len"
        if sequences > pool.max_num_seqs:
            return f"{sequences} sequences at once, and the engine has {pool.max_num_seqs}; make it with a larger max_num_seqs"
        for i in self._bounded:
            needed = sequences * max(1, pool.blocks_for(i, tokens))
            if needed > pool.totals[i]:
                return f"{tokens} tokens take {needed} blocks, and the engine has {pool.totals[i]}; make it with more num_blocks"
        return None

    @property
    def can_admit(self) -> bool:
        """Whether somebody waits who may fit."""
        return bool(self.waiting) and not self._full

    def queue(self, sequence: Sequence) -> None:
        """Let a sequence wait, in the order of ages."""
        place = bisect.bisect_left(self.waiting, sequence.age, key=lambda each: each.age)
        self.waiting.insert(place, sequence)
        self._full = self._full and place > 0

    def start(self, sequence: Sequence) -> None:
        """Count a sequence that the pool holds among the running ones."""
        bisect.insort(self.running, sequence, key=lambda each: each.age)

    def remove(self, sequence: Sequence, *, wipe: bool = False) -> None:
        """Take a sequence out of the queues, wherever it is; `wipe` clears what it has written."""
        if sequence.allocation is not None:
            self.pool.free(sequence.allocation, wipe=wipe)
            sequence.allocation = None
            self.running.remove(sequence)
            self._full = False
        elif sequence in self.waiting:
            self._full = self._full and self.waiting[0] is not sequence
            self.waiting.remove(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Let a running sequence, and the group that it belongs to, wait to be prefilled again."""
        group = sequence.group
        for each in group:
            if each.allocation is not None:
                self.remove(each)
        if all(each not in self.waiting for each in group):
            self.queue(group[0])

    def schedule(self) -> tuple[list[Sequence], list[list[Chunk]]]:
        """What the next step computes: sequences that decode, and passes over prompts. Room for it is allocated."""
        decode: list[Sequence] = []
        short, every = False, self._every
        for sequence in list(self.running):
            kv = sequence.allocation
            # Those that were preempted for an older one hold nothing any more.
            if kv is None:
                continue
            computed = kv.num_computed_tokens
            plain = len(sequence.tokens) - computed == 1 and computed and sequence.request.global_T is None
            if (self.speculative or not plain) and not self.decodes(sequence):
                continue
            if computed % every or self._reserve_one(sequence):
                decode.append(sequence)
            else:
                short = True
        if len(decode) == len(self.running) and (self._full or not self.waiting):
            return decode, []
        if any(each.request.search is not None for each in decode):
            # A group that lost or lacks a member waits for it.
            decode = [sequence for sequence in decode if all(each in decode for each in sequence.group)]
        left = self.limits.max_num_batched_tokens - len(decode)
        chunks: list[Chunk] = []
        prefilling = self._prefilling(admit=not short)
        while left > 0 and (sequence := next(prefilling, None)) is not None:
            source = 0 if sequence.request.source_S is None else len(sequence.request.source_S)
            size = self._chunk_size(sequence, left - source, first=not chunks)
            if not size:
                break
            chunks.append((sequence, size))
            left -= size + source
        return decode, list(self._passes(chunks))

    def decodes(self, sequence: Sequence) -> bool:
        """Whether nothing but its last token is to be computed, and without anything beside it."""
        kv = sequence.allocation
        if kv is None or not kv.num_computed_tokens or (self.speculative and sequence.forks):
            # Further answers are forked off at the end of prefill.
            return False
        if len(sequence.tokens) - kv.num_computed_tokens != 1 and not (self.speculative and sequence.num_new_tokens):
            return False
        return sequence.request.global_T is None or kv.num_computed_tokens >= sequence.prompt_length

    def _preempt_for(self, sequence: Sequence) -> bool:
        """Preempt the youngest sequence for an older one; False: there is none."""
        if not self.running or self.running[-1].age < sequence.age or self.running[-1] in sequence.group:
            return False
        self.preempt(self.running[-1])
        self.stats.preemptions += 1
        self._full = True
        return True

    def _reserve_one(self, sequence: Sequence) -> bool:
        """Allocate room for one more token, at the cost of younger ones if need be."""
        while not (done := self.pool.reserve(sequence.kv, 1)) and self._preempt_for(sequence):
            pass
        return done

    def fork(self, sequence: Sequence) -> CachedSequence | None:
        """A copy of what the pool holds of a sequence, at the cost of younger ones if need be; None: there is no room."""
        while (twin := self.pool.fork(sequence.kv)) is None and self._preempt_for(sequence):
            pass
        return twin

    def _prefilling(self, *, admit: bool) -> Iterator[Sequence]:
        """Sequences with a prefill to do, the oldest first; those that wait are admitted as they are asked for."""
        for each in list(self.running):
            if each.allocation is not None and not self.decodes(each):
                yield each
        while admit and self.can_admit:
            group, running = self.waiting[0].group, len(self.running)
            for sequence in group:
                sequence.allocation = self._allocate(sequence, running)
                if sequence.allocation is None:
                    break
            else:
                self.waiting.popleft()
                if group[0].request.scheduled is None:
                    group[0].request.scheduled = time.monotonic()
                for sequence in group:
                    self.start(sequence)
                yield from [each for each in group if not self.decodes(each)]
                continue
            for sequence in group:
                if sequence.allocation is not None:
                    self.pool.free(sequence.allocation)
                    sequence.allocation = None
            self._full = True

    def _allocate(self, sequence: Sequence, running: int) -> CachedSequence | None:
        """Room for all tokens of a sequence; those who run keep some blocks to grow into. None: there is not enough."""
        request, pool = sequence.request, self.pool
        kv = pool.add(rope_length=request.rope_length, source_rope_length=request.source_rope_length)
        if kv is None or self.blocks is None:
            return kv
        kv.cache_salt = request.cache_salt
        cached = 0
        if self.limits.enable_prefix_caching and not request.prefills_alone:
            cached = self.blocks.match_prefix(kv, sequence.tokens)
        new = len(sequence.tokens) - cached
        needed, kept = self.blocks.needs(kv, new), self.limits.watermark * running
        managers = self.blocks.managers
        if any(managers[i].free - needed[i] < kept for i in self._bounded) or not pool.reserve(kv, new):
            pool.free(kv)
            return None
        self.stats.cached_tokens += cached
        if request.scheduled is None:
            request.num_cached_tokens = cached
        return kv

    def _chunk_size(self, sequence: Sequence, left: int, *, first: bool) -> int:
        """How many tokens of a sequence the step computes, given what is left of the budget; 0: none."""
        request, limits, computed = sequence.request, self.limits, sequence.kv.num_computed_tokens
        pending = len(sequence.tokens) - computed
        if request.search is not None and len(sequence.group) > 1:
            # The last token of all beams is computed together.
            pending -= 1
        prefix, whole = 0 if self.blocks is None else self.blocks.prefix, 0
        if not computed and (
            request.source_S is not None or (request.search is not None and request.search.reads_hidden)
        ):
            # The decoder's tokens go with the source, and a search may look at the states of the whole prompt.
            whole = pending
        elif computed < prefix:
            whole = min(pending, prefix)
        size = min(pending, limits.prefill_chunk, left)
        if size < whole:
            # What can't be split is computed even if it is more than is left, or it might wait for ever.
            return whole if first else 0
        if limits.batch_invariant and size < min(pending, limits.prefill_chunk):
            return min(pending, limits.prefill_chunk) if first else 0
        return size if size >= min(pending, self.min_chunk) else 0

    def _passes(self, chunks: list[Chunk]) -> Iterator[list[Chunk]]:
        """Chunks of like sizes in one pass, as long as they cost little padding; first chunks are not mixed with others."""
        if self.limits.lockstep:
            yield from [chunks] if chunks else []
            return
        together: list[tuple[bool, int, Sequence]] = []
        for sequence, size in chunks:
            if self.limits.batch_invariant or sequence.isolated or sequence.request.prefills_alone:
                yield [(sequence, size)]
            else:
                together.append((sequence.kv.num_computed_tokens == 0, size, sequence))
        together.sort(key=lambda each: (not each[0], -each[1]))
        rows: list[Chunk] = []
        padding, real, kind = 0, 0, None
        for begins, size, sequence in together:
            more = rows[0][1] - size if rows else 0
            most = max(self.limits.max_padding, real // SHARE)
            wide = rows and rows[0][1] * (len(rows) + 1) > self.limits.max_pass_tokens
            if rows and (kind != begins or padding + more > most or wide):
                yield rows
                rows, padding, real, more = [], 0, 0, 0
            kind = begins
            padding, real = padding + more, real + size
            rows.append((sequence, size))
        if rows:
            yield rows
