"""Dropout that can be played again: which weights are kept is a hash of a seed and of their place, not a stored mask."""

from __future__ import annotations

import torch
from torch import Tensor


def draw_seed(device: torch.device) -> Tensor:
    """Two numbers from torch's generator."""
    return torch.randint(-(2**31), 2**31 - 1, (2,), device=device).to(torch.int32)


def kept(seed_2: Tensor, sizes: tuple[int, int], rows: slice, columns: slice, share: float) -> Tensor:
    """(B,H,T,S) of some queries and keys, for sizes (B, H): True for all but a `share` of the weights."""
    batch, heads = sizes
    device = seed_2.device

    def numbers(first: int, last: int) -> Tensor:
        return torch.arange(first, last, device=device, dtype=torch.int32)

    of_head = _mixed(numbers(0, batch * heads) ^ seed_2[0]).view(batch, heads, 1)
    of_row = _mixed(of_head ^ _mixed(numbers(rows.start, rows.stop) ^ seed_2[1]))
    of_column = _mixed(_mixed(numbers(columns.start, columns.stop)) ^ seed_2[0])
    drawn = _mixed(of_row[..., None] ^ of_column)
    return drawn >= round(share * 2**32) - 2**31


def _mixed(x: Tensor) -> Tensor:
    """A one-to-one map of 32 bits in which every bit depends on every other (lowbias32, C. Wellons)."""
    x = (x ^ (x >> 16 & 0xFFFF)) * 0x7FEB352D
    x = (x ^ (x >> 15 & 0x1FFFF)) * (0x846CA68B - 2**32)
    return x ^ (x >> 16 & 0xFFFF)
