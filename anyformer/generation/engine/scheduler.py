"""The scheduler: which sequences wait, which run, and what the next step reads, within a budget of tokens.

Running sequences decode first, one token each; what is left of the budget reads prompts, first come first served. Where
blocks run out, the youngest gives back all that it holds and reads its tokens again later: it then has the same logits,
and draws at the same place of its stream, so its answer is the same. The beams of a search are admitted and preempted as
one group.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from anyformer.generation.engine.request import Sequence
from anyformer.generation.engine.stats import Stats
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool

PADDING = {"cuda": 2048}
"""Padding that a pass may have, in tokens: about what another pass would cost the host."""
LITTLE = 8
"""The same on any other device."""
SHARE = 8
"""Or one for so many real tokens, if that is more."""
WHOLE = 1 << 60
"""A limit that is none."""

Chunk = tuple[Sequence, int]
"""A sequence, and how many of its tokens a pass reads."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What a step may read. By default everything at once."""

    max_num_batched_tokens: int = WHOLE
    """Tokens of a step: one of each running sequence, and as many of prompts as are left."""
    prefill_chunk: int = WHOLE
    """Tokens of one prompt at once."""
    max_pass_tokens: int = WHOLE
    """Tokens of one pass over prompts, padding included."""
    watermark: int = 0
    """Blocks for each running sequence that stay free for it when another one is admitted."""
    max_padding: int = WHOLE
    """Padding of a pass, in tokens."""
    enable_prefix_caching: bool = False
    batch_invariant: bool = False
    """Whether a prompt is read in passes of its own, of sizes that depend on nobody else."""
    lockstep: bool = False
    """Whether all prompts are read in one pass, as the rows of a static cache must be."""


@dataclass
class SchedulerOutput:
    """What a step reads."""

    decode: list[Sequence] = field(default_factory=list)
    """Sequences that read their last token, in one pass."""
    prefill: list[list[Chunk]] = field(default_factory=list)
    """Passes over prompts."""


class Scheduler:
    """Queues over a pool."""

    def __init__(self, pool: Any, limits: Limits, stats: Stats, *, speculative: bool = False) -> None:
        self.pool, self.limits, self.stats, self.speculative = pool, limits, stats, speculative
        self.blocks: KVBlockPool | None = pool if isinstance(pool, KVBlockPool) else None
        self.waiting: deque[Sequence] = deque()
        """The oldest first; a group by its first sequence."""
        self.running: list[Sequence] = []
        """Those that the pool holds, the oldest first."""
        slots = 0 if self.blocks is None else self.blocks.max_num_seqs
        self.min_chunk = max(1, min(limits.prefill_chunk // 4, limits.max_num_batched_tokens - slots))
        """Tokens of a longer prompt below which a pass is not worth it."""
        self._full = False
        """Whether the first who waits did not fit, and nothing was given back since."""
        self._bounded: list[int] = []
        """Policies whose blocks can run out."""
        self._every = 1
        """A sequence needs no new block unless its count is a multiple of this."""
        if self.blocks is not None:
            blocks = self.blocks
            self._bounded = [
                i
                for i, total in enumerate(blocks.totals)
                if total < slots * max(1, blocks.blocks_for(i, blocks.length))
            ]
            self._every = blocks.block_size if all(keep.columns == 0 for keep in blocks.policies) else 1
        else:
            self._every = WHOLE

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
        if not self.waiting or self.waiting[-1].age < sequence.age:
            self.waiting.append(sequence)
        else:
            place = bisect.bisect_left(self.waiting, sequence.age, key=lambda each: each.age)
            self.waiting.insert(place, sequence)
            self._full = self._full and place > 0

    def start(self, sequence: Sequence) -> None:
        """Count a sequence that the pool holds among the running ones."""
        if not self.running or self.running[-1].age < sequence.age:
            self.running.append(sequence)
        else:
            bisect.insort(self.running, sequence, key=lambda each: each.age)

    def remove(self, sequence: Sequence, *, wipe: bool = False) -> None:
        """Take a sequence out of the queues, wherever it is; `wipe` clears what it has written."""
        if sequence.cached is not None:
            self.pool.free(sequence.cached, wipe=wipe)
            sequence.cached = None
            self.running.remove(sequence)
            self._full = False
        elif sequence in self.waiting:
            self._full = self._full and self.waiting[0] is not sequence
            self.waiting.remove(sequence)

    def preempt(self, sequence: Sequence) -> None:
        """Let a running sequence, and the group that it belongs to, wait and read its tokens again later."""
        group = sequence.group
        for each in group:
            if each.cached is not None:
                self.remove(each)
        if all(each not in self.waiting for each in group):
            self.queue(group[0])

    def schedule(self) -> SchedulerOutput:
        """What the next step reads; room for it is taken."""
        output, short, every = SchedulerOutput(), False, self._every
        for sequence in list(self.running):
            cached = sequence.cached
            # Those that were preempted for an older one hold nothing any more.
            if cached is None:
                continue
            plain = len(sequence.tokens) - cached.count == 1 and cached.count and sequence.request.global_T is None
            if (self.speculative or not plain) and not self.decodes(sequence):
                continue
            if cached.count % every or self._reserve_one(sequence):
                output.decode.append(sequence)
            else:
                short = True
        if len(output.decode) == len(self.running) and (self._full or not self.waiting):
            return output
        if any(each.request.search is not None for each in output.decode):
            # A group that lost or lacks a member waits for it.
            output.decode = [s for s in output.decode if all(each in output.decode for each in s.group)]
        left = self.limits.max_num_batched_tokens - len(output.decode)
        picked: list[Chunk] = []
        reading = self._reading(admit=not short)
        while left > 0 and (sequence := next(reading, None)) is not None:
            source = 0 if sequence.request.source_S is None else len(sequence.request.source_S)
            taken = self._take(sequence, left - source, first=not picked)
            if not taken:
                break
            picked.append((sequence, taken))
            left -= taken + source
        output.prefill = list(self._passes(picked))
        return output

    def decodes(self, sequence: Sequence) -> bool:
        """Whether nothing but its last token is to be read, and without anything beside it."""
        cached = sequence.cached
        if cached is None or (self.speculative and sequence.forks):
            # Further answers begin where a prompt has been read.
            return False
        pending = len(sequence.tokens) - cached.count
        if not cached.count or (
            pending != 1 and not (self.speculative and len(sequence.tokens) > sequence.prompt_length)
        ):
            return False
        return sequence.request.global_T is None or cached.count >= sequence.prompt_length

    def _reserve_one(self, sequence: Sequence) -> bool:
        """Take room for one more token, from younger ones if need be."""
        return sequence.cached is not None and self._make_room(
            sequence, lambda: sequence.cached is not None and self.pool.reserve(sequence.cached, 1)
        )

    def _make_room(self, sequence: Sequence, attempt: Any) -> bool:
        """Try until it works, each time at the cost of the youngest; whether it did."""
        while not (done := attempt()):
            if not self.running or self.running[-1].age < sequence.age or self.running[-1] in sequence.group:
                return False
            youngest = self.running[-1]
            self.preempt(youngest)
            self.stats.preemptions += 1
            self._full = True
        return bool(done)

    def fork(self, sequence: Sequence) -> CachedSequence | None:
        """What a further beam of a group begins with, from younger ones if need be."""
        found: list[CachedSequence | None] = [None]

        def attempt() -> bool:
            found[0] = self.pool.fork(sequence.held)
            return found[0] is not None

        return found[0] if self._make_room(sequence, attempt) else None

    def _reading(self, *, admit: bool) -> Iterator[Sequence]:
        """Sequences that have tokens to read, the oldest first; those that wait are admitted as they are asked for."""
        for each in list(self.running):
            if each.cached is not None and not self.decodes(each):
                yield each
        while admit and self.can_admit:
            group = self.waiting[0].group
            if not self._admit(group):
                self._full = True
                return
            self.waiting.popleft()
            for sequence in group:
                self.start(sequence)
            yield from [each for each in group if not self.decodes(each)]

    def _admit(self, group: list[Sequence]) -> bool:
        """Let the pool hold sequences with room for all of their tokens; those who run keep some blocks to grow into."""
        admitted: list[Sequence] = []
        running = len(self.running)
        for sequence in group:
            cached = self._allocate(sequence, running)
            if cached is None:
                for each in admitted:
                    self.pool.free(each.held)
                    each.cached = None
                return False
            sequence.cached = cached
            admitted.append(sequence)
        return True

    def _allocate(self, sequence: Sequence, running: int) -> CachedSequence | None:
        request, pool = sequence.request, self.pool
        cached = pool.add(rope_length=request.rope_length, source_rope_length=request.source_rope_length)
        if cached is None or self.blocks is None:
            return cached
        shared = 0
        if self.limits.enable_prefix_caching and not _apart(sequence):
            shared = self.blocks.match_prefix(cached, sequence.tokens)
        new = len(sequence.tokens) - shared
        needed, kept = self.blocks.needs(cached, new), self.limits.watermark * running
        managers = self.blocks.managers
        if any(managers[i].free - needed[i] < kept for i in self._bounded) or not pool.reserve(cached, new):
            pool.free(cached)
            return None
        self.stats.cached_tokens += shared
        return cached

    def _take(self, sequence: Sequence, left: int, *, first: bool) -> int:
        """How many tokens of a sequence the step reads, given what is left of the budget; 0: none."""
        pending, limits = sequence.pending, self.limits
        if sequence.request.search is not None and len(sequence.group) > 1:
            # The last token of all beams is read together.
            pending -= 1
        prefix, whole = 0 if self.blocks is None else self.blocks.prefix, 0
        if sequence.request.source_S is not None and not sequence.held.count:
            # The decoder's tokens are read with the source.
            whole = pending
        elif sequence.request.search is not None and sequence.request.search.reads_hidden and not sequence.held.count:
            # It looks at the states of the whole prompt.
            whole = pending
        elif sequence.held.count < prefix:
            whole = min(pending, prefix)
        taken = min(pending, limits.prefill_chunk, left)
        if taken < whole:
            # What can't be split is read even if it is more than is left, or it might wait for ever.
            return whole if first else 0
        if limits.batch_invariant and taken < min(pending, limits.prefill_chunk):
            return min(pending, limits.prefill_chunk) if first else 0
        return taken if taken >= min(pending, self.min_chunk) else 0

    def _passes(self, picked: list[Chunk]) -> Iterator[list[Chunk]]:
        """Rows of like lengths read together, as long as they cost little padding; beginnings are not mixed with others."""
        if self.limits.lockstep:
            yield from [picked] if picked else []
            return
        together: list[tuple[bool, int, Sequence]] = []
        for sequence, taken in picked:
            if self.limits.batch_invariant or sequence.isolated or _apart(sequence):
                yield [(sequence, taken)]
            else:
                together.append((sequence.held.count == 0, taken, sequence))
        together.sort(key=lambda each: (not each[0], -each[1]))
        rows: list[Chunk] = []
        padding, real, kind = 0, 0, None
        for begins, taken, sequence in together:
            more = rows[0][1] - taken if rows else 0
            most = max(self.limits.max_padding, real // SHARE)
            wide = rows and rows[0][1] * (len(rows) + 1) > self.limits.max_pass_tokens
            if rows and (kind != begins or padding + more > most or wide):
                yield rows
                rows, padding, real, more = [], 0, 0, 0
            kind = begins
            padding, real = padding + more, real + taken
            rows.append((sequence, taken))
        if rows:
            yield rows

    def problems(self) -> list[str]:
        """Where the queues are wrong."""
        pool = self.blocks
        if pool is None:
            return []
        found = []
        if len(self.running) != len(pool.sequences):
            found.append(f"{len(self.running)} run, and the pool holds {len(pool.sequences)}")
        if any(each.cached is None or pool.sequences.get(each.cached.slot) is not each.cached for each in self.running):
            found.append("one runs that the pool does not hold")
        if any(each.cached is not None for each in self.waiting):
            found.append("one waits that the pool holds")
        for name, line in (("running", self.running), ("waiting", list(self.waiting))):
            ages = [each.age for each in line]
            if ages != sorted(set(ages)):
                found.append(f"those {name} are not in the order of their ages, or one is there twice")
        return found


def _apart(sequence: Sequence) -> bool:
    """Whether its prompt can't be read beside others."""
    request = sequence.request
    reads = request.prompt_logprobs is not None or (request.search is not None and request.search.reads_hidden)
    return reads or request.source_S is not None or request.global_T is not None
