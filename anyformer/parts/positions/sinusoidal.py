"""Sinusoidal positions (Vaswani et al. 2017, section 3.5): PE(p, 2i) = sin(p theta^(-2i/d)), PE(p, 2i+1) = cos."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from anyformer.specs.axes import Dims, Params, Position, Problem, Tensor


@dataclass(frozen=True, kw_only=True)
class Sinusoidal(Position, kind="sinusoidal"):
    """Fixed sines and cosines, added to the embeddings."""

    positive = ("theta",)
    theta: float = 10000.0
    layout: Literal["interleaved", "halves"] = "interleaved"
    """sin and cos in turn (the paper), or all sines and then all cosines (Marian, tensor2tensor)."""
    endpoint: bool = False
    """Let the last frequency be exactly 1/theta, as tensor2tensor and FSMT do."""
    offset: int = 0
    """Added to every position."""

    def check(self, dims: Dims) -> Iterator[Problem]:
        if dims.embed_width % 2:
            given = f"the width it is added to must be even, got {dims.embed_width}"
            yield "kind", f"'sinusoidal' pairs sines with cosines, so {given}"

    def equation(self) -> str:
        even, odd = ("2i", "2i+1") if self.layout == "interleaved" else ("i", "i + d/2")
        place = f"(p + {self.offset})" if self.offset else "p"
        phase = f"{place} {self.theta:.10g}^({'-i/(d/2 - 1)' if self.endpoint else '-2i/d'})"
        return f"x_p + PE(p), PE(p, {even}) = sin({phase}), PE(p, {odd}) = cos({phase})"

    def constants(self, dims: Dims) -> dict[str, Sequence[float]]:
        half = dims.embed_width // 2
        steps = max(half - 1, 1) if self.endpoint else half
        return {"frequency": [self.theta ** (-i / steps) for i in range(half)]}

    def embed(self, own: Params, pos_BT: Tensor, like: Tensor) -> Tensor:
        import torch

        exact = torch.promote_types(like.dtype, torch.float32)
        phase = (pos_BT + self.offset).to(exact)[..., None] * own["frequency"].to(exact)
        pair = (phase.sin(), phase.cos())
        both = torch.stack(pair, -1).flatten(-2) if self.layout == "interleaved" else torch.cat(pair, -1)
        return both.to(like.dtype)
