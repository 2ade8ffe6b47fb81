"""Gated feed-forwards: down(act(gate(x)) * up(x)) (Shazeer 2020, eqs. 5-6); the activated branch is the gate."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from anyformer.parts.ffns.plain import FORMULAS, linear
from anyformer.specs.axes import Activation, ActivationName, FeedForward, Problem, Tensor


@dataclass(frozen=True, kw_only=True)
class Gated(FeedForward):
    """Three matrices."""

    inputs = ("gate", "up")
    minimum = {"width": 1, "multiple_of": 1, "chunk": 1}
    positive = ("clamp",)
    act: ClassVar[ActivationName | None] = None
    """The activation of the gate; None: the leaf defines `activate`."""
    width: int | None = None
    """Unset: 8/3 of the model's width, rounded up to `multiple_of`, for about the parameters of an ungated one."""
    multiple_of: int = 64
    bias: bool = False
    down_bias: bool | None = None
    """Whether the projection back has a bias, where that is not what `bias` says of all (GTE)."""
    dropout: float = 0.0
    """Dropout on the inner activation."""
    chunk: int | None = None
    """Tokens that go through the network at a time, so that no more inner activations are alive; unset: all at once."""
    clamp: float | None = None
    """Cut the gate above this and the other branch to +- this (gpt-oss 7, Phi-3-small 20)."""
    offset: float = 0.0
    """Added to the branch that is not activated (gpt-oss and Phi-3-small: 1)."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.down_bias is not None and self.down_bias == self.bias:
            yield "down_bias", f"has no effect: bias is {str(self.bias).lower()} for all projections; leave it out"

    def hidden(self, width: int) -> int:
        return math.ceil(8 * width / 3 / self.multiple_of) * self.multiple_of if self.width is None else self.width

    def equation(self) -> str:
        formula, gate, up = f"{self.kind}(z)", linear("gate", self.bias), linear("up", self.bias)
        formula = FORMULAS[self.act] if self.act else formula
        if self.clamp is not None:
            gate, up = f"min({gate}, {self.clamp:g})", f"clip({up}, +-{self.clamp:g})"
        up += f" + {self.offset:g}" if self.offset else ""
        gate = f"{formula.partition('(')[0]}({gate})"
        known = f", {formula}" if "=" in formula else ""
        return f"y = W_down ({gate} * ({up})){' + b_down' if self.biased_down() else ''}{known}"

    def activation(self) -> Activation | None:
        return Activation(self.act, self.clamp, self.offset) if self.act else None

    def activate(self, gate: Tensor) -> Tensor:
        """The activation of the gate, of a leaf whose `act` is None."""
        raise TypeError(f"{type(self).__name__} defines neither act nor activate()")

    def combine(self, *inputs: Tensor) -> Tensor:
        from anyformer.kernels.activations import ACTIVATIONS

        gate, up = inputs
        if self.clamp is not None:
            gate, up = gate.clamp(max=self.clamp), up.clamp(-self.clamp, self.clamp)
        if self.offset:
            up = up + self.offset
        return (ACTIVATIONS[self.act](gate) if self.act else self.activate(gate)) * up


@dataclass(frozen=True, kw_only=True)
class Glu(Gated, kind="glu"):
    """sigmoid(gate) * up (Dauphin et al. 2016)."""

    title, act = "GLU", "sigmoid"


@dataclass(frozen=True, kw_only=True)
class Bilinear(Gated, kind="bilinear"):
    """gate * up, with no activation."""

    act = "none"


@dataclass(frozen=True, kw_only=True)
class Reglu(Gated, kind="reglu"):
    """relu(gate) * up."""

    title, act = "ReGLU", "relu"


@dataclass(frozen=True, kw_only=True)
class Geglu(Gated, kind="geglu"):
    """gelu(gate) * up."""

    title, act = "GEGLU", "gelu"
    form: Literal["erf", "tanh", "quick"] = "erf"
    """Which GELU: by the error function (ModernBERT), by tanh (T5 v1.1, Gemma), or x sigmoid(1.702 x) (gpt-oss)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "act", "gelu" if self.form == "erf" else f"gelu_{self.form}")


@dataclass(frozen=True, kw_only=True)
class Swiglu(Gated, kind="swiglu"):
    """silu(gate) * up."""

    title, act = "SwiGLU", "silu"
