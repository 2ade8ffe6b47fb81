"""Norms alone: RMSNorm and LayerNorm in all published variants, or any registered kind."""

from __future__ import annotations

from typing import Any, Literal

import torch

from anyformer.errors import SpecError
from anyformer.nn.part import count
from anyformer.parts.norm import Norm as NormModule
from anyformer.specs.axes import Norm as NormLeaf
from anyformer.specs.codec import Problems, read

Gain = Literal["weight", "one_plus", "none"]
GainAt = Literal["before_cast", "after_cast"]


class Norm(NormModule):
    """A norm over the last dimension, of any kind; options are the fields of [norm] in a spec. Computes in at least fp32."""

    def __init__(
        self,
        width: int,
        kind: str | NormLeaf = "rmsnorm",
        *,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        **options: Any,
    ) -> None:
        source = f"af.nn.{type(self).__name__}"
        leaf = _leaf(source, kind, options)
        super().__init__(leaf, (count(source, "width", width),))
        self.to(device=device, dtype=dtype)
        self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Gains of 1, biases of 0."""
        for name, weight in self.leaf.weights(self.shape).items():
            self.get_parameter(name).fill_(weight.fill or 0.0)


class RMSNorm(Norm):
    """x / sqrt(mean(x^2) + eps), times a gain (Zhang and Sennrich 2019).

    gain: the stored weight, "one_plus" it (Gemma), or "none". gain_at: multiplied "after_cast" back to the input's dtype
    (Llama) or "before_cast", in at least fp32 (OLMo 2, Gemma).
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-6,
        gain: Gain = "weight",
        gain_at: GainAt = "after_cast",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, "rmsnorm", eps=eps, gain=gain, gain_at=gain_at, device=device, dtype=dtype)


class LayerNorm(Norm):
    """(x - mean) / sqrt(var + eps), times a gain, plus a bias (Ba et al. 2016).

    gain: the stored weight, "one_plus" it (Nemotron), or "none" (OLMo 1, with bias=False).
    """

    def __init__(
        self,
        width: int,
        *,
        eps: float = 1e-5,
        gain: Gain = "weight",
        bias: bool = True,
        gain_at: GainAt = "before_cast",
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(width, "layernorm", eps=eps, gain=gain, bias=bias, gain_at=gain_at, device=device, dtype=dtype)


def _leaf(source: str, kind: str | NormLeaf, options: dict[str, Any]) -> NormLeaf:
    problems = Problems()
    data: Any = kind if isinstance(kind, NormLeaf) and not options else {"kind": kind, **options}
    leaf = read(NormLeaf, data, "norm", problems)
    if not problems.found:
        for name, why in leaf.problems():
            problems.add(f"norm.{name}", why)
    if problems.found:
        raise SpecError(problems.lines, source)
    return leaf
