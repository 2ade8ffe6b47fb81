"""Batched sampling with per-row parameters and draws by seed; no host sync, as CUDA graphs ask.

The number that decides a row's token is a pure function of its seed and the token's place: no generator is moved, so a
row draws the same alone, in any batch and whoever else joins or leaves.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from torch import Tensor

from anyformer.generation.samplers.logits_processors import NEVER, at_least, divided, nucleus

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


SamplingKind = Literal["greedy", "plain", "filtered"]
"""All rows take the likeliest token; some draw; some filter first."""


def sampling_kind(rows: Iterable[tuple[float, ...]]) -> SamplingKind:
    """The least that serves all rows, given the arguments of `sample` for each: temperature, top_k, top_p, min_p ..."""
    drawing = [row[1:4] for row in rows if row[0] > 0]
    if not drawing:
        return "greedy"
    return "filtered" if any(k > 0 or p < 1 or m > 0 for k, p, m in drawing) else "plain"


def sampling_tensors(rows: Iterable[tuple[float, ...]], device: torch.device) -> list[Tensor]:
    """The arguments of `sample`, each (B,), given those of each row: temperature, top_k, top_p, min_p, key and step."""
    return [
        torch.tensor(values, device=device, dtype=torch.float64 if i in (0, 2, 3) else torch.long)
        for i, values in enumerate(zip(*rows, strict=True))
    ]


def sample(
    logits_BV: Tensor,
    temperature_B: Tensor,
    top_k_B: Tensor,
    top_p_B: Tensor,
    min_p_B: Tensor,
    key_B: Tensor,
    step_B: Tensor,
    *,
    kind: SamplingKind = "filtered",
) -> Tensor:
    """Ids (B,), each what the processors temperature, top k, top p, min p gives its row.

    Temperature 0 takes the likeliest token; top_k 0, top_p 1 and min_p 0 are off. `key_B` are keys of draws (`rng.keys`),
    `step_B` the number of the new token. `top_p_B` and `min_p_B` are float64, so that they mean what was asked for.
    """
    best_B = logits_BV.argmax(-1)
    if kind == "greedy":
        return best_B
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    divisor_B1 = torch.where(temperature_B > 0, temperature_B, 1)[:, None]
    logits_BV = divided(logits_BV, divisor_B1.to(logits_BV.dtype))
    if kind == "filtered":
        logits_BV = _filtered(logits_BV, top_k_B, top_p_B, min_p_B)
    return torch.where(temperature_B > 0, pick(logits_BV, uniform(key_B, step_B)), best_B)


def _filtered(logits_BV: Tensor, top_k_B: Tensor, top_p_B: Tensor, min_p_B: Tensor) -> Tensor:
    vocab = logits_BV.shape[-1]
    falling_BV, order_BV = logits_BV.sort(-1, descending=True)
    k_B1 = torch.where((top_k_B > 0) & (top_k_B < vocab), top_k_B, vocab)[:, None]
    logits_BV = logits_BV.masked_fill(logits_BV < falling_BV.gather(-1, k_B1 - 1), NEVER)
    # In the order of the vocabulary, as the sum below a softmax depends on it in the last bit.
    probs_BV = logits_BV.softmax(-1)
    nucleus_BV = nucleus(probs_BV, probs_BV.gather(-1, order_BV), top_p_B[:, None])
    logits_BV = logits_BV.masked_fill(~(nucleus_BV | (top_p_B >= 1)[:, None]), NEVER)
    # In the logits' own dtype, where `MinP` adds it too.
    return at_least(logits_BV, min_p_B.log()[:, None].to(logits_BV.dtype))
