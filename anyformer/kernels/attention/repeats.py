"""Keys that count several times in the softmax: log n on their scores, as one more number of each query and key.

No kernel knows of it. A product of a query's number and a key's is a score like any other, so heads that are a little
wider say it to all of them.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.dispatch import AttentionArgs, Kernel

WIDER = 8
"""Numbers added to each head. Two are used; kernels of 16 bits ask for a multiple of 8."""


def attend(kernel: Kernel, q_BTHK: Tensor, k_BSGK: Tensor, v_BSGK: Tensor, terms: AttentionArgs) -> Tensor:
    """Attention by a kernel; of the pattern, keys that count several times do."""
    mask = terms.mask
    if not mask.pattern.repeats:
        return kernel.run(q_BTHK, k_BSGK, v_BSGK, terms)
    exact = torch.promote_types(q_BTHK.dtype, torch.float32)
    more_BT = torch.log1p(mask.pattern.extra(mask.q).to(exact)) / terms.scale
    # In two parts, since one number of 16 bits would round a score by more than the product of two vectors does.
    high_BT = more_BT.to(q_BTHK.dtype)
    parts_BTE = torch.stack((high_BT, (more_BT - high_BT.to(exact)).to(q_BTHK.dtype)), -1)
    which_BSE = mask.pattern.is_repeated(mask.k).to(k_BSGK.dtype)[..., None].expand(*mask.k.pos.shape, 2)
    wide = kernel.run(
        _widened(q_BTHK, parts_BTE), _widened(k_BSGK, which_BSE), F.pad(v_BSGK, (0, WIDER)), terms
    )  # fmt: skip
    return wide[..., : v_BSGK.shape[-1]]


def _widened(heads_BTHK: Tensor, more_BTE: Tensor) -> Tensor:
    """Every head with the same further numbers, and zeros to fill up."""
    more = F.pad(more_BTE, (0, WIDER - more_BTE.shape[-1]))[:, :, None]
    return torch.cat((heads_BTHK, more.expand(*heads_BTHK.shape[:3], WIDER)), -1)
