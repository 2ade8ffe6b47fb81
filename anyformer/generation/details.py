"""What `generate` answers beside ids: log-probabilities, the likeliest tokens, and why each row ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

CHUNK = 256
"""Positions of a prompt whose logits are there at once."""


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
class Generated:
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


def take_step(logits_BV: Tensor, ids_B: Tensor, finished_B: Tensor, top: int | None) -> tuple[Tensor, Tensor | None, Tensor | None]:  # fmt: skip
    """Log-probabilities of the chosen tokens, and the likeliest ones with theirs; 0 in rows that had finished."""
    own_BV = own_logprobs(logits_BV)
    chosen_B = own_BV.gather(-1, ids_B[:, None])[:, 0].masked_fill(finished_B, 0)
    if not top:
        return chosen_B, None, None
    likeliest = own_BV.topk(top)
    done_B1 = finished_B[:, None]
    return chosen_B, likeliest.indices.masked_fill(done_B1, 0), likeliest.values.masked_fill(done_B1, 0)


@torch.inference_mode()
def read_prompt_logprobs(
    head: Any, states_BTD: Tensor, ids_BT: Tensor, mask_BT: Tensor | None, top: int
) -> tuple[Tensor, Top | None]:
    """Log-probabilities (B,T) of a prompt's tokens from its states, and the likeliest tokens at each place."""
    width = ids_BT.shape[1]
    real_BT = torch.ones_like(ids_BT, dtype=torch.bool) if mask_BT is None else mask_BT != 0
    column_T = torch.arange(width, device=ids_BT.device)
    # The last real column before each one: padding may be on either side, and even between tokens.
    before_BT = torch.where(real_BT, column_T, -1).cummax(-1).values.roll(1, -1)
    before_BT[:, 0] = -1
    told_BT = real_BT & (before_BT >= 0)
    states_BTD = states_BTD.gather(1, before_BT.clamp(min=0)[..., None].expand(-1, -1, states_BTD.shape[-1]))
    found: list[Tensor] = []
    likeliest: list[Any] = []
    for start in range(0, width, CHUNK):
        own = own_logprobs(head(states_BTD[:, start : start + CHUNK]))
        found.append(own.gather(-1, ids_BT[:, start : start + CHUNK, None])[..., 0])
        if top:
            likeliest.append(own.topk(top))
    logprobs_BT = torch.cat(found, 1).masked_fill(~told_BT, 0)
    if not top:
        return logprobs_BT, None
    untold = ~told_BT[..., None]
    ids = torch.cat([each.indices for each in likeliest], 1).masked_fill(untold, 0)
    values = torch.cat([each.values for each in likeliest], 1).masked_fill(untold, 0)
    return logprobs_BT, Top(ids=ids, logprobs=values)


def together(steps: Sequence[Step]) -> Top | None:
    """The likeliest tokens of all steps."""
    ids = [step.top_ids_BK for step in steps if step.top_ids_BK is not None]
    values = [step.top_logprobs_BK for step in steps if step.top_logprobs_BK is not None]
    return Top(ids=torch.stack(ids, 1), logprobs=torch.stack(values, 1)) if ids else None
