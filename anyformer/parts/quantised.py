"""Quantised maps: weights of 8 or 4 bits for the large products of a model that only reads."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import CapabilityError, InputError
from anyformer.kernels import few
from anyformer.kernels.few import NormTerms
from anyformer.kernels.few.quantised import int4_linear, int8_linear, quantise_int4, quantise_int8
from anyformer.kernels.few.rows import int8_rows_linear

KINDS = ("int8", "int4")
GROUP = 128
"""Inputs that share a scale of int4 weights, if they divide; else the largest power of two that does, from 16 on."""


class QuantisedLinear(nn.Module):
    """x W^T + b with W (out, in) in whole numbers: a drop-in for Linear.

    On a CPU int8 weights meet activations that are quantised row by row; on CUDA activations stay as they are.
    """

    data_OI: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None, kind: str) -> None:
        super().__init__()
        out, into = weight_OI.shape
        self.kind, self.shape, self.group = kind, (into, out), 0
        if kind == "int4":
            self.group = next((g for g in (GROUP, 64, 32, 16) if into % g == 0), 0)
            if not self.group:
                raise CapabilityError(
                    f"int4: {into} inputs are no multiple of 16, which share a scale; load it with quantize='int8'"
                )
            data, scale = quantise_int4(weight_OI, self.group)
        else:
            data, scale = quantise_int8(weight_OI)
            if weight_OI.device.type == "cpu":
                scale = scale / 127
        # Not saved: a quantised model is made from the one that was.
        self.register_buffer("data_OI", data, persistent=False)
        self.register_buffer("scale", scale, persistent=False)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach().clone(), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if x.dim() == 2 else self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])

    def product(self, x_NI: Tensor) -> Tensor:
        """The same for rows."""
        if x_NI.requires_grad and torch.is_grad_enabled():
            raise CapabilityError(
                "a quantised model can't learn: its weights are whole numbers; train the model that it was made from, or "
                "call it in torch.no_grad()"
            )
        own: Any = self._buffers  # See Attention.forward.
        data, scale, bias = own["data_OI"], own["scale"], own["bias"]
        if self.group:
            return int4_linear(x_NI, data, scale, self.group, bias)
        return int8_rows_linear(x_NI, data, scale, bias) if x_NI.is_cpu else int8_linear(x_NI, data, scale, bias)

    def read(self, x_ND: Tensor, norm: NormTerms | None) -> Tensor:
        """What it gives for the normed input."""
        return self.product(x_ND if norm is None else few.norm(x_ND, norm))

    def add(self, x_NI: Tensor, residual_NO: Tensor, *, over: bool = False) -> Tensor:
        """The residual with what the map gives."""
        return residual_NO + self.product(x_NI)

    def holds(self) -> bool:
        """Whether it is what it was made for: nothing moves its numbers from outside."""
        return True

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        here = self.data_OI.device
        there = fn(self.data_OI[:0]).device
        if there.type != here.type:
            raise CapabilityError(
                f"a quantised model stays on its device, {here}: load it again with device={str(there)!r}"
            )
        return super()._apply(fn, recurse)

    def extra_repr(self) -> str:
        return f"{self.shape[0]} -> {self.shape[1]}, {self.kind}" + (", bias" if self.bias is not None else "")


class Slice(nn.Module):
    """Some outputs of a merged map, for whoever asks for them alone: the whole product is made, and cut."""

    def __init__(self, whole: QuantisedLinear, start: int, end: int) -> None:
        super().__init__()
        self.whole, self.start, self.end = whole, start, end

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)[..., self.start : self.end]

    def extra_repr(self) -> str:
        return f"{self.whole.shape[0]} -> {self.end - self.start}"


def merge(maps: Sequence[tuple[Tensor, Tensor | None]], kind: str) -> QuantisedLinear:
    """Weights and biases one below the other, quantised."""
    weight = torch.cat([weight.detach() for weight, _ in maps]) if len(maps) > 1 else maps[0][0].detach()
    bias = None
    if any(b is not None for _, b in maps):
        bias = torch.cat([w.new_zeros(w.shape[0]) if b is None else b.detach() for w, b in maps])
    return QuantisedLinear(weight, bias, kind)


def is_quantised(model: nn.Module) -> bool:
    """Whether a model has such maps."""
    return any(isinstance(m, QuantisedLinear) for m in model.modules())


def check_kind(kind: str, device: torch.device, dtype: torch.dtype) -> None:
    """Refuse what can't be done on a device."""
    if kind not in KINDS:
        raise InputError(f"quantize: {kind!r} is unknown (known: {', '.join(KINDS)})")
    if device.type == "meta":
        raise CapabilityError("quantize: a model on the meta device has no weights")
    if kind == "int4" and device.type != "cuda":
        raise CapabilityError(f"quantize: int4 is for CUDA, and the model is on {device}; take 'int8'")
    if device.type == "cpu" and dtype != torch.float32:
        raise CapabilityError(f"quantize: int8 on a CPU computes in float32, not in {dtype}; leave dtype out")
