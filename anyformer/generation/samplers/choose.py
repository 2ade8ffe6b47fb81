"""How the next token is chosen from logits: the likeliest, or a draw, of what a chain of samplers leaves."""

from __future__ import annotations

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.samplers.draw import pick
from anyformer.generation.samplers.past import Chain, Past, apply_chain


class History:
    """The tokens so far of rows that grow together, for samplers that look at them."""

    def __init__(self, begun_BT: Tensor, mask_BT: Tensor | None, new: int) -> None:
        rows, width = begun_BT.shape
        real_BT = torch.ones_like(begun_BT, dtype=torch.bool) if mask_BT is None else mask_BT != 0
        prompt_B = real_BT.sum(-1)
        # Real tokens first, in their order.
        order_BT = (~real_BT).to(torch.int8).argsort(stable=True, dim=-1)
        ids_BL = begun_BT.new_full((rows, width + new), -1)
        ids_BL[:, :width] = begun_BT.masked_fill(~real_BT, -1).gather(1, order_BT)
        self.past = Past(ids_BL, prompt_B, torch.zeros_like(prompt_B))

    def append(self, ids_B: Tensor) -> None:
        """One more token in each row."""
        past = self.past
        past.ids_BL.scatter_(1, (past.prompt_B + past.new_B)[:, None], ids_B[:, None])
        past.new_B.add_(1)


def choose(
    logits_BV: Tensor,
    chain: Chain = (),
    past: Past | None = None,
    *,
    points_B: Tensor | None = None,
    finished_B: Tensor | None = None,
) -> Tensor:
    """Ids (B,) of the chosen tokens. Without `points_B` the likeliest, of equals the lowest id; else the draw at them.

    Rows that have finished get some id. A `past` is needed if a sampler of the chain reads it.
    """
    logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32))
    left_BV = apply_chain(logits_BV, chain, NOTHING if past is None else past) if chain else logits_BV
    best_B, choice_B = left_BV.max(-1)
    # The largest of a row is NaN if any is, and infinite if nothing or something impossible is left.
    if not bool(best_B.isfinite().all()):
        left_BV = _mended(logits_BV, left_BV, finished_B)
        choice_B = left_BV.argmax(-1)
    return choice_B if points_B is None else pick(left_BV, points_B)


def why_not(logits_V: Tensor, left_V: Tensor) -> str | None:
    """Why no token of a row can be chosen, given its logits before and after the samplers; None: one can."""
    for row_V, what in ((logits_V, "are the weights damaged, or is the dtype too narrow? Try dtype=torch.float32"), (left_V, "the samplers rule out every token; loosen one")):  # fmt: skip
        best = row_V.max()
        if not bool(best.isfinite()):
            bad = int(row_V.isnan().sum())
            which = f"{bad} of {len(row_V)} logits are NaN" if bad else f"the largest logit is {float(best)}"
            return f"{which}, so no token can be chosen; {what}"
    return None


def _mended(logits_BV: Tensor, left_BV: Tensor, finished_B: Tensor | None) -> Tensor:
    """Logits in which rows that have finished are possible. For any other row that is not, an error."""
    mended_BV = left_BV.clone()
    for row in range(len(left_BV)):
        why = why_not(logits_BV[row], left_BV[row])
        if why is None:
            continue
        if finished_B is None or not bool(finished_B[row]):
            raise InputError(f"row {row}: {why}")
        mended_BV[row] = 0
    return mended_BV


NOTHING = Past(torch.empty(0, 0), torch.empty(0), torch.empty(0))
"""For chains that read no past."""
