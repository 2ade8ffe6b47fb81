"""The schedule: who waits, who runs, and what the next step reads, within a budget of tokens.

Running answers go on first, by one token each; what is left of the budget reads prompts, first come first served. Where
pages run out, the youngest answer gives back all that it holds and reads its tokens again later: it then has the same
logits, and draws at the same place of its stream, so its answer is the same.
"""

from __future__ import annotations

import bisect
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field

from anyformer.generation.batching.stats import Stats
from anyformer.generation.batching.ticket import Answer
from anyformer.parts.paged import table_width
from anyformer.parts.pool import Pool

SLACK = {"cuda": 2048}
"""Padding that a pass may have, in tokens: about what another pass would cost the host."""
LITTLE = 8
"""The same on any other device."""
PART = 8
"""Or one for so many real tokens, if that is more."""


@dataclass
class Work:
    """What a step reads."""

    going: list[Answer] = field(default_factory=list)
    """Answers that go on by one token, in one pass."""
    chunks: list[list[tuple[Answer, int]]] = field(default_factory=list)
    """Passes over prompts: how many tokens of whom."""


class Schedule:
    """The books of a batcher over its pool."""

    def __init__(self, pool: Pool, *, budget: int, chunk: int, spare: int, share: bool, stats: Stats) -> None:
        self.pool, self.budget, self.chunk, self.share, self.stats = pool, budget, chunk, share, stats
        self.spare = spare
        self.apart = False
        """Whether a prompt is read in passes of its own, of sizes that depend on nobody else."""
        self.waiting: deque[Answer] = deque()
        """The oldest first."""
        self.running: list[Answer] = []
        """Those that have a tenant, the oldest first."""
        self.least = max(1, min(chunk // 4, budget - pool.seats))
        """Tokens of a longer prompt below which a pass is not worth it."""
        self.slack = SLACK.get(pool.device.type, LITTLE)
        self._full = False
        """Whether the first who waits did not fit, and nothing was given back since."""
        self._bounded = [
            i for i, total in enumerate(pool.totals) if total < pool.seats * table_width(pool, i, pool.length)
        ]
        """Policies whose pages can run out."""
        self._steady = all(keep.columns == 0 for keep in pool.policies)
        """Whether a row needs a new page only where its count is a multiple of the page's size."""

    def too_much(self, tokens: int) -> str | None:
        """Why so many tokens of one answer can never be held; None: they can."""
        pool = self.pool
        if tokens > pool.length:
            return f"{tokens} tokens, and the batcher serves up to {pool.length} of an answer; make it with a larger length"
        for i in self._bounded:
            needed = table_width(pool, i, tokens)
            if needed > pool.totals[i]:
                return f"{tokens} tokens take {needed} pages, and the batcher has {pool.totals[i]}; make it with more pages"
        return None

    def queue(self, answer: Answer) -> None:
        """Let an answer wait, in the order of ages."""
        if not self.waiting or self.waiting[-1].age < answer.age:
            self.waiting.append(answer)
        else:
            place = bisect.bisect_left(self.waiting, answer.age, key=lambda each: each.age)
            self.waiting.insert(place, answer)
            self._full = self._full and place > 0

    def seat(self, answer: Answer) -> None:
        """Count an answer that got a tenant among the running ones."""
        bisect.insort(self.running, answer, key=lambda each: each.age)

    def drop(self, answer: Answer, *, wipe: bool = False) -> None:
        """Take an answer out of the books, wherever it is; `wipe` clears what it has written."""
        if answer.tenant is not None:
            self.pool.release(answer.tenant, wipe=wipe)
            answer.tenant = None
            del self.running[self._place(answer)]
            self._full = False
        else:
            place = bisect.bisect_left(self.waiting, answer.age, key=lambda each: each.age)
            if place < len(self.waiting) and self.waiting[place] is answer:
                del self.waiting[place]
                self._full = self._full and place > 0

    def _place(self, answer: Answer) -> int:
        return bisect.bisect_left(self.running, answer.age, key=lambda each: each.age)

    def back(self, answer: Answer) -> None:
        """Let a running answer wait and read its tokens again later."""
        self.drop(answer)
        self.queue(answer)

    def decide(self) -> Work:
        """What the next step reads; room for it is taken."""
        work = Work()
        short = False
        for answer in list(self.running):
            # Those that were preempted for an older one have no tenant any more.
            if not answer.goes_on:
                continue
            if self._room_for_one(answer):
                work.going.append(answer)
            else:
                short = True
        left = self.budget - len(work.going)
        picked: list[tuple[Answer, int]] = []
        reading = self._reading(admit=not short)
        while left > 0 and (answer := next(reading, None)) is not None:
            beside = 0 if answer.ticket.source_1S is None else answer.ticket.source_1S.shape[1]
            taken = self._take(answer, left - beside, first=not picked)
            if not taken:
                break
            picked.append((answer, taken))
            left -= taken + beside
        work.chunks = list(self._passes(picked))
        return work

    def _room_for_one(self, answer: Answer) -> bool:
        """Take room for one more token, from younger ones if need be."""
        tenant = answer.held
        if self._steady and tenant.count % self.pool.size:
            return True
        while not self.pool.reserve(tenant, 1):
            youngest = self.running[-1]
            if youngest is answer:
                return False
            self.back(youngest)
            self.stats.preemptions += 1
            self._full = True
        return True

    def _reading(self, *, admit: bool) -> Iterator[Answer]:
        """Answers that have tokens to read, the oldest first; those that wait are seated as they are asked for."""
        yield from [each for each in self.running if not each.goes_on]
        while admit and self.waiting and not self._full:
            answer = self.waiting[0]
            if not self._admit(answer):
                self._full = True
                return
            self.waiting.popleft()
            self.seat(answer)
            yield answer

    def _admit(self, answer: Answer) -> bool:
        """Give an answer a tenant with room for all of its tokens; those who run keep some pages to grow into."""
        ticket, pool = answer.ticket, self.pool
        tenant = pool.admit(declared=ticket.declared, source_declared=ticket.source_declared)
        if tenant is None:
            return False
        shared = pool.share(tenant, answer.tokens) if self.share and not ticket.reads_aside else 0
        needed, kept = pool.needs(tenant, len(answer.tokens) - shared), self.spare * len(self.running)
        if any(pool.papers[i].free - needed[i] < kept for i in self._bounded) or not pool.reserve(
            tenant, len(answer.tokens) - shared
        ):
            pool.release(tenant)
            return False
        answer.tenant = tenant
        self.stats.shared_tokens += shared
        return True

    def _take(self, answer: Answer, left: int, *, first: bool) -> int:
        """How many tokens of an answer the step reads, given what is left of the budget; 0: none."""
        tenant, pending = answer.held, answer.pending
        whole = 0
        if answer.ticket.source_1S is not None:
            # The decoder's tokens are read with the source.
            whole = pending
        elif tenant.count < self.pool.prefix:
            whole = min(pending, self.pool.prefix)
        taken = min(pending, self.chunk, left)
        if taken < whole:
            # What can't be split is read even if it is more than is left, or it might wait for ever.
            return whole if first else 0
        if self.apart and taken < min(pending, self.chunk):
            return min(pending, self.chunk) if first else 0
        return taken if taken >= min(pending, self.least) else 0

    def _passes(self, picked: list[tuple[Answer, int]]) -> Iterator[list[tuple[Answer, int]]]:
        """Rows of like lengths read together, as long as they cost little padding; beginnings are not mixed with others."""
        together: list[tuple[bool, int, Answer]] = []
        for answer, taken in picked:
            if self.apart or answer.alone or answer.ticket.reads_aside:
                yield [(answer, taken)]
            else:
                together.append((answer.held.count == 0, taken, answer))
        together.sort(key=lambda each: (not each[0], -each[1]))
        rows: list[tuple[Answer, int]] = []
        padding, real, kind = 0, 0, None
        for begins, taken, answer in together:
            more = rows[0][1] - taken if rows else 0
            if rows and (kind != begins or padding + more > max(self.slack, real // PART)):
                yield rows
                rows, padding, real, more = [], 0, 0, 0
            kind = begins
            padding, real = padding + more, real + taken
            rows.append((answer, taken))
        if rows:
            yield rows

    def problems(self) -> list[str]:
        """Where the books are wrong."""
        pool = self.pool
        found = [f"{len(self.running)} run, and {len(pool.tenants)} have a seat"] * (
            len(self.running) != len(pool.tenants)
        )
        if any(each.tenant is None or pool.tenants.get(each.tenant.seat) is not each.tenant for each in self.running):
            found.append("one runs without a seat")
        if any(each.tenant is not None for each in self.waiting):
            found.append("one waits with a seat")
        for name, line in (("running", self.running), ("waiting", list(self.waiting))):
            ages = [each.age for each in line]
            if ages != sorted(set(ages)):
                found.append(f"those {name} are not in the order of their ages, or one is there twice")
        return found
