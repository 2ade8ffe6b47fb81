"""The KV cache as a forward pass sees it: one interface, with contiguous rows or blocks of a pool behind it.

`begin` notes the new tokens; `key_positions` says where the keys of a layer are; `update` stores a layer's share and
answers those keys; `advance` ends the step. What a layer keeps is said once, by its `LayerCacheSpec`.
"""

import abc

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.block_table import BlockTable
from anyformer.specs.cache_policy import LayerCacheSpec

KeyPositions = tuple[Tensor, Tensor | None, Tensor | None]
"""Positions, validity (None: all real) and global marks (None: no token is global) of some keys."""


class KVCache(abc.ABC):
    """Keys, values and states of the rows of one batch. An explicit argument, advanced by the model only."""

    paged: bool = False
    """Whether keys lie in blocks, which a kernel may read where they are."""
    chunk: int
    """New tokens that are attended to in place; more at once cost a copy."""
    positions_are_counts: bool
    """Whether a token's number in its row must be its position, so that positions can't be given."""
    ragged: bool
    """Whether rows differ: padding was fed, or positions were given."""
    right_padded: bool = False
    """Whether real tokens of every row begin at its first column."""
    seen_B: Tensor
    """Real tokens so far in each row, kept once rows differ."""
    rope_length: int | Tensor
    """The length that length-dependent positions read, of all rows or of each."""
    source_rope_length: int | None
    """The same for the source of an encoder-decoder; None: its own length."""
    rotary: list[tuple[Tensor, ...] | None]
    """By position module of the stack: what rotates tokens at 0, 1, 2 ..., so that a step only looks it up."""

    def __init__(
        self, specs: tuple[LayerCacheSpec, ...], *, batch: int, device: torch.device, dtype: torch.dtype
    ) -> None:
        self.specs, self.batch, self.device, self.dtype = specs, batch, device, dtype
        self.used = 0
        """Tokens that every row has read; of contiguous rows padding included."""
        self.cross: list[tuple[Tensor, ...]] = [() for _ in specs]
        """Keys and values of the encoder's states, by layer."""
        self.has_source = False
        """Whether those are there, so that the source need not be fed again."""
        self.source_pos_BS: Tensor | None = None
        self.source_valid_BS: Tensor | None = None

    def check(self, specs: tuple[LayerCacheSpec, ...], batch: int, like: Tensor) -> None:
        """Refuse a cache that was made for another model, batch, dtype or device."""
        if self.specs != specs:
            raise InputError("cache: made for a model with other layers; make one with this model's new_cache")
        if self.batch != batch:
            raise InputError(f"cache: made for {self.batch} rows, but {batch} were given")
        if self.dtype != like.dtype or self.device != like.device:
            raise InputError(
                f"cache: holds {self.dtype} on {self.device}, but the model computes in {like.dtype} on {like.device}"
            )

    @abc.abstractmethod
    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, global_BT: Tensor | None = None, *, ragged: bool) -> None:
        """Note new tokens: where they are, which are real (None: all), which are global (None: none).

        Nothing that counts changes before `advance`, so a step that fails can be made again.
        """

    @abc.abstractmethod
    def key_positions(self, layer: int) -> KeyPositions:
        """Positions, validity and global marks (B,S) or (1,S) of the keys that `update` answers; of a state: new tokens'."""

    @abc.abstractmethod
    def update(self, layer: int, *new: Tensor, paged: bool = False) -> tuple[Tensor, ...]:
        """Store a layer's new keys and values (B,T,heads,dim); all that this step may see of it (B,S,heads,dim), or,
        paged, the pool (P,size,heads,dim) and, of int8, its scales after that.
        """

    @abc.abstractmethod
    def state(self, layer: int) -> tuple[Tensor, ...]:
        """A layer's state of every row (B,...), which its mixer changes in place."""

    @abc.abstractmethod
    def advance(self, new: int) -> None:
        """End a step that read `new` tokens."""

    def is_append_only(self, layer: int) -> bool:
        """Whether a layer's keys are all tokens so far, in the order in which they came."""
        return False

    def block_table(self, layer: int, queries: int) -> BlockTable | None:
        """Where a layer's keys lie, for a kernel that reads blocks; None where there are none, or too many queries."""
        return None

    def slot_mapping(self, layer: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Where a layer's new tokens go, among all slots of its pool; the pool's tensors, and their scales if it is of
        int8: for a kernel that writes them itself.
        """
        raise TypeError("contiguous rows have no blocks that a kernel could write")


def concatenated(old: KeyPositions, new: KeyPositions) -> KeyPositions:
    """Old keys, then new ones."""
    pos = new[0].expand(len(old[0]), -1)
    valid, is_global = old[1], None
    if valid is not None:
        valid = torch.cat((valid, torch.ones_like(pos, dtype=torch.bool) if new[1] is None else new[1]), 1)
    if old[2] is not None and new[2] is not None:
        is_global = torch.cat((old[2], new[2]), 1)
    return torch.cat((old[0], pos), 1), valid, is_global
