"""T5's factors (Mesh-TF): the query carries the 1/sqrt(d) that T5's scores lack, embeddings have variance 1."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class T5Factors(Init, kind="t5"):
    """q (width head_dim)^-1/2; k, v, relative and input matrices width^-1/2; outputs fan_in^-1/2; tables 1."""

    title = "T5"
    positive = ("factor",)
    factor: float = 1.0

    def equation(self) -> str:
        factor = f"{self.factor:g}^2 " if self.factor != 1 else ""
        shares = "1/(width d_head) for q, 1/d_in back into the residual, 1 for tables and head, else 1/width"
        return f"W ~ N(0, {factor}c), c = {shares}"

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        match weight.role:
            case "embedding" | "position_embedding" | "head":
                std = 1.0
            case "query":
                std = (width * head_dim) ** -0.5
            case "attention_out" | "ffn_out":
                std = weight.shape[-1] ** -0.5
            case _:
                std = width**-0.5
        return Normal(std=self.factor * std)
