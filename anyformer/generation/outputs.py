"""What `generate` answers beside ids: log-probabilities, the likeliest tokens, and why each row ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor


class Step(NamedTuple):
    """One step of a stream with details."""

    ids_B: Tensor
    logprobs_B: Tensor
    """Natural logarithms of the model's own probabilities, before temperature and samplers; 0 in finished rows."""
    finished_B: Tensor
    """Rows that met a stop, in this step or before."""
    top_ids_BK: Tensor | None = None
    """The likeliest tokens by the model itself, the likeliest first, if `logprobs` asks for some."""
    top_logprobs_BK: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Top:
    """The likeliest tokens at each place of each row, by the model itself, the likeliest first."""

    ids: Tensor
    """(B, places, k)."""
    logprobs: Tensor


@dataclass(frozen=True, kw_only=True)
class GenerationOutput:
    """What `generate` gives with details. Answers to one row of the prompt are beside each other."""

    ids: Tensor
    """What it gives without them."""
    logprobs: Tensor
    """(B, steps): natural logarithms of the model's own probabilities of the new tokens, before temperature and
    samplers; 0 in finished rows.
    """
    lengths: tuple[int, ...]
    """New tokens of each row, its stop token included."""
    reasons: tuple[str, ...]
    """Why each row ended: `length` or `stop`."""
    met: tuple[str | None, ...] = ()
    """The stop string or the choice with which each row ended, if it was one."""
    top: Top | None = None
    """Of the new tokens, if `logprobs` asks for some."""
    prompt_logprobs: Tensor | None = None
    """(rows of the prompt, T): of the prompt's own tokens, if asked for; 0 in padding and for the first token, which
    nothing predicts.
    """
    prompt_top: Top | None = None
    """Of the prompt's tokens: at each place, what the tokens before it predict."""
    scores: Tensor | None = None
    """Of a search with beams: by what the answers were ranked."""


def own_logprobs(logits_BV: Tensor) -> Tensor:
    """The model's own log-probabilities, never below fp32."""
    return logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)).log_softmax(-1)
