"""A paged cache: some tenants of a pool as the rows of a batch, for one pass of the model.

Each row goes on from its own count: a token's number in its row is its position, and padding (behind the new tokens of
a row) is not kept. All that a step needs is in tensors, so that a captured step can be run again for other tenants.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.kernels.block_table import NULL_BLOCK, BlockTable, numbers, write
from anyformer.parts.cache import Cache
from anyformer.parts.ledger import Found
from anyformer.parts.pool import Pool, Tenant
from anyformer.specs.cache_policy import Keep
from anyformer.specs.cache_spec import LayerCacheSpec

FEW = 16
"""New tokens of a row up to which a kernel that reads pages is asked for."""


class Shelf:
    """The rows' pages of one policy, and where this step's tokens go and are found."""

    def __init__(self, keep: Keep, size: int, chunk: int, table_BN: Tensor) -> None:
        self.keep, self.size, self.chunk, self.table_BN = keep, size, chunk, table_BN
        self.host_BN = torch.full(table_BN.shape, NULL_BLOCK, dtype=torch.int32)
        self.seated: dict[int, list[int]] = {}
        """The pages of each row that has some, as they are in the table."""
        self.slot_S = torch.arange(table_BN.shape[1] * size, device=table_BN.device)
        self.flat_N = self.slot_S[:0]
        """Where new tokens are written, among all slots of the pool."""
        self.aside = False
        """Whether new tokens are seen beside what the pool holds, and written afterwards."""
        self.alone = False
        """Whether nothing but them is seen."""
        self.spills = False
        """Whether some of them are written into the page that nobody owns."""
        self.before_B = self.after_B = self.slot_S[:0]
        self.new: Found = (self.slot_S[None, :0], None, None)

    def seat(self, rows: Sequence[list[int]]) -> None:
        """Let these pages be those of the first rows; others have none. Rows that stay as they are cost nothing."""
        width, changed = self.table_BN.shape[1], False
        for i, pages in enumerate(rows):
            if self.seated.get(i) != pages:
                line = pages[:width]
                self.host_BN[i] = torch.tensor(line + [NULL_BLOCK] * (width - len(line)), dtype=torch.int32)
                self.seated[i], changed = list(pages), True
        for i in [i for i in self.seated if i >= len(rows)]:
            self.host_BN[i] = NULL_BLOCK
            del self.seated[i]
            changed = True
        if changed:
            self.table_BN.copy_(self.host_BN, non_blocking=True)

    def begin(self, number_BT: Tensor, new: Found, before_B: Tensor, after_B: Tensor, *, alone: bool) -> None:
        """Prepare a step for tokens with these numbers in their rows."""
        keep, valid_BT = self.keep, new[1]
        self.alone, self.before_B, self.after_B, self.new = alone, before_B, after_B, new
        self.aside = alone or (keep.recent is not None and number_BT.shape[1] > self.chunk)
        slot_BT = keep.slot(number_BT)
        stays_BT = valid_BT
        if keep.recent is not None and number_BT.shape[1] > 1:
            last_BT = keep.held(slot_BT, after_B[:, None]) == number_BT
            stays_BT = last_BT if stays_BT is None else stays_BT & last_BT
        # Padding, and rows that are nobody's, may be counted past the table.
        page_BT = (slot_BT // self.size).clamp(max=self.table_BN.shape[1] - 1)
        flat_BT = self.table_BN.gather(1, page_BT) * self.size + slot_BT % self.size
        self.spills = stays_BT is not None
        if stays_BT is not None:
            flat_BT = torch.where(stays_BT, flat_BT, NULL_BLOCK)
        self.flat_N = flat_BT.flatten()


class PagedCache:
    """What the model reads and writes as its cache."""

    chunk: int

    def __init__(self, pool: Pool, tenants: Sequence[Tenant], lengths: Sequence[int]) -> None:
        """Room for `lengths` new tokens of each tenant must be reserved."""
        if not tenants or len(tenants) != len(lengths):
            raise InputError(f"one length for each of at least one tenant, got {len(lengths)} for {len(tenants)}")
        self.pool, self.tenants, self.lengths = pool, tuple(tenants), tuple(lengths)
        widths = [max(1, *(len(t.pages[i]) for t in tenants)) for i in range(len(pool.policies))]
        self._allocate(len(tenants), widths)
        self.load(tenants)
        self._join_sources()

    @classmethod
    def for_steps(cls, pool: Pool, rows: int, tenants: Sequence[Tenant] = ()) -> PagedCache:
        """Rows that read one token at a time, for whoever is loaded; of an encoder-decoder, always for these tenants."""
        made = cls.__new__(cls)
        made.pool, made.tenants, made.lengths = pool, tuple(tenants), (1,) * len(tenants)
        made._allocate(rows, [table_width(pool, i, pool.length) for i in range(len(pool.policies))])
        made.used, made.fresh, made.keeps_books = max(1, pool.prefix), False, False
        if tenants:
            made._join_sources()
        return made

    def _allocate(self, rows: int, widths: Sequence[int]) -> None:
        pool, device = self.pool, self.pool.device
        self.batch, self.chunk = rows, pool.chunk
        self.seat_B = torch.full((rows,), pool.seats, device=device)
        self.seen_B = torch.zeros(rows, dtype=torch.long, device=device)
        """Tokens of each row before this step."""
        self.total_B = self.seen_B
        self.declared_B = torch.full((rows,), pool.declared_length, device=device)
        self.shelves = [
            Shelf(keep, pool.size, pool.chunk, torch.full((rows, n), NULL_BLOCK, dtype=torch.int32, device=device))
            for keep, n in zip(pool.policies, widths, strict=True)
        ]
        self.passing: Found = (self.seen_B[None, :0], None, None)
        """Where the new tokens are: all that a layer with a state sees."""
        self.held: dict[int, tuple[Tensor, ...]] = {}
        """States of the step under way, by layer."""
        self.used = 0
        """Tokens that every row has read."""
        self.cross: list[tuple[Tensor, ...]] = [() for _ in pool.rooms]
        self.has_source = False
        self.source_pos_BS: Tensor | None = None
        self.source_valid_BS: Tensor | None = None
        self.index_T = torch.arange(pool.length, device=device)
        self.keeps_books = True
        """Whether `advance` counts for the tenants too. A captured step can't: whoever runs it does."""

    def load(self, tenants: Sequence[Tenant]) -> None:
        """Let these tenants be the first rows; others are nobody's."""
        spare, counts = self.batch - len(tenants), [t.count for t in tenants]
        _fill(self.seat_B, [t.seat for t in tenants] + [self.pool.seats] * spare)
        _fill(self.seen_B, counts + [0] * spare)
        if self.pool.by_length:
            _fill(self.declared_B, [self.pool.length_of(t) for t in tenants] + [self.pool.declared_length] * spare)
        for i, shelf in enumerate(self.shelves):
            shelf.seat([t.pages[i] for t in tenants])
        self.used = min(counts)
        self.fresh = max(counts) == 0

    @property
    def declared_length(self) -> int | Tensor:
        """The length that length-dependent positions read, of each row."""
        return self.declared_B if self.pool.by_length else self.pool.declared_length

    def _join_sources(self) -> None:
        """Sources of all rows side by side, padded behind."""
        if not self.tenants[0].cross:
            return
        longest = max(t.cross[0][0].shape[1] for t in self.tenants)
        self.has_source = True
        self.cross = [
            tuple(
                torch.cat([_behind(tensor, longest) for tensor in streams]) for streams in zip(*by_tenant, strict=True)
            )
            for by_tenant in zip(*(t.cross for t in self.tenants), strict=True)
        ]
        poses, valids = [], []
        for t in self.tenants:
            if t.source_pos_1S is None:
                raise InputError("a tenant has keys of a source, but not where they are")
            valid = (
                torch.ones_like(t.source_pos_1S, dtype=torch.bool) if t.source_valid_1S is None else t.source_valid_1S
            )
            poses.append(F.pad(t.source_pos_1S, (0, longest - t.source_pos_1S.shape[1])))
            valids.append(F.pad(valid, (0, longest - valid.shape[1])))
        plain = all(t.source_valid_1S is None and t.cross[0][0].shape[1] == longest for t in self.tenants)
        self.source_pos_BS = torch.cat(poses)
        self.source_valid_BS = None if plain else torch.cat(valids)

    @property
    def rooms(self) -> tuple[LayerCacheSpec, ...]:
        """What each layer keeps."""
        return self.pool.rooms

    @property
    def dtype(self) -> torch.dtype:
        """What the model computes in."""
        return self.pool.dtype

    @property
    def declared(self) -> int | None:
        """The length that was declared for the source, if one was."""
        return self.pool.declared if self.tenants[0].source_declared is None else self.tenants[0].source_declared

    @property
    def ragged(self) -> bool:
        """Rows that have read nothing are alike; others may differ."""
        return not self.fresh

    @property
    def angles(self) -> list[tuple[Tensor, ...] | None]:
        """By position module of the stack: what rotates tokens at 0, 1, 2 ..."""
        return self.pool.angles

    counts_blocks = True
    """Positions can't be given: a token's number in its row is its position."""

    def check(self, rooms: tuple[LayerCacheSpec, ...], batch: int, like: Tensor) -> None:
        """Refuse a pool that was made for another model, or tokens of another batch."""
        if self.pool.rooms != rooms:
            raise InputError("cache: its pool was made for a model with other layers; make one with new_pool")
        if self.batch != batch:
            raise InputError(f"cache: made for {self.batch} rows, but {batch} were given")
        if self.dtype != like.dtype or self.pool.device != like.device:
            raise InputError(
                f"cache: its pool is for {self.dtype} on {self.pool.device}, but the model computes in {like.dtype} on "
                f"{like.device}"
            )

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, marked_BT: Tensor | None = None, *, ragged: bool) -> None:
        """Note new tokens. Nothing counts before `advance`."""
        new = pos_BT.shape[1]
        if valid_BT is None:
            self.total_B = self.seen_B + new
            number_BT = self.seen_B[:, None] if new == 1 else self.seen_B[:, None] + self.index_T[None, :new]
        else:
            self.total_B = self.seen_B + valid_BT.sum(1)
            number_BT = (self.seen_B[:, None] + valid_BT.cumsum(1) - 1).clamp(min=0)
        if self.pool.marked is not None:
            self._mark(number_BT, valid_BT, marked_BT)
        self.passing = pos_BT, valid_BT, self._marks(number_BT)
        self.held = {}
        for shelf in self.shelves:
            shelf.begin(number_BT, self.passing, self.seen_B, self.total_B, alone=self.fresh)

    def _mark(self, number_BT: Tensor, valid_BT: Tensor | None, marked_BT: Tensor | None) -> None:
        pool: Any = self.pool
        marked = torch.zeros_like(number_BT, dtype=torch.bool) if marked_BT is None else marked_BT
        row_B1 = self.seat_B[:, None]
        if valid_BT is not None:
            # Padding has the number of a real token, so it writes into the spare seat.
            row_B1 = torch.where(valid_BT, row_B1, pool.seats)
        pool.marked[row_B1.expand_as(number_BT), number_BT] = marked

    def _marks(self, number_BS: Tensor) -> Tensor | None:
        """Marks of tokens by their number."""
        marked = self.pool.marked
        return None if marked is None else marked[self.seat_B[:, None], number_BS]

    def grows(self, layer: int) -> bool:
        """Whether keys come in the order of their tokens, and nothing else."""
        return False

    def places(self, layer: int) -> Found:
        """Positions, validity and marks of the keys that `extend` answers."""
        policy = self.pool.policy_of[layer]
        if policy is None or self.shelves[policy].alone:
            return self.passing
        shelf = self.shelves[policy]
        number_BS = numbers(shelf.keep, shelf.slot_S, shelf.before_B if shelf.aside else shelf.after_B)
        there_BS, number_BS = number_BS >= 0, number_BS.clamp(min=0)
        if not shelf.aside:
            return number_BS, there_BS, self._marks(number_BS)
        pos_BT, valid_BT, _ = self.passing
        pos_BT = pos_BT.expand(self.batch, -1)
        valid_BT = torch.ones_like(pos_BT, dtype=torch.bool) if valid_BT is None else valid_BT
        number_BS = torch.cat((number_BS, pos_BT), 1)
        return number_BS, torch.cat((there_BS, valid_BT), 1), self._marks(number_BS)

    def pages(self, layer: int, queries: int) -> BlockTable | None:
        """Where a layer's keys lie, for a kernel that reads pages; None where that is not the way."""
        policy = self.pool.policy_of[layer]
        if policy is None or queries > FEW or len(self.pool.rooms[layer].streams) != 2:
            return None
        shelf = self.shelves[policy]
        if shelf.aside:
            return None
        return BlockTable(shelf.table_BN, shelf.size, self.total_B.to(torch.int32), shelf.keep)

    def slots(self, layer: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Where a layer's new tokens go, among all slots of its pool; the pool's tensors, and their scales if it is of
        int8: for a kernel that writes them itself.
        """
        streams, policy = self.pool.layers[layer], self.pool.policy_of[layer]
        if policy is None:
            raise InputError(f"layer {layer} keeps a state and no tokens")
        return self.shelves[policy].flat_N, [s[0] for s in streams], [s[1] for s in streams if len(s) > 1]

    def extend(self, layer: int, *new: Tensor, paged: bool = False) -> tuple[Tensor, ...]:
        """Store a layer's new keys and values (B,T,heads,dim); all that this step may see of it (B,S,heads,dim), or,
        paged, the pool (P,size,heads,dim) and, of int8, its scales after that.
        """
        policy = self.pool.policy_of[layer]
        if policy is None:
            return new
        shelf, streams = self.shelves[policy], self.pool.layers[layer]
        old: list[Tensor] = []
        if shelf.aside and not shelf.alone:
            old = [self._gather(shelf, stream, x) for stream, x in zip(streams, new, strict=True)]
        for stream, x in zip(streams, new, strict=True):
            write(stream[0], stream[1] if len(stream) > 1 else None, shelf.flat_N, x.flatten(0, 1))
            if shelf.spills:
                # It stands behind the keys of shorter rows, with a weight of 0; so it must be finite.
                for tensor in stream:
                    tensor[NULL_BLOCK, 0] = 0
        if paged:
            return (*(s[0] for s in streams), *(s[1] for s in streams if len(s) > 1))
        if shelf.alone:
            return new
        if shelf.aside:
            return tuple(torch.cat((kept, x), 1) for kept, x in zip(old, new, strict=True))
        return tuple(self._gather(shelf, stream, x) for stream, x in zip(streams, new, strict=True))

    def _gather(self, shelf: Shelf, stream: tuple[Tensor, ...], like: Tensor) -> Tensor:
        pages = BlockTable(shelf.table_BN, shelf.size, self.total_B, shelf.keep)
        return pages.gather(stream[0], stream[1] if len(stream) > 1 else None, like.dtype)

    def state(self, layer: int) -> tuple[Tensor, ...]:
        """A layer's state of every row (B,...), which its mixer changes in place; `advance` writes it back."""
        self.held[layer] = tuple(state[self.seat_B] for state in self.pool.states[layer])
        return self.held[layer]

    def advance(self, new: int) -> None:
        """End a step."""
        for layer, states in self.held.items():
            for kept, state in zip(self.pool.states[layer], states, strict=True):
                kept[self.seat_B] = state
        self.seen_B.copy_(self.total_B)
        if self.keeps_books:
            self._note_step()

    def _note_step(self) -> None:
        for tenant, length in zip(self.tenants, self.lengths, strict=True):
            tenant.count += length
        if not self.has_source and self.cross[0]:
            self._split_sources()
        self.used, self.fresh = min(t.count for t in self.tenants), False

    def _split_sources(self) -> None:
        self.has_source = True
        for row, tenant in enumerate(self.tenants):
            one = slice(row, row + 1)
            tenant.cross = [tuple(t[one] for t in layer) for layer in self.cross]
            for name, found in (("source_pos_1S", self.source_pos_BS), ("source_valid_1S", self.source_valid_BS)):
                if found is not None:
                    setattr(tenant, name, found if found.shape[0] == 1 else found[one])


Kept = Cache | PagedCache
"""What a model takes as its cache."""


def _fill(tensor: Tensor, rows: list[Any]) -> None:
    tensor.copy_(torch.tensor(rows, dtype=tensor.dtype).view(tensor.shape), non_blocking=True)


def _behind(tensor: Tensor, longest: int) -> Tensor:
    """Keys or values (1,S,heads,dim) with zeros up to `longest`."""
    return F.pad(tensor, (0, 0, 0, 0, 0, longest - tensor.shape[1]))


def table_width(pool: Pool, policy: int, tokens: int) -> int:
    """Pages that rows of so many tokens have of a policy."""
    keep = pool.policies[policy]
    return max(1, math.ceil(min(keep.filled(tokens), keep.room(pool.length)) / pool.size))
