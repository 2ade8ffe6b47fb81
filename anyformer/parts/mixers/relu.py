"""Normalised ReLU scores: p_s = relu(x_s) / sum relu(x); a query whose scores are all negative takes nothing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anyformer.specs.axes import Mixer, Problem

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class Relu(Mixer, kind="relu"):
    """Sparse weights without an exponential."""

    eps: float = 1e-6
    """Added to the sum, so that a row of zeros stays zero."""

    def problems(self) -> Iterator[Problem]:
        if self.eps <= 0:
            yield "eps", f"{self.eps} is not above 0"

    def weigh(self, scores: Tensor, own: Mapping[str, Tensor]) -> Tensor:
        weights = scores.relu()
        return weights / (weights.sum(-1, keepdim=True) + self.eps)
