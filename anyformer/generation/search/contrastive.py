"""Contrastive search (Su et al. 2022, equation 5): a likely token whose state is unlike those of all tokens before it.

Each of the `top_k` likeliest tokens is read. Its score is (1 - alpha) * its probability - alpha * the largest cosine
between its state and those of the tokens so far, prompt included. States are those that the head reads.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from anyformer.errors import InputError
from anyformer.generation.asking.request import Request
from anyformer.generation.details import Generated, own_logprobs
from anyformer.generation.readers.static import Anew, Cached
from anyformer.generation.samplers import NEVER, Past, apply_chain
from anyformer.generation.samplers.choose import NOTHING, History, why_not
from anyformer.model.model import Model


@torch.no_grad()
def contrastive_search(model: Model, asked: Request) -> Generated:
    """One answer to each row."""
    _check_room(model, asked)
    options, stop = asked.plan.options, asked.plan.stop
    rows, device = asked.begun_BT.shape[0], asked.begun_BT.device
    alpha = float(options.penalty_alpha or 0)
    reader: Any = (Cached if asked.cached else Anew)(model, asked)
    logits_BV = reader.begin()
    told = Told(reader.states_BTD, asked)
    width = min(options.top_k or 1, logits_BV.shape[-1])
    row_B = torch.arange(rows, device=device)
    # From here on each row is there once for each candidate.
    reader.reorder(row_B.repeat_interleave(width))
    history = History(asked.begun_BT, asked.begun_mask_BT, asked.new) if asked.plan.reads_past else None
    stop_S = torch.tensor(stop, dtype=torch.long, device=device)
    finished_B = torch.zeros(rows, dtype=torch.bool, device=device)
    length_B = torch.zeros_like(row_B)
    said, own = [], []
    for step in range(asked.new):
        left_BV = _left(logits_BV, asked, NOTHING if history is None else history.past, finished_B)
        logit_BK, ids_BK = left_BV.topk(width)
        next_RV = reader.go_on(ids_BK.flatten())
        states_BKD = reader.states_BTD.view(rows, width, -1)
        probs_BK = (logit_BK - left_BV.logsumexp(-1, keepdim=True)).exp()
        score_BK = (1 - alpha) * probs_BK - alpha * told.likeness_BK(states_BKD)
        best_B = score_BK.masked_fill(logit_BK == NEVER, NEVER).argmax(-1)
        ids_B = ids_BK[row_B, best_B]
        own.append(own_logprobs(logits_BV)[row_B, ids_B].masked_fill(finished_B, 0))
        ids_B = ids_B.masked_fill(finished_B, asked.pad)
        said.append(ids_B)
        length_B = length_B + (~finished_B).long()
        if stop:
            finished_B = finished_B | torch.isin(ids_B, stop_S)
        if step == asked.new - 1 or (stop and bool(finished_B.all())):
            break
        told.append(states_BKD[row_B, best_B])
        if history is not None:
            history.append(ids_B)
        chosen_B = row_B * width + best_B
        reader.reorder(chosen_B.repeat_interleave(width))
        logits_BV = next_RV[chosen_B]
    return Generated(
        ids=torch.cat((asked.begun_BT, torch.stack(said, 1)), 1),
        logprobs=torch.stack(own, 1),
        lengths=tuple(length_B.tolist()),
        reasons=tuple("stop" if each else "length" for each in finished_B.tolist()),
        met=(None,) * rows,
    )


class Told:
    """The directions of the states of all tokens so far."""

    def __init__(self, states_BTD: Tensor, asked: Request) -> None:
        rows, tokens, width = states_BTD.shape
        exact = torch.promote_types(states_BTD.dtype, torch.float32)
        self.used, length = tokens, tokens + asked.new
        self.unit_BLD = torch.zeros(rows, length, width, device=states_BTD.device, dtype=exact)
        self.unit_BLD[:, :tokens] = normalize(states_BTD.to(exact), dim=-1)
        self.real_BL = torch.ones(rows, length, dtype=torch.bool, device=states_BTD.device)
        if asked.begun_mask_BT is not None:
            self.real_BL[:, :tokens] = asked.begun_mask_BT != 0

    def likeness_BK(self, states_BKD: Tensor) -> Tensor:
        """How like the most similar token so far each candidate is: a cosine."""
        unit_BKD = normalize(states_BKD.to(self.unit_BLD.dtype), dim=-1)
        cosine_BKL = unit_BKD @ self.unit_BLD[:, : self.used].transpose(1, 2)
        return cosine_BKL.masked_fill(~self.real_BL[:, None, : self.used], NEVER).amax(-1)

    def append(self, states_BD: Tensor) -> None:
        """One more token in each row."""
        self.unit_BLD[:, self.used] = normalize(states_BD.to(self.unit_BLD.dtype), dim=-1)
        self.used += 1


def _left(logits_BV: Tensor, asked: Request, past: Past, finished_B: Tensor) -> Tensor:
    """What the samplers leave, never below fp32."""
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    left_BV = apply_chain(logits_BV, asked.plan.chain, past)
    bad_B = ~left_BV.amax(-1).isfinite() & ~finished_B
    if bool(bad_B.any()):
        row = int(bad_B.long().argmax())
        raise InputError(f"row {row}: {why_not(logits_BV[row], left_BV[row])}")
    return left_BV


def _check_room(model: Model, asked: Request) -> None:
    """Every candidate is read, those of the last step too, so that one needs a position that it has nowhere else."""
    decoder: Any = model.decoder
    if decoder.limit is not None and asked.total > decoder.limit:
        raise InputError(
            f"max_new_tokens: contrastive search reads its last token too, so {asked.new} of them need {asked.total} "
            f"positions, and this model has {decoder.limit}; ask for one less"
        )
