"""LayerNorm (Ba et al. 2016): (x - mean) / sqrt(var + eps), times a gain, plus a bias."""

from collections.abc import Iterator
from dataclasses import dataclass

from anyformer.parts.norms.gain import GAIN_WORDS, Gain, GainAt, GainedNorm, one_plus, scaled
from anyformer.specs.axes import Params, Problem, Tensor


@dataclass(frozen=True, kw_only=True)
class LayerNorm(GainedNorm, kind="layernorm"):
    """Centring and scale; gain and bias are applied in fp32, before the cast back."""

    title = "LayerNorm"
    centred = True
    eps: float = 1e-5
    gain: Gain = "weight"
    """The stored weight, 1 + the stored weight (Nemotron), or no gain at all (OLMo 1)."""
    bias: bool = True
    gain_at: GainAt = "before_cast"
    """Multiply the gain in fp32, or after the cast back to the input's dtype."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.gain == "none" and self.bias:
            yield "bias", "a norm without gain has no bias; set it to false"

    def equation(self) -> str:
        after = GAIN_WORDS[self.gain] + (" + b" if self.bias else "")
        return f"norm(x) = (x - mean(x)) / sqrt(var(x) + {self.eps:g}){after}"

    def apply(self, x: Tensor, own: Params) -> Tensor:
        import torch

        gain, bias = own.get("weight") if self.gain != "one_plus" else one_plus(own["weight"]), own.get("bias")
        if x.dtype in (torch.float32, torch.float64) and (gain is None or gain.dim() == 1):
            return torch.layer_norm(x, x.shape[-1:], gain, bias, self.eps)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return scaled(torch.layer_norm(exact, x.shape[-1:], None, None, self.eps), x, gain, bias, self.gain_at)
