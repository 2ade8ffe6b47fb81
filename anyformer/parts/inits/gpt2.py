"""GPT-2's start: N(0, 0.02^2), the projections back into the residual divided by sqrt(2 depth)."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class GPT2(Init, kind="gpt2"):
    """The residual's variance stays bounded as depth grows."""

    formula = "W ~ N(0, {std:g}^2), into the residual N(0, {std:g}^2 / (2 depth))"
    title = "GPT-2"
    positive = ("std",)
    std: float = 0.02

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        residual = weight.role in ("attention_out", "ffn_out")
        return Normal(std=self.std / (2 * depth) ** 0.5 if residual else self.std)
