"""ALiBi: a penalty that grows with distance, score - slope_h |i - j| (Press et al. 2021)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from anyformer.specs.axes import Dims, Params, Position, QKPositions, ScoreBias, Tensor


def slopes(heads: int, base: float) -> list[float]:
    """One slope for each head: powers of 2^(-base/P) for the largest power of two P, then every second of 2P."""
    power = 2 ** math.floor(math.log2(heads))
    first = [2 ** (-base * i / power) for i in range(1, power + 1)]
    between = [2 ** (-base * i / (2 * power)) for i in range(1, 2 * power + 1, 2)]
    return first + between[: heads - power]


@dataclass(frozen=True, kw_only=True)
class Alibi(Position, kind="alibi"):
    """Each head subtracts its slope times the distance."""

    title = "ALiBi"
    relative = True
    positive = ("slope_base",)
    slope_base: float = 8.0
    before_scale: bool = False
    """Add the penalty before the scores are scaled (Falcon-RW), so that it is scaled too."""

    def equation(self) -> str:
        slope = f"slope_h |i - j|, slope_h = 2^(-{self.slope_base:.10g} h / P), P heads or the power of 2 below"
        return f"s_ij = scale (q_i . k_j - {slope})" if self.before_scale else f"s_ij = scale q_i . k_j - {slope}"

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        return {"slope_H": slopes(dims.heads, self.slope_base)}

    def scores(self, own: Params, q_BTHK: Tensor, k_BSGK: Tensor, where: QKPositions, scale: float) -> ScoreBias:
        import torch

        exact = torch.promote_types(q_BTHK.dtype, torch.float32)
        return ScoreBias(slope_H=own["slope_H"].to(exact) * -(scale if self.before_scale else 1.0))
