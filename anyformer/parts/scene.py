"""Scene: what the layers of one kind share in one forward pass.

Positions, masks, angles, shared biases and the choice of a kernel are computed once for each distinct pair of
attention and position spec; a layer only reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import Tensor

from anyformer.kernels.choose import Kernel
from anyformer.parts.cache import Cache
from anyformer.specs.axes import Where


class Turn(NamedTuple):
    """What a position scheme needs to rotate tokens, with the angles if the stack could compute them."""

    pos_BT: Tensor
    length_BT: Tensor | None
    angles: Any


@dataclass
class Scene:
    """Facts of one forward pass for the layers that share a kind of attention."""

    kernel: Kernel
    where: Where
    causal: bool = False
    mask: Tensor | None = None
    bias: Tensor | None = None
    """A bias that reads neither queries nor keys, so that no layer changes it."""
    own: dict[str, Tensor] | None = None
    """Parameters and constants of a position scheme that the stack owns."""
    q_turn: Turn | None = None
    k_turn: Turn | None = None
    cache: Cache | None = None
