"""RMSNorm (Zhang and Sennrich 2019): x / sqrt(mean(x^2) + eps), times a gain."""

from dataclasses import dataclass

from anyformer.parts.norms.gain import GAIN_WORDS, Gain, GainAt, GainedNorm, one_plus, scaled
from anyformer.specs.axes import Params, Tensor


@dataclass(frozen=True, kw_only=True)
class RMSNorm(GainedNorm, kind="rmsnorm"):
    """Scale only, no centring."""

    title = "RMSNorm"
    centred = False
    eps: float = 1e-6
    gain: Gain = "weight"
    """The stored weight, 1 + the stored weight (Gemma), or no gain at all."""
    gain_at: GainAt = "after_cast"
    """Multiply the gain in fp32 (OLMo 2, Gemma) or after the cast back to the input's dtype (Llama)."""

    def equation(self) -> str:
        return f"norm(x) = x / sqrt(mean(x^2) + {self.eps:g}){GAIN_WORDS[self.gain]}"

    def apply(self, x: Tensor, own: Params) -> Tensor:
        import torch

        gain = own.get("weight") if self.gain != "one_plus" else one_plus(own["weight"])
        if x.dtype in (torch.float32, torch.float64) and (gain is None or gain.dim() == 1):
            learns = torch.is_grad_enabled()
            if x.numel() == x.shape[-1] and x.is_cpu and not learns and not torch.compiler.is_compiling():
                # One token on a CPU: three operations and a number on the host, where torch's own norm takes seven.
                row = x.reshape(-1)
                scale = (float(row.dot(row)) / x.shape[-1] + self.eps) ** -0.5
                return x * scale if gain is None else (x * gain).mul_(scale)
            return torch.rms_norm(x, x.shape[-1:], gain, self.eps)
        exact = x.to(torch.promote_types(x.dtype, torch.float32))
        return scaled(torch.rms_norm(exact, x.shape[-1:], None, self.eps), x, gain, None, self.gain_at)
