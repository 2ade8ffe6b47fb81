"""The KV cache: what each layer keeps of the tokens already read. An explicit argument, advanced by the model only.

A static cache has room for `length` tokens in each row. `begin` notes where the new tokens are and answers where all
keys will be; each layer's `extend` stores its share and answers keys, values, positions and validity; `advance` ends
the step. Rows may be padded: a key remembers its position in its own document and whether it is real.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError


class Cache:
    """Room for keys and values (or whatever a mixer keeps) of every layer of a decoder.

    Tokens are the first dimension of every buffer: what has been filled is then a slice whose strides do not depend on
    how much it is, so compiled code meets one layout from the first token to the last.
    """

    def __init__(
        self,
        streams: tuple[tuple[tuple[int, int], ...], ...],
        *,
        batch: int,
        length: int,
        device: torch.device,
        dtype: torch.dtype,
        declared: int | None = None,
    ) -> None:
        if batch < 1 or length < 1:
            raise InputError(f"a cache needs at least one row and one token, got batch={batch}, length={length}")
        self.batch, self.length = batch, length
        self.streams = streams
        self.declared = declared
        """The length that length-dependent positions read, if it was given; otherwise it is `length`."""
        self.used = 0
        """Columns filled so far, padding included."""
        self.ragged = False
        """Whether rows differ: padding was fed, or positions were given."""
        self.layers = [
            tuple(torch.zeros(length, batch, heads, dim, device=device, dtype=dtype) for heads, dim in layer)
            for layer in streams
        ]
        self.pos_LB = torch.arange(length, device=device)[:, None].repeat(1, batch)
        self.valid_LB = torch.ones(length, batch, device=device, dtype=torch.bool)
        self.seen_B = torch.zeros(batch, device=device, dtype=torch.long)
        """Real tokens so far in each row, kept once rows differ."""
        self.keys: tuple[Tensor, Tensor | None] = (self.pos_LB[:0, :1].T, None)
        """Positions and validity of all keys of the step under way."""
        self.angles: list[tuple[Tensor, ...] | None] = []
        """By position module of the stack: what rotates tokens at 0, 1, 2 ..., so that a step only looks it up."""
        self.cross: list[tuple[Tensor, ...]] = [() for _ in streams]
        """Keys and values of the encoder's states, by layer."""
        self.has_source = False
        """Whether those are there, so that the source need not be fed again."""
        self.source_pos_BS: Tensor | None = None
        self.source_valid_BS: Tensor | None = None

    @property
    def declared_length(self) -> int:
        """The length that length-dependent positions read."""
        return self.length if self.declared is None else self.declared

    def check(self, streams: object, batch: int, like: Tensor) -> None:
        """Refuse a cache that was made for another model, batch, dtype or device."""
        if self.streams is not streams and self.streams != streams:
            raise InputError("cache: made for a model with other layers; make one with this model's new_cache")
        if self.batch != batch:
            raise InputError(f"cache: made for {self.batch} rows, but {batch} were given")
        kept = self.layers[0][0]
        if kept.dtype != like.dtype or kept.device != like.device:
            raise InputError(
                f"cache: holds {kept.dtype} on {kept.device}, but the model computes in {like.dtype} on {like.device}"
            )

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, *, ragged: bool) -> tuple[Tensor, Tensor | None]:
        """Note new tokens; positions and validity (None: all real) of all keys, old and new.

        Nothing that counts changes before `advance`, so a step that fails can be made again.
        """
        new = pos_BT.shape[1]
        end = self.used + new
        if end > self.length:
            raise InputError(
                f"the cache has room for {self.length} tokens: {self.used} are used and {new} were given; make it longer"
            )
        if ragged and not self.ragged:
            self.ragged = True
            self.seen_B.fill_(self.used)
        if not self.ragged:
            self.keys = self.pos_LB[:end, :1].T, None
            return self.keys
        self.pos_LB[self.used : end] = pos_BT.T
        self.valid_LB[self.used : end] = True if valid_BT is None else valid_BT.T
        self.keys = self.pos_LB[:end].T, self.valid_LB[:end].T
        return self.keys

    def extend(self, layer: int, *new: Tensor) -> tuple[Any, ...]:
        """Store a layer's new keys and values; all of them so far, then their positions and validity as `begin` gave."""
        begin, end = self.used, self.used + new[0].shape[1]
        so_far: list[Tensor] = []
        for kept, fresh in zip(self.layers[layer], new, strict=True):
            kept[begin:end] = fresh.transpose(0, 1)
            so_far.append(kept[:end].transpose(0, 1))
        return (*so_far, *self.keys)

    def advance(self, new: int) -> None:
        """End a step that read `new` tokens."""
        if self.ragged:
            self.seen_B += self.valid_LB[self.used : self.used + new].sum(0)
        self.used += new
        self.has_source = len(self.cross[0]) > 0

    @property
    def nbytes(self) -> int:
        """Bytes of keys and values, cross-attention included."""
        tensors = [t for layer in (*self.layers, *self.cross) for t in layer]
        return sum(t.numel() * t.element_size() for t in tensors)
