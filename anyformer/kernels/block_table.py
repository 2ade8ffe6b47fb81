"""Pages: where the keys of each row lie in a pool that rows share."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from anyformer.specs.cache_policy import CachePolicy

NULL_BLOCK = 0
"""The page that nobody owns: what is written for padding goes there, and nobody reads it."""
LEAST = 1e-30
"""Below every scale of numbers that are not 0."""


@dataclass(frozen=True)
class BlockTable:
    """The slots of every row, in pages of a pool.

    With pages, a kernel's keys and values are the pool (P, size, G, K): slot s of row b is
    `pool[table_BN[b, s // size], s % size]`, and holds the token with the number `keep.held(s, count_B[b])` of its row,
    which is also its position; -1 is none. Queries stand where `mask.q.pos` says, new keys are in the pool already.
    """

    table_BN: Tensor
    """int32; NULL_BLOCK where a row has no page."""
    size: int
    """Tokens of a page."""
    count_B: Tensor
    """int32: tokens of each row, those of this step included."""
    keep: CachePolicy
    scales: tuple[Tensor, Tensor] | None = None
    """Of a pool of int8: (P, size, G) float32, by which keys and values are multiplied."""

    def scaled(self, scales: Sequence[Tensor]) -> Self:
        """The same with the scales of one layer's keys and values, if it has any."""
        return self if len(scales) == 0 else replace(self, scales=(scales[0], scales[1]))

    @property
    def slots(self) -> int:
        """Slots that the table has room for."""
        return self.table_BN.shape[1] * self.size

    def numbers(self) -> Tensor:
        """(B,S): the number of the token in each slot, -1 if there is none."""
        return numbers(self.keep, torch.arange(self.slots, device=self.table_BN.device), self.count_B.long())

    def gather(self, pool: Tensor, scale: Tensor | None, dtype: torch.dtype) -> Tensor:
        """(B,S,G,K): every slot of every row, whatever it holds."""
        found = self._slots(pool)
        return found if scale is None else (found.to(torch.float32) * self._slots(scale)[..., None]).to(dtype)

    def _slots(self, pool: Tensor) -> Tensor:
        # Whole pages are copied, which an index for each element would not do.
        return pool.index_select(0, self.table_BN.flatten()).view(len(self.table_BN), -1, *pool.shape[2:])


def numbers(keep: CachePolicy, slot_S: Tensor, count_B: Tensor) -> Tensor:
    """(B,S): the number of the token in each slot after so many tokens; -1: none, as past the end of a ring."""
    found_BS = keep.held(slot_S[None], count_B[:, None])
    if keep.recent is None or keep.columns:
        return found_BS
    return torch.where(slot_S[None] < keep.first + keep.recent, found_BS, -1)


def write(pool: Tensor, scale: Tensor | None, slot_N: Tensor, fresh_NGK: Tensor) -> None:
    """Put tokens into slots, counted over all pages of a pool; into one of int8 with the scale of each head."""
    if scale is None:
        pool.flatten(0, 1)[slot_N] = fresh_NGK.to(pool.dtype)
    else:
        pool.flatten(0, 1)[slot_N], scale.flatten(0, 1)[slot_N] = to_int8(fresh_NGK)


def to_int8(x_NGK: Tensor) -> tuple[Tensor, Tensor]:
    """Whole numbers of -127 to 127, and the scale of each vector that gives the numbers back."""
    exact = x_NGK.to(torch.float32)
    scale_NG = exact.abs().amax(-1) / 127
    return (exact / scale_NG.clamp(min=LEAST)[..., None]).round().to(torch.int8), scale_NG
