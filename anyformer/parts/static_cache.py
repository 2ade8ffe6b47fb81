"""A KV cache of contiguous rows, which read the same number of columns in each step.

A cache serves rows of up to `length` tokens. A layer that sees everything keeps every token; one whose pattern forgets
keeps a ring; a mixer with a state keeps only that. Rows may be padded: a key remembers its position in its own document
and whether it is real.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.parts.cache_layers import FullCache, RingCache, StateOnly
from anyformer.parts.cache_positions import CachePositions, KeyPositions, picked
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import CachedSequence
from anyformer.specs.cache_policy import Keep, LayerCacheSpec


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
        self.tokens = CachePositions(
            batch, length, device, numbered=any(keep is not None and keep.recent for keep in policies)
        )
        self.ragged, self.seen_B = False, self.tokens.seen_B
        by_policy = {keep: _storage(self.tokens, keep, chunk) for keep in policies}
        self.storages = tuple(by_policy.values())
        """One for each policy."""
        self.storage_of = [by_policy[keep] for keep in policies]
        """By layer."""
        self.positions_are_counts = any([keep is not None and keep.columns > 0 for keep in policies])
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
            for state in (each for layer in self.states for each in layer):
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
        tensors = [t for layer in (*self.layers, *self.states, *self.cross) for t in layer]
        return sum(t.numel() * t.element_size() for t in tensors)


def _storage(tokens: CachePositions, keep: Keep | None, chunk: int) -> FullCache | StateOnly | RingCache:
    """For layers with this policy; None: only a state is kept."""
    if keep is None:
        return StateOnly(tokens)
    return FullCache(tokens) if keep.recent is None else RingCache(tokens, keep, chunk)


class StaticPool:
    """Sequences as the rows of one static cache. All of them are added before the first is read.

    A fork names the row that it continues, and who leaves names none: the next batch puts its rows in order.
    """

    restartable = False
    """Whether a sequence whose pass failed can be read again while others go on."""

    def __init__(self, cache: StaticKVCache) -> None:
        self.cache, self.alive = cache, 0
        self.device, self.length = cache.device, cache.length

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence:
        """A sequence that has read nothing; its lengths are those of the cache."""
        self.alive += 1
        return CachedSequence(self.alive - 1, [])

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        """There is room for all that the cache was made for."""
        return True

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """Another sequence that has read the same."""
        self.alive += 1
        return CachedSequence(sequence.slot, [], count=sequence.count)

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        """The next batch is without it."""
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
