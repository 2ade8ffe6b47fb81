"""A pool: pages of keys and values that many requests share, and who holds which.

A request becomes a tenant: it has a seat (its row of states and marks) and, for every policy of keeping tokens, a list
of pages that grows with what it has read. Pages of equal beginnings are shared where all layers keep all tokens: a page
that is full never changes. Page SCRATCH belongs to nobody.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.block_table import NULL_BLOCK
from anyformer.parts.paper import Paper
from anyformer.specs.cache_policy import Keep
from anyformer.specs.cache_spec import LayerCacheSpec

Storage = str
STORAGES = ("model", "int8")


@dataclass(eq=False)
class Tenant:
    """What a pool holds for one request."""

    seat: int
    pages: list[list[int]]
    """By policy, in the order of slots."""
    count: int = 0
    """Tokens read so far."""
    declared: int | None = None
    """The length that length-dependent positions read; None: the pool's."""
    source_declared: int | None = None
    """The same for the source of an encoder-decoder; None: the pool's, else its own length."""
    fixed: int = 0
    """Its first tokens lie in pages that others may read too."""
    cross: list[tuple[Tensor, ...]] = field(default_factory=list)
    """Keys and values (1,S,heads,dim) of its source, by layer; empty: no source was read."""
    source_pos_1S: Tensor | None = None
    source_valid_1S: Tensor | None = None
    serial: int = field(default_factory=itertools.count().__next__)
    """A number that no other tenant ever has, as an address may."""


@dataclass(frozen=True)
class Snapshot:
    """A tenant as it was: how much it had read, and its states."""

    count: int
    states: tuple[tuple[Tensor, ...], ...]

    def before(self, tokens: int) -> Snapshot:
        """The same so many tokens earlier, of a tenant without states."""
        return replace(self, count=self.count - tokens)


class Pool:
    """Room for `seats` tenants of up to `length` tokens each.

    `pages` bounds the pages of layers that keep every token (None: enough for all seats at full length); others get
    what their seats need. A window keeps room for `chunk` tokens fed at once; more of them are served with a copy.
    """

    def __init__(
        self,
        rooms: tuple[LayerCacheSpec, ...],
        *,
        seats: int,
        length: int,
        size: int,
        device: torch.device,
        dtype: torch.dtype,
        pages: int | None = None,
        chunk: int = 1,
        storage: Storage = "model",
        marks: bool = False,
        prefix: int = 0,
        by_length: bool = False,
        declared: int | None = None,
    ) -> None:
        numbers = {
            "seats": seats,
            "length": length,
            "size": size,
            "chunk": chunk,
            "pages": 1 if pages is None else pages,
        }
        wrong = [f"{name}: a pool needs at least 1, got {n}" for name, n in numbers.items() if n < 1]
        if storage not in STORAGES:
            wrong.append(f"storage: {storage!r} is unknown (known: {', '.join(STORAGES)})")
        if wrong:
            raise InputError("; ".join(wrong))
        self.rooms, self.seats, self.length, self.size, self.chunk = rooms, seats, length, size, chunk
        self.device, self.dtype, self.storage, self.prefix = device, dtype, storage, prefix
        self.by_length, self.declared = by_length, declared
        """Whether a position scheme reads a declared length, and which one tenants have by default."""
        policies = [room.keep.fed(chunk).within(length) if room.streams else None for room in rooms]
        self.policies: list[Keep] = list(dict.fromkeys(keep for keep in policies if keep is not None))
        self.policy_of = [None if keep is None else self.policies.index(keep) for keep in policies]
        """By layer; None: it keeps only a state."""
        whole = [seats * math.ceil(keep.room(length) / size) for keep in self.policies]
        bounded = [
            most if pages is None or keep.recent is not None else min(most, pages)
            for keep, most in zip(self.policies, whole, strict=True)
        ]
        self.totals = tuple(bounded)
        """Pages that tenants can hold, by policy."""
        self.papers = [Paper(total) for total in bounded]
        self.layers: list[tuple[tuple[Tensor, ...], ...]] = [
            ()
            if policy is None
            else tuple(self._stream(bounded[policy] + 1, heads, dim) for heads, dim in room.streams)
            for room, policy in zip(rooms, self.policy_of, strict=True)
        ]
        """Keys and values (P, size, heads, dim) of each layer; of int8 each with its scales (P, size, heads)."""
        exact = torch.promote_types(dtype, torch.float32)
        # The last seat is for rows that fill up a batch.
        self.states = [
            tuple(torch.zeros(seats + 1, *shape, device=device, dtype=exact) for shape in room.state) for room in rooms
        ]
        self.marked = torch.zeros(seats + 1, length, dtype=torch.bool, device=device) if marks else None
        self.free_seats = list(range(seats - 1, -1, -1))
        self.angles: list[tuple[Tensor, ...] | None] = []
        """As `Cache.angles`; empty where they depend on a declared length."""
        self.shares = (
            len(self.policies) == 1
            and self.policies[0].recent is None
            and not any(r.state for r in rooms)
            and not marks
        )
        """Whether equal beginnings can share pages."""
        self.tenants: dict[int, Tenant] = {}
        """By seat."""

    def _stream(self, pages: int, heads: int, dim: int) -> tuple[Tensor, ...]:
        shape = (pages, self.size, heads, dim)
        if self.storage == "int8":
            data = torch.zeros(shape, device=self.device, dtype=torch.int8)
            return data, torch.zeros(shape[:3], device=self.device, dtype=torch.float32)
        return (torch.zeros(shape, device=self.device, dtype=self.dtype),)

    @property
    def declared_length(self) -> int:
        """The length that length-dependent positions read, unless a tenant has its own."""
        return self.length if self.declared is None else self.declared

    def admit(self, *, declared: int | None = None, source_declared: int | None = None) -> Tenant | None:
        """A tenant that has read nothing yet; None if all seats are taken."""
        if not self.free_seats:
            return None
        pages: list[list[int]] = [[] for _ in self.policies]
        tenant = Tenant(self.free_seats.pop(), pages, declared=declared, source_declared=source_declared)
        self.tenants[tenant.seat] = tenant
        for state in (each for layer in self.states for each in layer):
            state[tenant.seat].zero_()
        return tenant

    def seated(self, new: int, *, declared: int | None = None, source_declared: int | None = None) -> Tenant:
        """The same with room for so many tokens, by one who has counted seats and pages before."""
        tenant = self.admit(declared=declared, source_declared=source_declared)
        if tenant is None:
            raise InputError(f"all {self.seats} seats of the pool are taken")
        self.ensure(tenant, new)
        return tenant

    def ensure(self, tenant: Tenant, new: int) -> None:
        """Take the pages for so many new tokens, by one who has counted them before."""
        if not self.reserve(tenant, new):
            raise InputError(f"the pool has no page left for {new} more tokens")

    def release(self, tenant: Tenant, *, wipe: bool = False) -> None:
        """Give back all that a tenant holds; `wipe` clears what nobody else holds of it.

        What is not finite must be cleared: whoever gets a page next does not see it, but 0 times NaN is not 0.
        """
        if self.tenants.pop(tenant.seat, None) is not tenant:
            raise InputError("this tenant holds nothing of this pool: it was released before, or belongs to another")
        if wipe:
            for i, (paper, held) in enumerate(zip(self.papers, tenant.pages, strict=True)):
                self._clear(i, [page for page in held if paper.forget(page)])
        for paper, held in zip(self.papers, tenant.pages, strict=True):
            for page in reversed(held):
                paper.drop(page)
        tenant.pages = [[] for _ in self.policies]
        tenant.cross, tenant.source_pos_1S, tenant.source_valid_1S = [], None, None
        self.free_seats.append(tenant.seat)

    def needs(self, tenant: Tenant, new: int) -> list[int]:
        """Further pages that so many new tokens take, by policy."""
        count = tenant.count + new
        return [
            max(0, math.ceil(min(keep.filled(count), keep.room(self.length)) / self.size) - len(held))
            for keep, held in zip(self.policies, tenant.pages, strict=True)
        ]

    def reserve(self, tenant: Tenant, new: int) -> bool:
        """Take the pages for so many new tokens: all of them, or none if they are not there."""
        if tenant.count + new > self.length:
            raise InputError(
                f"the pool serves rows of up to {self.length} tokens: {tenant.count} are read and {new} were given"
            )
        needed = self.needs(tenant, new)
        if any(paper.free < n for paper, n in zip(self.papers, needed, strict=True)):
            return False
        for paper, held, n in zip(self.papers, tenant.pages, needed, strict=True):
            held.extend(paper.take() for _ in range(n))
        return True

    def share(self, tenant: Tenant, ids: Sequence[int]) -> int:
        """Let a new tenant begin with pages that hold the beginning of these tokens already; how many tokens that is.

        At least one token is left to read, for its logits.
        """
        if not self.shares or tenant.count or any(tenant.pages):
            return 0
        found = self.papers[0].find(self._root(tenant), ids[: len(ids) - 1], self.size)
        # Tokens of a prefix see each other both ways: all of them are the same, or none is shared.
        if not found or len(found) * self.size < self.prefix:
            return 0
        for page in found:
            self.papers[0].hold(page)
        tenant.pages[0] = list(found)
        tenant.count = tenant.fixed = len(found) * self.size
        return tenant.count

    def note(self, tenant: Tenant, ids: Sequence[int]) -> None:
        """Remember what the full pages of a tenant hold: `ids` are its tokens from the first."""
        if self.shares and tenant.count >= self.prefix:
            full = min(tenant.count, len(ids)) // self.size
            self.papers[0].note(self._root(tenant), ids, self.size, tenant.pages[0][:full])
            tenant.fixed = max(tenant.fixed, full * self.size)

    def _root(self, tenant: Tenant) -> Any:
        """What else the content of a page depends on."""
        return self.length_of(tenant) if self.by_length else None

    def length_of(self, tenant: Tenant) -> int:
        """The length that length-dependent positions read for a tenant."""
        return next(n for n in (tenant.declared, self.declared, self.length) if n is not None)

    def fork(self, tenant: Tenant) -> Tenant | None:
        """Another tenant that has read the same; None if there is no room. Full pages are shared where that is possible."""
        twin = self.admit(declared=tenant.declared, source_declared=tenant.source_declared)
        if twin is None:
            return None
        shared = tenant.count // self.size if self.shares else 0
        missing = [len(held) - (shared if i == 0 else 0) for i, held in enumerate(tenant.pages)]
        if any(paper.free < n for paper, n in zip(self.papers, missing, strict=True)):
            self.release(twin)
            return None
        for i, (paper, held) in enumerate(zip(self.papers, tenant.pages, strict=True)):
            same = held[:shared] if i == 0 else []
            for page in same:
                paper.hold(page)
            fresh = [paper.take() for _ in held[len(same) :]]
            twin.pages[i] = [*same, *fresh]
            self._copy(i, held[len(same) :], fresh)
        for state in (each for layer in self.states for each in layer):
            state[twin.seat] = state[tenant.seat]
        if self.marked is not None:
            self.marked[twin.seat] = self.marked[tenant.seat]
        twin.count = tenant.count
        twin.fixed = tenant.fixed = max(tenant.fixed, shared * self.size)
        twin.cross = list(tenant.cross)
        twin.source_pos_1S, twin.source_valid_1S = tenant.source_pos_1S, tenant.source_valid_1S
        return twin

    def _clear(self, policy: int, pages: list[int]) -> None:
        for layer, its in zip(self.layers, self.policy_of, strict=True):
            if its == policy:
                for tensor in (t for stream in layer for t in stream):
                    tensor[[NULL_BLOCK, *pages]] = 0

    def _copy(self, policy: int, old: list[int], new: list[int]) -> None:
        if not old:
            return
        for layer, its in zip(self.layers, self.policy_of, strict=True):
            if its == policy:
                for tensor in (t for stream in layer for t in stream):
                    tensor[new] = tensor[old]

    def snapshot(self, tenant: Tenant) -> Snapshot:
        """What `rewind` needs to undo the next step of a tenant."""
        states = tuple(tuple(state[tenant.seat].clone() for state in layer) for layer in self.states)
        return Snapshot(tenant.count, states)

    def rewind(self, tenant: Tenant, to: Snapshot, *, keep: int = 0) -> None:
        """Forget what was read after a snapshot, but for the first `keep` of those tokens. A window can forget less than
        `chunk` tokens: more were overwritten. A state keeps none of them.
        """
        count = to.count + keep
        back, rings = tenant.count - count, any(policy.recent is not None for policy in self.policies)
        stateful = any(to.states)
        if back < 0 or (rings and back >= max(self.chunk, 2)) or count < tenant.fixed or (stateful and keep and back):
            raise InputError(f"a tenant that has read {tenant.count} tokens can't go back to {count}")
        if back:
            for layer, saved in zip(self.states, to.states, strict=True):
                for state, old in zip(layer, saved, strict=True):
                    state[tenant.seat] = old
        tenant.count = count

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states that tenants can hold, without the scratch page and the spare seat."""
        total = 0
        for layer, policy in zip(self.layers, self.policy_of, strict=True):
            for tensor in (t for stream in layer for t in stream):
                total += tensor.nbytes // (self.totals[policy or 0] + 1) * self.totals[policy or 0]
        states = sum(t.nbytes // (self.seats + 1) * self.seats for layer in self.states for t in layer)
        return total + states

    def check(self) -> None:
        """Raise if a page or a seat was lost or given away twice."""
        problems: list[str] = []
        if len(self.free_seats) + len(self.tenants) != self.seats:
            problems.append(f"{len(self.free_seats)} free and {len(self.tenants)} taken of {self.seats} seats")
        for i, (paper, total) in enumerate(zip(self.papers, self.totals, strict=True)):
            holders: dict[int, int] = {}
            for tenant in self.tenants.values():
                for page in tenant.pages[i]:
                    holders[page] = holders.get(page, 0) + 1
            problems += paper.problems(holders)
            if paper.free + len(holders) != total or NULL_BLOCK in holders:
                problems.append(f"{paper.free} free and {len(holders)} held of {total} pages")
        if problems:
            raise RuntimeError("a pool has lost count: " + "; ".join(problems))
