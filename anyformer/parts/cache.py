"""The KV cache: what each layer keeps of the tokens already read. An explicit argument, advanced by the model only.

A cache serves rows of up to `length` tokens. A layer that sees everything keeps every token; one whose pattern forgets
keeps a ring; a mixer with a state keeps only that. `begin` notes the new tokens; `places` says where the keys of a
layer are; `extend` stores its share and answers those keys; `advance` ends the step. Rows may be padded: a key
remembers its position in its own document and whether it is real.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.parts.ledger import Found, Ledger, picked
from anyformer.parts.shelf import Growing, Passing, Ring
from anyformer.specs.cache_policy import Keep
from anyformer.specs.cache_spec import LayerCacheSpec


class Cache:
    """Room for keys and values (or whatever a mixer keeps) of every layer of a decoder."""

    def __init__(
        self,
        layers: tuple[LayerCacheSpec, ...],
        *,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        declared: int | None = None,
        chunk: int = 1,
    ) -> None:
        if batch < 1 or length < 1:
            raise InputError(f"a cache needs at least one row and one token, got batch={batch}, length={length}")
        if chunk < 1:
            raise InputError(f"chunk: a cache is fed at least one token at once, got {chunk}")
        self.batch, self.length, self.chunk = batch, length, chunk
        self.device, self.dtype = device, dtype
        self.rooms = layers
        self.declared = declared
        """The length that length-dependent positions read, if it was given; otherwise it is `length`."""
        policies = [room.keep.fed(chunk).within(length) if room.streams else None for room in layers]
        self.ledger = Ledger(batch, length, device, numbered=any(keep is not None and keep.recent for keep in policies))
        shelves = {keep: _shelf(self.ledger, keep, chunk) for keep in policies}
        self.shelves = tuple(shelves.values())
        """One for each policy."""
        self.shelf_of = [shelves[keep] for keep in policies]
        """By layer."""
        self.layers = [
            tuple(torch.zeros(shelf.room, batch, heads, dim, device=device, dtype=dtype) for heads, dim in room.streams)
            for room, shelf in zip(layers, self.shelf_of, strict=True)
        ]
        exact = torch.promote_types(dtype, torch.float32)
        self.states = [
            tuple(torch.zeros(batch, *shape, device=device, dtype=exact) for shape in room.state) for room in layers
        ]
        """Of each row, by layer."""
        self.spoiled = False
        """Whether the step under way has overwritten what an earlier one left."""
        self.angles: list[tuple[Tensor, ...] | None] = []
        """By position module of the stack: what rotates tokens at 0, 1, 2 ..., so that a step only looks it up."""
        self.cross: list[tuple[Tensor, ...]] = [() for _ in layers]
        """Keys and values of the encoder's states, by layer."""
        self.has_source = False
        """Whether those are there, so that the source need not be fed again."""
        self.source_pos_BS: Tensor | None = None
        self.source_valid_BS: Tensor | None = None

    @property
    def declared_length(self) -> int:
        """The length that length-dependent positions read."""
        return self.length if self.declared is None else self.declared

    @property
    def used(self) -> int:
        """Columns read so far, padding included."""
        return self.ledger.used

    @property
    def ragged(self) -> bool:
        """Whether rows differ: padding was fed, or positions were given."""
        return self.ledger.ragged

    @property
    def seen_B(self) -> Tensor:
        """Real tokens so far in each row, kept once rows differ."""
        return self.ledger.seen_B

    def check(self, rooms: tuple[LayerCacheSpec, ...], batch: int, like: Tensor) -> None:
        """Refuse a cache that was made for another model, batch, dtype or device."""
        if self.rooms != rooms:
            raise InputError("cache: made for a model with other layers; make one with this model's new_cache")
        if self.batch != batch:
            raise InputError(f"cache: made for {self.batch} rows, but {batch} were given")
        if self.dtype != like.dtype or self.ledger.seen_B.device != like.device:
            raise InputError(
                f"cache: holds {self.dtype} on {self.ledger.seen_B.device}, but the model computes in {like.dtype} on "
                f"{like.device}"
            )

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, marked_BT: Tensor | None = None, *, ragged: bool) -> None:
        """Note new tokens: where they are, which are real (None: all), which are marked as global (None: none).

        Positions that are given must increase along a row: a ring counts tokens, and keeps as many as a window spans.
        Nothing that counts changes before `advance`, so a step that fails can be made again. The exceptions are a
        state, and a ring that was fed more than `chunk` tokens at once: once overwritten, they can't be had back.
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
        self.ledger.begin(pos_BT, valid_BT, marked_BT, ragged=ragged)
        for shelf in self.shelves:
            shelf.begin()

    def grows(self, layer: int) -> bool:
        """Whether a layer keeps every token, in the order in which they came."""
        return isinstance(self.shelf_of[layer], Growing)

    @property
    def counts_blocks(self) -> bool:
        """Whether a layer keeps some tokens for where they are in a block, which their number must then tell."""
        return any([isinstance(shelf, Ring) and shelf.keep.columns > 0 for shelf in self.shelves])

    def places(self, layer: int) -> Found:
        """Positions, validity and marks of the keys that `extend` answers in this step, (B,S) or (1,S) each; of a
        layer that keeps a state: those of the new tokens.
        """
        return self.shelf_of[layer].found

    def extend(self, layer: int, *new: Tensor, paged: bool = False) -> tuple[Tensor, ...]:
        """Store a layer's new keys and values (B,T,heads,dim); all that this step may see of it (B,S,heads,dim)."""
        if paged:
            raise TypeError("this cache has no pages that a kernel could read")
        shelf = self.shelf_of[layer]
        if isinstance(shelf, Ring) and not shelf.in_place():
            self.spoiled = True
        return tuple([shelf.extend(kept, x) for kept, x in zip(self.layers[layer], new, strict=True)])

    def state(self, layer: int) -> tuple[Tensor, ...]:
        """A layer's state of every row (B,...), which its mixer changes in place."""
        self.spoiled = True
        return self.states[layer]

    def advance(self, new: int) -> None:
        """End a step that read `new` tokens."""
        self.ledger.advance(new)
        self.spoiled = False
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
        with torch.inference_mode(self.ledger.seen_B.is_inference()), torch.no_grad():
            for layer, kept in enumerate(self.layers):
                filled = used if self.grows(layer) else None
                self.layers[layer] = tuple([picked(each, 1, rows_B, filled) for each in kept])
            self.states = [tuple([picked(each, 0, rows_B) for each in layer]) for layer in self.states]
            self.cross = [tuple([each.index_select(0, rows_B) for each in layer]) for layer in self.cross]
            # Rows of a source that do not differ share their positions.
            if self.source_pos_BS is not None and self.source_pos_BS.shape[0] == self.batch:
                self.source_pos_BS = self.source_pos_BS.index_select(0, rows_B)
            if self.source_valid_BS is not None:
                self.source_valid_BS = self.source_valid_BS.index_select(0, rows_B)
            self.ledger.reorder(rows_B)
        self.batch = len(rows_B)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states, cross-attention included: what `count` says."""
        tensors = [t for layer in (*self.layers, *self.states, *self.cross) for t in layer]
        return sum(t.numel() * t.element_size() for t in tensors)


def _shelf(ledger: Ledger, keep: Keep | None, chunk: int) -> Growing | Passing | Ring:
    """For layers with this policy; None: only a state is kept."""
    if keep is None:
        return Passing(ledger)
    return Growing(ledger) if keep.recent is None else Ring(ledger, keep, chunk)
