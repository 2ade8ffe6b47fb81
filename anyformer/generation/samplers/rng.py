"""Draws by seed: the number that decides a row's token is a pure function of its seed and the token's place.

No generator is moved, so a row draws the same alone, in any batch and whoever else joins or leaves.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

SEEDS = 2**63
"""Seeds are below it."""
STEP = 0x9E3779B97F4A7C15 - 2**64
MIX, STIR = 0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64
"""The constants of SplitMix64 (Steele, Lea, Flood 2014) as signed numbers of 64 bits, whose products wrap around."""


def keys(seed: int | Sequence[int] | None, rows: int, *, samples: int = 1, device: torch.device) -> Tensor:
    """(rows * samples,) keys, those of a row's samples beside each other.

    One seed: answer i draws from the stream (seed, i). A seed for each row: its sample j draws from (seed of the row,
    j), wherever the row is. None: one seed, drawn from torch's own generator.
    """
    if seed is None:
        # Drawn where torch draws by default, so that `torch.manual_seed` repeats it.
        seed = int(torch.randint(SEEDS - 1, ()))
    if isinstance(seed, int):
        seeds, streams = torch.full((rows * samples,), seed), torch.arange(rows * samples)
    else:
        seeds = torch.tensor(list(seed)).repeat_interleave(samples)
        streams = torch.arange(samples).repeat(rows)
    return _mixed(_mixed(seeds + STEP) + streams * STEP).to(device)


def uniform(keys_B: Tensor, steps_B: Tensor) -> Tensor:
    """A number of 53 bits in [0, 1) for each key and number of a token; the two are broadcast."""
    bits = _mixed(keys_B + (steps_B + 1) * STEP)
    return (bits >> 11 & (1 << 53) - 1).to(torch.float64) * 2.0**-53


def pick(logits_BV: Tensor, points_B: Tensor) -> Tensor:
    """Ids (B,): the token at which the sum of probabilities passes the point of its row."""
    total_BV = logits_BV.softmax(-1).cumsum(-1, dtype=torch.float64)
    drawn_B1 = torch.searchsorted(total_BV, points_B[:, None] * total_BV[:, -1:], right=True)
    return drawn_B1[:, 0].clamp(max=total_BV.shape[-1] - 1)


def _mixed(x: Tensor) -> Tensor:
    """A one-to-one map of 64 bits in which every bit depends on every other."""
    # A shift of a negative number brings in ones, which the masks take away.
    x = (x ^ (x >> 30 & (1 << 34) - 1)) * MIX
    x = (x ^ (x >> 27 & (1 << 37) - 1)) * STIR
    return x ^ (x >> 31 & (1 << 33) - 1)
