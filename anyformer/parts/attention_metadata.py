"""Attention metadata, shared by the layers with equal specs in one forward pass.

Positions, mask, angles, shared score terms and the choice of a kernel are computed once for each distinct pair of
attention and position spec; a layer only reads them.
"""

from dataclasses import dataclass, replace
from typing import Any, NamedTuple, Self

from torch import Tensor

from anyformer.kernels.attention_mask import AttentionMask
from anyformer.kernels.block_table import BlockTable
from anyformer.kernels.dispatch import Kernel
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.replay import ReplayLog
from anyformer.specs.axes import ScoreBias


def gather_tokens(value: Any, index_BN: Tensor) -> Any:
    """What is said of some tokens of each row, of what is said of all (B or 1,T,...) or of the row."""
    if not isinstance(value, Tensor) or value.dim() < 2 or value.shape[1] == 1:
        return value
    rows = max(value.shape[0], index_BN.shape[0])
    index = index_BN.expand(rows, -1).reshape(rows, -1, *[1] * (value.dim() - 2)).expand(-1, -1, *value.shape[2:])
    return value.expand(rows, *value.shape[1:]).gather(1, index)


class RotaryTables(NamedTuple):
    """What a position scheme needs to rotate tokens, with the angles if the stack could compute them."""

    pos_BT: Tensor
    length_BT: Tensor | None
    angles: Any

    def at(self, index_BN: Tensor) -> Self:
        """The same for some tokens of each row."""
        angles = None if self.angles is None else tuple(gather_tokens(part, index_BN) for part in self.angles)
        pos_BN, length_BN = (gather_tokens(each, index_BN) for each in (self.pos_BT, self.length_BT))
        return self._replace(pos_BT=pos_BN, length_BT=length_BN, angles=angles)


class GlobalQueries(NamedTuple):
    """The queries of global tokens, where they have projections of their own."""

    index_BN: Tensor | None
    """Where they are in each row, with others to fill up; None: all tokens, as values can't be looked at."""
    chosen_BN: Tensor
    """Which of those are global."""
    mask: AttentionMask
    kernel: Kernel
    turn: RotaryTables | None


@dataclass
class AttentionMetadata:
    """Facts of one forward pass for the layers that share a kind of attention."""

    mask: AttentionMask
    kernel: Kernel | None = None
    """None where the mixer has a way of its own."""
    scores: ScoreBias | None = None
    """Terms that read neither queries nor keys, so that no layer changes them."""
    own: dict[str, Tensor] | None = None
    """Parameters and constants of a position scheme that the stack owns."""
    q_rope: RotaryTables | None = None
    k_rope: RotaryTables | None = None
    cache: KVCache | None = None
    pages: BlockTable | None = None
    """Where the keys lie, if the kernel reads pages."""
    globals_: GlobalQueries | None = None
    decisions: ReplayLog | None = None
    """Records what must not be decided anew when a reversible block is computed once more."""
    layer: int | None = None
    """The layer whose part of the cache is meant, if that is not the block's own number: layers may share a block."""

    def of_layer(self, layer: int) -> Self:
        """The same for one layer among those that share a block."""
        return replace(self, layer=layer)
