"""Batched sampling with per-row parameters; no host sync, as CUDA graphs ask."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from anyformer.generation.samplers.logits_processors import NEVER, at_least, divided, nucleus
from anyformer.generation.samplers.rng import pick, uniform

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
