"""Fan-in: every matrix N(0, 1/d_in), embeddings N(0, 1) (PaLM)."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class FanIn(Init, kind="fan_in"):
    """What goes in with variance 1 comes out with variance 1."""

    formula = "W ~ N(0, 1/d_in), tables N(0, 1)"
    title = "fan-in"

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        table = weight.role in ("embedding", "position_embedding")
        return Normal(std=1.0 if table else weight.shape[-1] ** -0.5)
