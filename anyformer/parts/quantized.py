"""Quantised maps: weights of 8 or 4 bits for the large products of a model that only reads."""

from collections.abc import Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor, nn

from anyformer.errors import CapabilityError, InputError
from anyformer.kernels import small_gemm
from anyformer.kernels.small_gemm import NormTerms, cpu_int8, quantized

KINDS = ("int8", "int4")
GROUPS = (128, 64, 32, 16)
"""How many inputs share a scale of int4 weights: the first that divides them."""


class Numbers(NamedTuple):
    """A quantised matrix (out, in): int8 numbers, or bytes of two int4 ones, and the scales of its rows or groups."""

    data_OI: Tensor
    scale: Tensor
    kind: str
    group: int
    """Inputs that share a scale; 0: all of a row."""

    def rows(self, start: int, end: int) -> Self:
        """Some outputs of it."""
        return self._replace(data_OI=self.data_OI[start:end], scale=self.scale[start:end])

    def to(self, device: torch.device) -> Self:
        """The same on a device."""
        return self._replace(data_OI=self.data_OI.to(device), scale=self.scale.to(device))

    def floats(self, dtype: torch.dtype) -> Tensor:
        """The weights (out, in) that it stands for."""
        if self.group:
            return quantized.dequantise_int4(self.data_OI, self.scale, self.group, dtype)
        return quantized.dequantise_int8(self.data_OI, self.scale, dtype)


class QuantizedLinear(nn.Module):
    """x W^T + b with W (out, in) in whole numbers: a drop-in for Linear. Activations stay as they are.

    On a CPU a few rows at a time make a second copy of int8 numbers, in the layout that their product reads fastest.
    """

    data_OI: Tensor
    scale: Tensor
    bias: Tensor | None

    def __init__(self, numbers: Numbers, bias_O: Tensor | None) -> None:
        super().__init__()
        self.kind, self.group = numbers.kind, numbers.group
        out, held = numbers.data_OI.shape
        self.shape = (held if numbers.kind == "int8" else 2 * held, out)
        # A model is saved under the names of its parameters (`model.native_checkpoint`), whatever was merged here.
        self.register_buffer("data_OI", numbers.data_OI, persistent=False)
        self.register_buffer("scale", numbers.scale, persistent=False)
        self.register_buffer("bias", None if bias_O is None else bias_O.detach().clone(), persistent=False)
        self._packed: Any = None

    @property
    def numbers(self) -> Numbers:
        """The weights."""
        return Numbers(self.data_OI, self.scale, self.kind, self.group)

    def forward(self, x: Tensor) -> Tensor:
        return self.product(x) if x.dim() == 2 else self.product(x.flatten(0, -2)).unflatten(0, x.shape[:-1])

    def product(self, x_NI: Tensor) -> Tensor:
        """The same for rows."""
        if x_NI.requires_grad and torch.is_grad_enabled():
            raise CapabilityError(
                "a quantised model can't learn: its weights are whole numbers; train the model that it was made from, or "
                "call it in torch.no_grad()"
            )
        own: Any = self._buffers  # See Attention.attend.
        data, scale, bias = own["data_OI"], own["scale"], own["bias"]
        if self.group:
            product = cpu_int8.int4_by_tiles if x_NI.is_cpu else quantized.int4_linear
            return product(x_NI, data, scale, self.group, bias)
        if not x_NI.is_cpu:
            return quantized.int8_linear(x_NI, data, scale, bias)
        few = 0 < x_NI.shape[0] <= cpu_int8.MOST
        if few and x_NI.dtype == torch.float32 and not torch.compiler.is_compiling():
            if self._packed is None and data.is_cpu and data.numel() >= cpu_int8.LEAST and cpu_int8.packs():
                self._packed = cpu_int8.pack(data, scale)
            if self._packed is not None:
                return cpu_int8.by_digits(x_NI, self._packed, bias)
        return cpu_int8.by_tiles(x_NI, data, scale, bias)

    def read(self, x_ND: Tensor, norm: NormTerms | None) -> Tensor:
        """What it gives for the normed input."""
        return self.product(x_ND if norm is None else small_gemm.norm(x_ND, norm))

    def _apply(self, fn: Any, recurse: bool = True) -> nn.Module:
        """Move it. A dtype is for activations and the bias: another rounding of the scales would be other weights."""
        self._packed = None
        kept = self.scale
        super()._apply(fn, recurse)
        self.scale = kept.to(self.data_OI.device)
        return self

    def __getstate__(self) -> dict[str, Any]:
        """What a copy is made of: it packs its numbers itself."""
        return {**self.__dict__, "_packed": None}

    def extra_repr(self) -> str:
        return f"{self.shape[0]} -> {self.shape[1]}, {self.kind}" + (", bias" if self.bias is not None else "")


class Slice(nn.Module):
    """Some outputs of a merged map, for whoever asks for them alone: the whole product is made, and cut."""

    def __init__(self, whole: QuantizedLinear, start: int, end: int) -> None:
        super().__init__()
        self.whole, self.start, self.end = whole, start, end

    def forward(self, x: Tensor) -> Tensor:
        return self.whole(x)[..., self.start : self.end]

    def extra_repr(self) -> str:
        return f"{self.whole.shape[0]} -> {self.end - self.start}"


def numbers_of(weight_OI: Tensor, kind: str) -> Numbers:
    """Weights (out, in), quantised."""
    if kind == "int8":
        return Numbers(*quantized.quantise_int8(weight_OI), kind, 0)
    into = weight_OI.shape[1]
    group = next((g for g in GROUPS if into % g == 0), 0)
    if not group:
        raise CapabilityError(
            f"int4: {into} inputs are no multiple of {GROUPS[-1]}, which share a scale; take quantize='int8'"
        )
    return Numbers(*quantized.quantise_int4(weight_OI, group), kind, group)


def stacked(parts: Sequence[Numbers], biases: Sequence[Tensor | None]) -> QuantizedLinear:
    """One map of several, one below the other: all read the same input."""
    whole, bias = parts[0], None
    if len(parts) > 1:
        whole = whole._replace(data_OI=torch.cat([p.data_OI for p in parts]), scale=torch.cat([p.scale for p in parts]))
    known = next((b for b in biases if b is not None), None)
    if known is not None:
        outs = [p.data_OI.shape[0] for p in parts]
        bias = torch.cat([known.new_zeros(n) if b is None else b.detach() for n, b in zip(outs, biases, strict=True)])
    return QuantizedLinear(whole, bias)


def is_quantized(model: nn.Module) -> bool:
    """Whether a model has such maps."""
    return any(isinstance(m, QuantizedLinear) for m in model.modules())


def check_kind(kind: str, device: torch.device) -> None:
    """Refuse what can't be done on a device."""
    if kind not in KINDS:
        raise InputError(f"quantize: {kind!r} is unknown (known: {', '.join(KINDS)})")
    if device.type == "meta":
        raise CapabilityError("quantize: a model on the meta device has no weights")
