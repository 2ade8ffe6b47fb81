"""Which queries are global, for layers that give them projections of their own (Longformer)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.dispatch import Kernel
from anyformer.parts.attention_metadata import GlobalQueries, RotaryTables
from anyformer.specs.patterns import Pattern, Tokens


def global_rows(
    pattern: Pattern, mask: AttentionMask, turn: RotaryTables | None, kernel_for: Callable[[AttentionMask], Kernel]
) -> GlobalQueries | None:
    """The global queries of every row, gathered so that few are computed; None if there is none."""
    chosen_BT: Tensor | None = pattern.is_global(mask.q)
    if chosen_BT is None:
        return None
    if fixed_shapes(chosen_BT.device.type):
        # How many there are can't be looked at: every query is computed, and the others are dropped.
        return GlobalQueries(None, chosen_BT, mask, kernel_for(mask), turn)
    most = int(chosen_BT.sum(1).max())
    if most == 0:
        return None
    index_BN = (~chosen_BT).to(torch.uint8).argsort(dim=1, stable=True)[:, :most]
    some = AttentionMask(
        pattern, at(mask.q, index_BN), mask.k, mask.valid_BS, heads=mask.heads, layer=mask.layer, shape="pattern"
    )
    return GlobalQueries(
        index_BN, chosen_BT.gather(1, index_BN), some, kernel_for(some), None if turn is None else turn.at(index_BN)
    )


def at(tokens: Tokens, index_BN: Tensor) -> Tokens:
    """Some tokens of each row."""

    def pick(value: Any) -> Any:
        if not isinstance(value, Tensor) or value.dim() < 2 or (value.shape[1] == 1 and tokens.pos.shape[1] > 1):
            return value
        rows = max(value.shape[0], index_BN.shape[0])
        return value.expand(rows, -1).gather(1, index_BN.expand(rows, -1))

    return Tokens(*(pick(value) for value in tokens))
