"""Gated feed-forwards: down(act(gate(x)) * up(x)) (Shazeer 2020, eqs. 5-6); the activated branch is the gate."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from anyformer.parts.ffns.plain import GELU, gelu, linear
from anyformer.specs.axes import Activation, FeedForward, Problem

if TYPE_CHECKING:
    from torch import Tensor


GELU_NAMES: dict[str, Literal["gelu", "gelu_tanh", "gelu_quick"]] = {
    "erf": "gelu",
    "tanh": "gelu_tanh",
    "quick": "gelu_quick",
}


@dataclass(frozen=True, kw_only=True)
class Gated(FeedForward):
    """Three matrices."""

    inputs = ("gate", "up")
    width: int | None = None
    """Unset: 8/3 of the model's width, rounded up to `multiple_of`, for about the parameters of an ungated one."""
    multiple_of: int = 64
    bias: bool = False
    dropout: float = 0.0
    """Dropout on the inner activation."""
    chunk: int | None = None
    """Tokens that go through the network at a time, so that no more inner activations are alive; unset: all at once."""
    clamp: float | None = None
    """Cut the gate above this and the other branch to +- this (gpt-oss 7, Phi-3-small 20)."""
    offset: float = 0.0
    """Added to the branch that is not activated (gpt-oss and Phi-3-small: 1)."""

    def problems(self) -> Iterator[Problem]:
        if self.width is not None and self.width < 1:
            yield "width", f"{self.width} is not at least 1"
        if self.multiple_of < 1:
            yield "multiple_of", f"{self.multiple_of} is not at least 1"
        if self.clamp is not None and self.clamp <= 0:
            yield "clamp", f"{self.clamp} is not above 0"
        if self.chunk is not None and self.chunk < 1:
            yield "chunk", f"{self.chunk} is not at least 1"

    def hidden(self, width: int) -> int:
        return math.ceil(8 * width / 3 / self.multiple_of) * self.multiple_of if self.width is None else self.width

    def formula(self) -> str:
        """The activation of the gate, such as `relu(z) = max(z, 0)`; "" if the gate is taken as it is."""
        return f"{self.kind}(z)"

    def equation(self) -> str:
        formula, gate, up = self.formula(), linear("gate", self.bias), linear("up", self.bias)
        if self.clamp is not None:
            gate, up = f"min({gate}, {self.clamp:g})", f"clip({up}, +-{self.clamp:g})"
        up += f" + {self.offset:g}" if self.offset else ""
        name, _, _ = formula.partition("(")
        gate = f"{name}({gate})" if formula else f"({gate})"
        known = f", {formula}" if "=" in formula else ""
        return f"y = W_down ({gate} * ({up})){' + b_down' if self.bias else ''}{known}"

    def activate(self, gate: Tensor) -> Tensor:
        """The activation of the gate."""
        raise TypeError(f"{type(self).__name__} defines no activate()")

    def combine(self, *inputs: Tensor) -> Tensor:
        gate, up = inputs
        if self.clamp is not None:
            gate, up = gate.clamp(max=self.clamp), up.clamp(-self.clamp, self.clamp)
        if self.offset:
            up = up + self.offset
        return self.activate(gate) * up


@dataclass(frozen=True, kw_only=True)
class Glu(Gated, kind="glu"):
    """sigmoid(gate) * up (Dauphin et al. 2016)."""

    title = "GLU"

    def formula(self) -> str:
        return "sigmoid(z) = 1 / (1 + e^-z)"

    def activation(self) -> Activation:
        return Activation("sigmoid", self.clamp, self.offset)

    def activate(self, gate: Tensor) -> Tensor:
        return gate.sigmoid()


@dataclass(frozen=True, kw_only=True)
class Bilinear(Gated, kind="bilinear"):
    """gate * up, with no activation."""

    def formula(self) -> str:
        return ""

    def activation(self) -> Activation:
        return Activation("none", self.clamp, self.offset)

    def activate(self, gate: Tensor) -> Tensor:
        return gate


@dataclass(frozen=True, kw_only=True)
class Reglu(Gated, kind="reglu"):
    """relu(gate) * up."""

    title = "ReGLU"

    def formula(self) -> str:
        return "relu(z) = max(z, 0)"

    def activation(self) -> Activation:
        return Activation("relu", self.clamp, self.offset)

    def activate(self, gate: Tensor) -> Tensor:
        return gate.relu()


@dataclass(frozen=True, kw_only=True)
class Geglu(Gated, kind="geglu"):
    """gelu(gate) * up."""

    title = "GEGLU"
    form: Literal["erf", "tanh", "quick"] = "erf"
    """Which GELU: by the error function (ModernBERT), by tanh (T5 v1.1, Gemma), or x sigmoid(1.702 x) (gpt-oss)."""

    def formula(self) -> str:
        return GELU[self.form]

    def activation(self) -> Activation:
        return Activation(GELU_NAMES[self.form], self.clamp, self.offset)

    def activate(self, gate: Tensor) -> Tensor:
        return gelu(gate, self.form)


@dataclass(frozen=True, kw_only=True)
class Swiglu(Gated, kind="swiglu"):
    """silu(gate) * up."""

    title = "SwiGLU"

    def formula(self) -> str:
        return "silu(z) = z sigmoid(z)"

    def activation(self) -> Activation:
        return Activation("silu", self.clamp, self.offset)

    def activate(self, gate: Tensor) -> Tensor:
        import torch

        return torch.nn.functional.silu(gate)
