"""RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps), times a gain."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from anyformer.specs.axes import Norm, Problem, Weight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class RMSNorm(Norm, kind="rmsnorm"):
    """Scale only, no centring."""

    eps: float = 1e-6
    gain: Literal["weight", "one_plus", "none"] = "weight"
    """The stored weight, 1 + the stored weight (Gemma), or no gain at all."""
    gain_at: Literal["before_cast", "after_cast"] = "after_cast"
    """Multiply the gain in fp32 (OLMo 2, Gemma) or after the cast back to the input's dtype (Llama)."""

    def problems(self) -> Iterator[Problem]:
        if self.eps <= 0:
            yield "eps", f"{self.eps} is not above 0"

    def weights(self, shape: tuple[int, ...]) -> dict[str, Weight]:
        if self.gain == "none":
            return {}
        return {"weight": Weight(shape=shape, role="gain", fill=0.0 if self.gain == "one_plus" else 1.0)}

    def apply(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        import torch

        if weight is None or self.gain == "weight":
            gain = weight
        else:
            gain = 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
        if x.dtype in (torch.float32, torch.float64) and (gain is None or gain.dim() == 1):
            return torch.rms_norm(x, x.shape[-1:], gain, self.eps)
        exact = torch.promote_types(x.dtype, torch.float32)
        normed = torch.rms_norm(x.to(exact), x.shape[-1:], None, self.eps)
        if gain is None:
            return normed.to(x.dtype)
        if self.gain_at == "after_cast":
            return normed.to(x.dtype) * gain.to(x.dtype)
        return (normed * gain.to(exact)).to(x.dtype)
