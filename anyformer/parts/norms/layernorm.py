"""LayerNorm (Ba et al. 2016): (x - mean) / sqrt(var + eps), times a gain, plus a bias."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from anyformer.specs.axes import Norm, Problem, Weight

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, kw_only=True)
class LayerNorm(Norm, kind="layernorm"):
    """Centring and scale; gain and bias are applied in fp32, before the cast back."""

    eps: float = 1e-5
    gain: Literal["weight", "one_plus", "none"] = "weight"
    """The stored weight, 1 + the stored weight (Nemotron), or no gain at all (OLMo 1)."""
    bias: bool = True
    gain_at: Literal["before_cast", "after_cast"] = "before_cast"
    """Multiply the gain in fp32, or after the cast back to the input's dtype."""

    def problems(self) -> Iterator[Problem]:
        if self.eps <= 0:
            yield "eps", f"{self.eps} is not above 0"
        if self.gain == "none" and self.bias:
            yield "bias", "a norm without gain has no bias; set it to false"

    def weights(self, shape: tuple[int, ...]) -> dict[str, Weight]:
        if self.gain == "none":
            return {}
        gain = {"weight": Weight(shape=shape, role="gain", fill=0.0 if self.gain == "one_plus" else 1.0)}
        return gain | ({"bias": Weight(shape=shape, role="bias", fill=0.0)} if self.bias else {})

    def apply(self, x: Tensor, weight: Tensor | None, bias: Tensor | None) -> Tensor:
        import torch

        if weight is None or self.gain == "weight":
            gain = weight
        else:
            gain = 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))
        if x.dtype in (torch.float32, torch.float64) and (gain is None or gain.dim() == 1):
            return torch.layer_norm(x, x.shape[-1:], gain, bias, self.eps)
        exact = torch.promote_types(x.dtype, torch.float32)
        normed = torch.layer_norm(x.to(exact), x.shape[-1:], None, None, self.eps)
        if gain is None:
            return normed.to(x.dtype)
        inner = x.dtype if self.gain_at == "after_cast" else exact
        scaled = normed.to(inner) * gain.to(inner)
        return (scaled if bias is None else scaled + bias.to(inner)).to(x.dtype)
