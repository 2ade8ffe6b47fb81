"""Beam search: several hypotheses of each row beside each other, the likeliest of which are answered.

Hypotheses are ranked by the sum of their tokens' log-probabilities, after the samplers, divided by their length to the
power of `length_penalty`. Groups of beams (Vijayakumar et al. 2018, algorithm 1 with Hamming diversity) take their turns
within a step: a token costs `diversity_penalty` for each beam of an earlier group that went on with it in this step.
"""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import Request
from anyformer.generation.details import Generated, own_logprobs
from anyformer.generation.readers.static import Anew, Cached
from anyformer.generation.samplers import NEVER, apply_chain
from anyformer.generation.samplers.choose import NOTHING, History, why_not
from anyformer.generation.samplers.past import counts_BV
from anyformer.model.model import Model

SMALL, LARGE = 1e-30, 1e30
"""What a length to some power is kept between, so that a score stays finite."""


@torch.no_grad()
def beam_search(model: Model, asked: Request) -> Generated:
    """The best `n` hypotheses of each row, the best first."""
    options = asked.plan.options
    rows, device = asked.begun_BT.shape[0], asked.begun_BT.device
    groups, beams = options.num_beam_groups, options.num_beams
    width = beams // groups
    reader = (Cached if asked.cached else Anew)(model, asked)
    logits_BV = reader.begin()
    # One reading of the prompt serves all beams. Rows are ordered by prompt, then group, then beam.
    row_R = torch.arange(rows, device=device).repeat_interleave(beams)
    reader.reorder(row_R)
    logits_RV = logits_BV[row_R]
    history = None
    if asked.plan.reads_past:
        mask_BT = asked.begun_mask_BT
        history = History(asked.begun_BT[row_R], None if mask_BT is None else mask_BT[row_R], asked.new)
    own_RV = own_logprobs(logits_RV)
    parts = [Group(asked, width, own_RV) for _ in range(groups)]
    first_BG1 = torch.arange(rows * groups, device=device).view(rows, groups, 1) * width
    for step in range(asked.new):
        _check(logits_RV, own_RV, beams)
        past = NOTHING if history is None else history.past
        told_RV = apply_chain(own_RV, asked.plan.chain, past)
        own_BGWV, told_BGWV = (each.view(rows, groups, width, -1) for each in (own_RV, told_RV))
        taken_BV = torch.zeros_like(own_BGWV[:, 0, 0])
        for g, group in enumerate(parts):
            searching_B1 = group.open_B1
            group.go_on(step, told_BGWV[:, g] - options.diversity_penalty * taken_BV[:, None], own_BGWV[:, g])
            # Neither a group that has found its best holds others back, nor a beam that nothing was left for.
            count_BW = (group.score_BW > NEVER) & searching_B1
            taken_BV = taken_BV + counts_BV(group.ids_BW.masked_fill(~count_BW, -1), taken_BV)
        if step == asked.new - 1 or not bool(torch.stack([group.open_B1 for group in parts]).any()):
            break
        rows_R = (first_BG1 + torch.stack([group.parent_BW for group in parts], 1)).flatten()
        ids_R = torch.stack([group.ids_BW for group in parts], 1).flatten()
        reader.reorder(rows_R)
        if history is not None:
            history.past = history.past.rows(rows_R)
            history.append(ids_R)
        logits_RV = reader.go_on(ids_R)
        own_RV = own_logprobs(logits_RV)
    return _answer(asked, parts)


class Group:
    """Beams that compete with each other, and the hypotheses that they have brought to an end."""

    def __init__(self, asked: Request, width: int, like: Tensor) -> None:
        rows, device = asked.begun_BT.shape[0], like.device
        options = asked.plan.options
        self.width, self.new, self.pad = width, asked.new, asked.pad
        self.power, self.early = float(options.length_penalty), options.early_stopping
        self.stop_S = torch.tensor(asked.plan.stop, dtype=torch.long, device=device)
        # As many candidates that may all stop, and still as many that go on.
        self.candidates = max(2, 1 + len(asked.plan.stop)) * width
        self.score_BW = like.new_full((rows, width), NEVER)
        """The sum of each beam that goes on. At first there is one only: all would say the same."""
        self.score_BW[:, 0] = 0
        self.said_BWN = asked.begun_BT.new_full((rows, width, self.new), asked.pad)
        self.own_BWN = like.new_zeros(rows, width, self.new)
        """The model's own log-probabilities of what was said."""
        self.parent_BW = asked.begun_BT.new_zeros(rows, width)
        """Which beam of the step before each one goes on from."""
        self.ids_BW = self.parent_BW
        """With which token."""
        self.best_BW = self.score_BW.new_full((rows, width), NEVER)
        """Scores of hypotheses that have ended, the best first; NEVER where there is none yet."""
        self.ended_BWN, self.ended_own_BWN = self.said_BWN.clone(), self.own_BWN.clone()
        self.length_BW = self.parent_BW.clone()
        self.open_B1 = torch.ones(rows, 1, dtype=torch.bool, device=device)
        """Rows that may still find a better hypothesis."""

    def go_on(self, step: int, told_BWV: Tensor, own_BWV: Tensor) -> None:
        """Take one more token in every beam."""
        vocab = told_BWV.shape[-1]
        total_BC = (self.score_BW[..., None] + told_BWV).flatten(1)
        sum_BK, at_BK = total_BC.topk(min(self.candidates, total_BC.shape[1]))
        beam_BK, ids_BK = at_BK // vocab, at_BK % vocab
        said_BKN, own_BKN = _rows(self.said_BWN, beam_BK), _rows(self.own_BWN, beam_BK)
        said_BKN[..., step] = ids_BK
        own_BKN[..., step] = own_BWV.flatten(1).gather(1, at_BK)
        stops_BK = torch.isin(ids_BK, self.stop_S)
        self._end(step, sum_BK, stops_BK | (step == self.new - 1), said_BKN, own_BKN)
        self.score_BW, which_BW = sum_BK.masked_fill(stops_BK, NEVER).topk(self.width)
        self.said_BWN, self.own_BWN = _rows(said_BKN, which_BW), _rows(own_BKN, which_BW)
        self.parent_BW, self.ids_BW = beam_BK.gather(1, which_BW), ids_BK.gather(1, which_BW)
        self._close(step)

    def _end(self, step: int, sum_BK: Tensor, ends_BK: Tensor, said_BKN: Tensor, own_BKN: Tensor) -> None:
        """Keep the best of the hypotheses that have ended. The spare candidates only see to it that beams go on."""
        new_BK = (sum_BK / self._length(step + 1)).masked_fill(~(ends_BK & self.open_B1), NEVER)
        new_BK[:, self.width :] = NEVER
        self.best_BW, which_BW = torch.cat((self.best_BW, new_BK), 1).topk(self.width)
        self.ended_BWN = _rows(torch.cat((self.ended_BWN, said_BKN), 1), which_BW)
        self.ended_own_BWN = _rows(torch.cat((self.ended_own_BWN, own_BKN), 1), which_BW)
        lengths_BK = torch.full_like(which_BW[:, :1], step + 1).expand(-1, new_BK.shape[1])
        self.length_BW = torch.cat((self.length_BW, lengths_BK), 1).gather(1, which_BW)

    def _close(self, step: int) -> None:
        """Stop looking where nothing better is to be expected."""
        worst_B1 = self.best_BW[:, -1:]
        if self.early is True:
            self.open_B1 = self.open_B1 & (worst_B1 == NEVER)
        # Log-probabilities only add up, so at most a greater length makes a score better.
        ahead = self.new if self.early == "never" and self.power > 0 else step + 1
        self.open_B1 = self.open_B1 & (self.score_BW[:, :1] / self._length(ahead) > worst_B1)

    def _length(self, tokens: int) -> Tensor:
        """What a sum is divided by."""
        power = torch.tensor(float(tokens), dtype=torch.float64) ** self.power
        return power.clamp(SMALL, LARGE)


def _rows(held_BWN: Tensor, which_BK: Tensor) -> Tensor:
    """Some beams of each row."""
    return held_BWN.gather(1, which_BK[..., None].expand(-1, -1, held_BWN.shape[-1]))


def _check(logits_RV: Tensor, own_RV: Tensor, beams: int) -> None:
    """Refuse logits that say nothing."""
    bad_R = ~own_RV.amax(-1).isfinite()
    if bool(bad_R.any()):
        row = int(bad_R.long().argmax())
        raise InputError(f"row {row // beams}: {why_not(logits_RV[row], own_RV[row])}")


def _answer(asked: Request, parts: list[Group]) -> Generated:
    """The best hypotheses of all groups."""
    count = asked.plan.options.n
    scores_BA, which_BA = torch.cat([group.best_BW for group in parts], 1).topk(count)
    short_B = (scores_BA == NEVER).any(-1)
    if bool(short_B.any()):
        row = int(short_B.long().argmax())
        found = int((scores_BA[row] > NEVER).sum())
        raise InputError(
            f"row {row}: the samplers and {asked.new} new tokens leave {found} hypotheses, and n = {count} were asked "
            "for; loosen a sampler, or ask for fewer"
        )
    lengths_R = torch.cat([group.length_BW for group in parts], 1).gather(1, which_BA).flatten()
    steps = int(lengths_R.max())
    said_RN = _rows(torch.cat([group.ended_BWN for group in parts], 1), which_BA).flatten(0, 1)[:, :steps]
    own_RN = _rows(torch.cat([group.ended_own_BWN for group in parts], 1), which_BA).flatten(0, 1)[:, :steps]
    last_R = said_RN.gather(1, lengths_R[:, None] - 1)[:, 0]
    stopped = torch.isin(last_R, parts[0].stop_S).tolist()
    return Generated(
        ids=torch.cat((asked.begun_BT.repeat_interleave(count, 0), said_RN), 1),
        logprobs=own_RN,
        lengths=tuple(lengths_R.tolist()),
        reasons=tuple("stop" if each else "length" for each in stopped),
        met=(None,) * len(stopped),
        scores=scores_BA.flatten(),
    )
