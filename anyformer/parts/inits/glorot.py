"""The house's own start: truncated normals of variance 2/(d_in + d_out), embeddings of variance 1."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class Glorot(Init, kind="glorot"):
    """Matrices keep the size of what passes through in both directions; all draws are cut at 3 sigma.

    A tied table is also the output matrix: with variance 1 the first logits would have a standard deviation of
    about sqrt(width), so tied embeddings start at width^-1/2 (of the table's own width).
    """

    formula = "W ~ N(0, 2/(d_in + d_out)), tables N(0, 1), tied tables N(0, 1/d), all cut at 3 sigma"

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        if weight.role in ("embedding", "position_embedding"):
            return Normal(std=weight.shape[-1] ** -0.5 if tied else 1.0, cut=3.0)
        return Normal(std=(2 / (weight.shape[-2] + weight.shape[-1])) ** 0.5, cut=3.0)
