"""GPT-NeoX's start: sqrt(2 / (5 width)) (Nguyen and Salazar 2019), and 2 / (depth sqrt(width)) into the residual (Wang)."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class SmallWang(Init, kind="small"):
    """Small init for every input, Wang init for projections back into the residual."""

    formula = "W ~ N(0, 2 / (5 width)), into the residual N(0, 4 / (depth^2 width))"
    title = "small and Wang"

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        residual = weight.role in ("attention_out", "ffn_out")
        return Normal(std=2 / (depth * width**0.5) if residual else (2 / (5 * width)) ** 0.5)
