"""No position scheme: a causal mask alone tells a decoder what came first (NoPE)."""

from dataclasses import dataclass

from anyformer.specs.axes import Position


@dataclass(frozen=True, kw_only=True)
class NoPosition(Position, kind="none"):
    """Nothing is added, rotated or biased."""

    formula = "s_ij = scale q_i . k_j"
    title = "no positions"
    relative = True
