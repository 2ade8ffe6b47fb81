"""One standard deviation for everything (BERT, Llama; cut at 3 sigma in OLMo 2)."""

from dataclasses import dataclass

from anyformer.specs.axes import Init, Normal, ParamSpec


@dataclass(frozen=True, kw_only=True)
class PlainNormal(Init, kind="normal"):
    """N(0, std^2) for every matrix and table."""

    positive = ("std", "cut")
    std: float = 0.02
    cut: float | None = None
    """Cut at this many standard deviations."""

    def equation(self) -> str:
        return f"W ~ N(0, {self.std:g}^2)" + (f", cut at {self.cut:g} sigma" if self.cut is not None else "")

    def rule(self, weight: ParamSpec, *, width: int, depth: int, tied: bool, heads: int, head_dim: int) -> Normal:
        return Normal(std=self.std, cut=self.cut)
