"""A KV cache of contiguous rows, which are fed the same number of columns in each step.

A cache serves rows of up to `length` tokens. A layer that sees everything keeps every token; one whose pattern forgets
keeps a ring; a mixer with a state keeps only that. Layers with one policy share their storage: it prepares each step
once, and they then only write and read. Rows may be padded: a key remembers its position in its own document and whether
it is real. Tokens are the first dimension of every tensor: what has been filled is then a slice whose strides do not
depend on how much it is.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.parts.kv_cache import KeyPositions, KVCache, concatenated
from anyformer.parts.kv_pool import CachedSequence
from anyformer.specs.cache_policy import CachePolicy, LayerCacheSpec


class CachePositions:
    """Tokens are written in the columns in which they came, padding included. What lies past `used` does not count,
    so a step that is not ended leaves no trace.
    """

    def __init__(self, batch: int, length: int, device: torch.device, *, numbered: bool) -> None:
        self.length, self.numbered = length, numbered
        self.used = self.new = self.end = 0
        """Columns filled so far, padding included; new ones of the step under way; all at its end."""
        self.ragged = False
        """Whether rows differ: padding was fed, or positions were given."""
        self.index_L = torch.arange(length, device=device)
        """0, 1, 2 ..., to be cut."""
        self.row_B = torch.arange(batch, device=device)
        self.pos_LB = self.index_L[:, None].repeat(1, batch)
        self.valid_LB = torch.ones(length, batch, device=device, dtype=torch.bool)
        self.global_LB: Tensor | None = None
        self.column_LB = self.pos_LB.clone()
        """The column of each row's real tokens by their number, if a layer asks for it: one that keeps some only."""
        self.seen_B = self.total_B = torch.zeros(batch, device=device, dtype=torch.long)
        """Real tokens so far in each row, kept once rows differ; and at the end of the step under way."""
        self.order_TB: Tensor | None = None
        """A number for each new column where rows differ: real tokens in their order, then padding."""

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, global_BT: Tensor | None, *, ragged: bool) -> None:
        """Note new tokens (see `KVCache.begin`)."""
        self.new = pos_BT.shape[1]
        self.end = self.used + self.new
        if self.end > self.length:
            raise InputError(
                f"the cache has room for {self.length} tokens: {self.used} are used and {self.new} were given; "
                "make it longer"
            )
        new = slice(self.used, self.end)
        if global_BT is not None and self.global_LB is None:
            self.global_LB = torch.zeros_like(self.valid_LB)
        if self.global_LB is not None:
            self.global_LB[new] = False if global_BT is None else global_BT.T
        if ragged and not self.ragged:
            self.ragged = True
            self.seen_B.fill_(self.used)
        if not self.ragged:
            return
        self.pos_LB[new] = pos_BT.T
        self.valid_LB[new] = True if valid_BT is None else valid_BT.T
        real_TB = self.valid_LB[new]
        self.total_B = self.seen_B + real_TB.sum(0)
        if self.numbered:
            # Padding is numbered after the real tokens, so that no two columns of a row share a number.
            self.order_TB = torch.where(real_TB, real_TB.cumsum(0), real_TB.sum(0) + (~real_TB).cumsum(0)) - 1
            columns_TB = self.index_L[new, None].expand_as(self.order_TB)
            self.column_LB.scatter_(0, self.seen_B + self.order_TB, columns_TB)

    def advance(self, new: int) -> None:
        """The new tokens count from now on."""
        if self.ragged:
            self.seen_B.copy_(self.total_B)
        self.used, self.new, self.order_TB = self.used + new, 0, None
        self.end = self.used

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was."""
        if len(rows_B) != len(self.row_B):
            self.row_B = torch.arange(len(rows_B), device=rows_B.device)
        self.pos_LB = picked(self.pos_LB, 1, rows_B)
        self.valid_LB = picked(self.valid_LB, 1, rows_B)
        self.global_LB = None if self.global_LB is None else picked(self.global_LB, 1, rows_B)
        self.column_LB = picked(self.column_LB, 1, rows_B)
        self.seen_B = self.total_B = picked(self.seen_B, 0, rows_B)

    def columns(self, start: int, end: int) -> KeyPositions:
        """Tokens of some columns. Rows that don't differ share their positions."""
        is_global = None if self.global_LB is None else self.global_LB[start:end].T
        if not self.ragged:
            return self.pos_LB[start:end, :1].T, None, is_global
        return self.pos_LB[start:end].T, self.valid_LB[start:end].T, is_global

    def numbered_as(self, number: Tensor, *, whole: bool) -> KeyPositions:
        """The tokens of these numbers: (S,), or (S,B) where rows differ; -1 is no token at all.

        `whole` says that there is no -1 among them.
        """
        if not self.ragged:
            inside = number if whole else number.clamp(min=0)
            is_global = None if self.global_LB is None else self.global_LB[inside].T
            return inside[None], None if whole else (number >= 0)[None], is_global
        column_SB = self.column_LB.gather(0, number.clamp(min=0))
        is_global = None if self.global_LB is None else self.global_LB.gather(0, column_SB).T
        return self.pos_LB.gather(0, column_SB).T, (number >= 0).T, is_global


class LayerCache:
    """Of layers that keep no tokens: new ones are seen, and a mixer's state has them all."""

    def __init__(self, tokens: CachePositions, slots: int = 0) -> None:
        self.tokens, self.slots = tokens, slots
        self.keys = tokens.columns(0, 0)
        """Where the keys are that are seen in this step."""

    def begin(self) -> None:
        """Prepare a step."""
        self.keys = self.tokens.columns(self.tokens.used, self.tokens.end)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        """Store new tokens (B,T,heads,dim); all that may be seen in this step (B,S,heads,dim)."""
        return fresh


class FullCache(LayerCache):
    """Every column has a slot of its own, padding included."""

    def begin(self) -> None:
        self.keys = self.tokens.columns(0, self.tokens.end)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        end = self.tokens.end
        kept[self.tokens.used : end] = fresh.transpose(0, 1)
        return kept[:end].transpose(0, 1)


class RingCache(LayerCache):
    """Newer tokens take the slots of those that no query will see again.

    Up to `chunk` new tokens are written first and seen in place. More of them would overwrite what the first of them
    still sees: they are seen behind what the ring holds, and then the ring takes what later queries can see.
    """

    def __init__(self, tokens: CachePositions, keep: CachePolicy, chunk: int) -> None:
        super().__init__(tokens, keep.room(tokens.length))
        self.keep, self.chunk = keep, chunk
        self.filled = 0
        """Slots that are seen in this step."""
        self.slot = tokens.index_L[:0]
        """Where new tokens go: (T,), or (T,B) where rows differ."""
        self.real_TB11: Tensor | None = None
        """Which of them are real, where rows differ."""
        self.taken: tuple[Tensor, Tensor] | None = None
        """Of a long feed: which slots change, and which of the new tokens each takes; (R,1) and (R,), or (R,B)."""

    def begin(self) -> None:
        tokens, order_TB = self.tokens, self.tokens.order_TB
        if not self.in_place():
            self._prepare_long()
            return
        self.taken = self.real_TB11 = None
        self.filled = self._filled(tokens.end)
        self.keys = self._find(tokens.end, tokens.total_B)
        if order_TB is None:
            self.slot = self.keep.slot(tokens.index_L[tokens.used : tokens.end])
        else:
            self.slot = self.keep.slot(tokens.seen_B + order_TB)
            self.real_TB11 = tokens.valid_LB[tokens.used : tokens.end, :, None, None]

    def _prepare_long(self) -> None:
        tokens, order_TB = self.tokens, self.tokens.order_TB
        self.filled, self.keys = 0, tokens.columns(tokens.used, tokens.end)
        if tokens.used > 0:
            self.filled = self._filled(tokens.used)
            self.keys = concatenated(self._find(tokens.used, tokens.seen_B), self.keys)
        index_R = tokens.index_L[: self.slots]
        if order_TB is None:
            number_R = self.keep.held(index_R, tokens.end)
            self.taken = (number_R >= tokens.used)[:, None], (number_R - tokens.used).clamp(min=0)
        else:
            number_RB = self.keep.held(index_R[:, None], tokens.total_B)
            column_TB = torch.empty_like(order_TB)
            column_TB.scatter_(0, order_TB, tokens.index_L[: tokens.new, None].expand_as(order_TB))
            source_RB = column_TB.gather(0, (number_RB - tokens.seen_B).clamp(min=0))
            self.taken = number_RB >= tokens.seen_B, source_RB

    def in_place(self) -> bool:
        """Whether new tokens are written before they are seen."""
        return self.tokens.new <= self.chunk

    def _filled(self, columns: int) -> int:
        # Compiled code meets one shape, with a mask of what is there.
        return self.slots if torch.compiler.is_compiling() else self.keep.filled(columns)

    def _find(self, columns: int, count_B: Tensor) -> KeyPositions:
        """The tokens in the filled slots, after so many columns."""
        slot_S = self.tokens.index_L[: self.filled]
        if self.tokens.ragged:
            return self.tokens.numbered_as(self.keep.held(slot_S[:, None], count_B), whole=False)
        whole = not self.keep.columns and not torch.compiler.is_compiling()
        return self.tokens.numbered_as(self.keep.held(slot_S, columns), whole=whole)

    def update(self, kept: Tensor, fresh: Tensor) -> Tensor:
        fresh = fresh.to(kept.dtype)
        fresh_T, row_B = fresh.transpose(0, 1), self.tokens.row_B
        if self.taken is not None:
            seen = torch.cat((kept[: self.filled].transpose(0, 1), fresh), 1) if self.tokens.used > 0 else fresh
            change, source = self.taken
            picked = fresh_T[source] if source.dim() == 1 else fresh_T[source, row_B]
            kept.copy_(torch.where(change[:, :, None, None], picked, kept))
            return seen
        if self.real_TB11 is None:
            kept.index_copy_(0, self.slot, fresh_T)
        else:
            # All slots of a row differ, so what padding writes back disturbs nobody.
            at = self.slot, row_B
            kept[at] = torch.where(self.real_TB11, fresh_T, kept[at])
        return kept[: self.filled].transpose(0, 1)


def picked(kept: Tensor, dim: int, rows_B: Tensor, filled: int | None = None) -> Tensor:
    """Some rows of a tensor, written into it if they are as many as it has. `filled`: only so many slots count."""
    part = kept if filled is None else kept[:filled]
    found = part.index_select(dim, rows_B)
    if len(rows_B) == kept.shape[dim]:
        part.copy_(found)
        return kept
    if filled is None:
        return found
    more = kept.new_zeros(len(kept), *found.shape[1:])
    more[:filled] = found
    return more


class StaticKVCache(KVCache):
    """Room for keys and values (or whatever a mixer keeps) of every layer of a decoder."""

    def __init__(
        self,
        specs: tuple[LayerCacheSpec, ...],
        *,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        rope_length: int | None = None,
        chunk: int = 1,
    ) -> None:
        if batch < 1 or length < 1:
            raise InputError(f"a cache needs at least one row and one token, got batch={batch}, length={length}")
        if chunk < 1:
            raise InputError(f"chunk: a cache is fed at least one token at once, got {chunk}")
        super().__init__(specs, batch=batch, device=device, dtype=dtype)
        self.length, self.chunk = length, chunk
        self.default_rope_length = length if rope_length is None else rope_length
        self.rope_length, self.source_rope_length = self.default_rope_length, rope_length
        policies = [spec.keep.fed(chunk).within(length) if spec.streams else None for spec in specs]
        some = [keep for keep in policies if keep is not None]
        self.tokens = tokens = CachePositions(batch, length, device, numbered=any(keep.recent for keep in some))
        self.ragged, self.seen_B = False, tokens.seen_B
        self.positions_are_counts = any([keep.columns > 0 for keep in some])
        by_policy: dict[CachePolicy | None, LayerCache] = {None: LayerCache(tokens)}
        for keep in some:
            by_policy[keep] = FullCache(tokens, length) if keep.recent is None else RingCache(tokens, keep, chunk)
        self.storage_of = [by_policy[keep] for keep in policies]
        """By layer; layers with one policy share theirs."""
        self.storages = tuple(dict.fromkeys(self.storage_of))
        self.layers = [
            tuple(torch.zeros(kept.slots, batch, heads, dim, device=device, dtype=dtype) for heads, dim in spec.streams)
            for spec, kept in zip(specs, self.storage_of, strict=True)
        ]
        exact = torch.promote_types(dtype, torch.float32)
        self.states = [
            tuple(torch.zeros(batch, *shape, device=device, dtype=exact) for shape in spec.state) for spec in specs
        ]
        """Of each row, by layer."""
        self.spoiled = False
        """Whether the step under way has overwritten what an earlier one left."""
        self.rotary = []

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, global_BT: Tensor | None = None, *, ragged: bool) -> None:
        """Note new tokens. Positions that are given must increase along a row: a ring counts tokens, and keeps as many
        as a window spans. A state, and a ring that was fed more than `chunk` tokens at once, are overwritten: a step that
        fails after that can't be made again.
        """
        if self.spoiled:
            if self.used > 0:
                raise InputError(
                    f"cache: a step after {self.used} tokens failed and had overwritten what the cache held; make a "
                    "new cache and read the tokens again"
                )
            for layer in self.states:
                for state in layer:
                    state.zero_()
            self.spoiled = False
        self.tokens.begin(pos_BT, valid_BT, global_BT, ragged=ragged)
        self.ragged = self.tokens.ragged
        for storage in self.storages:
            storage.begin()

    def is_append_only(self, layer: int) -> bool:
        return isinstance(self.storage_of[layer], FullCache)

    def key_positions(self, layer: int) -> KeyPositions:
        return self.storage_of[layer].keys

    def update(self, layer: int, *new: Tensor, paged: bool = False) -> tuple[Tensor, ...]:
        if paged:
            raise TypeError("this cache has no blocks that a kernel could read")
        storage = self.storage_of[layer]
        if isinstance(storage, RingCache) and not storage.in_place():
            self.spoiled = True
        return tuple([storage.update(kept, x) for kept, x in zip(self.layers[layer], new, strict=True)])

    def state(self, layer: int) -> tuple[Tensor, ...]:
        self.spoiled = True
        return self.states[layer]

    def advance(self, new: int) -> None:
        self.tokens.advance(new)
        self.used, self.spoiled = self.tokens.used, False
        self.has_source = len(self.cross[0]) > 0

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was. A row may be named twice or not at all, so that one prompt that was
        read once can go on in several ways, and there may be more or fewer rows than before.

        With as many rows as before the tensors keep their addresses.
        """
        if rows_B.dim() != 1 or len(rows_B) < 1 or rows_B.dtype != torch.long:
            raise InputError(
                f"rows_B: expected at least one row number, as int64 in one dimension, got {rows_B.dtype} of shape "
                f"{tuple(rows_B.shape)}"
            )
        rows_B, used = rows_B.to(self.device), self.used
        # What is made in inference mode can be changed in it only, so new tensors are made where the old ones were.
        with torch.inference_mode(self.seen_B.is_inference()), torch.no_grad():
            for layer, kept in enumerate(self.layers):
                filled = used if self.is_append_only(layer) else None
                self.layers[layer] = tuple([picked(each, 1, rows_B, filled) for each in kept])
            self.states = [tuple([picked(each, 0, rows_B) for each in layer]) for layer in self.states]
            self.cross = [tuple([each.index_select(0, rows_B) for each in layer]) for layer in self.cross]
            # Rows of a source that do not differ share their positions.
            if self.source_pos_BS is not None and self.source_pos_BS.shape[0] == self.batch:
                self.source_pos_BS = self.source_pos_BS.index_select(0, rows_B)
            if self.source_valid_BS is not None:
                self.source_valid_BS = self.source_valid_BS.index_select(0, rows_B)
            self.tokens.reorder(rows_B)
        self.batch, self.seen_B = len(rows_B), self.tokens.seen_B

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states, cross-attention included: what `count` says."""
        return sum(t.nbytes for layer in (*self.layers, *self.states, *self.cross) for t in layer)


class StaticPool:
    """Sequences as the rows of one static cache. All of them are added before the first pass.

    A fork names the row that it continues, and who leaves names none: the next batch puts its rows in order.
    """

    restartable = False
    """Whether a sequence whose pass failed can begin again while others go on."""

    def __init__(self, cache: StaticKVCache) -> None:
        self.cache, self.alive = cache, 0
        self.device, self.length = cache.device, cache.length

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence:
        """An empty sequence; its lengths are those of the cache."""
        self.alive += 1
        return CachedSequence(self.alive - 1, [])

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        return True

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        self.alive += 1
        return CachedSequence(sequence.slot, [], num_computed_tokens=sequence.num_computed_tokens)

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        self.alive -= 1

    def batch(self, sequences: Sequence[CachedSequence], lengths: Sequence[int]) -> StaticKVCache:
        """The cache, with these sequences as its rows."""
        rows = [sequence.slot for sequence in sequences]
        if rows != list(range(self.cache.batch)):
            if len(rows) != self.alive:
                raise RuntimeError(
                    f"{self.alive} sequences are alive, and a batch names {len(rows)}: the others would be lost"
                )
            self.cache.reorder(torch.tensor(rows))
            for row, sequence in enumerate(sequences):
                sequence.slot = row
        return self.cache
