"""Ungated feed-forwards: down(act(up(x))) (Vaswani et al. 2017, eq. 2), one class for each activation."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from anyformer.specs.axes import Activation, FeedForward, Problem

if TYPE_CHECKING:
    from torch import Tensor


GELU = {
    "erf": "gelu(z) = z Phi(z)",
    "tanh": "gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))",
    "quick": "gelu(z) = z sigmoid(1.702 z)",
}
"""GELU in its three published forms."""


def linear(name: str, bias: bool) -> str:
    """A projection in an equation."""
    return f"W_{name} x + b_{name}" if bias else f"W_{name} x"


@dataclass(frozen=True, kw_only=True)
class Plain(FeedForward):
    """Two matrices."""

    inputs = ("up",)
    formula: ClassVar[str] = ""
    """The activation, such as `relu(z) = max(z, 0)`."""
    width: int | None = None
    """Unset: 4 times the model's width."""
    bias: bool = False
    dropout: float = 0.0
    """Dropout on the inner activation."""
    chunk: int | None = None
    """Tokens that go through the network at a time, so that no more inner activations are alive; unset: all at once."""

    def problems(self) -> Iterator[Problem]:
        if self.width is not None and self.width < 1:
            yield "width", f"{self.width} is not at least 1"
        if self.chunk is not None and self.chunk < 1:
            yield "chunk", f"{self.chunk} is not at least 1"

    def hidden(self, width: int) -> int:
        return 4 * width if self.width is None else self.width

    def equation(self) -> str:
        name, _, _ = (self.formula or self.kind).partition("(")
        inner = f"{name}({linear('up', self.bias)})"
        return f"y = W_down {inner}{' + b_down' if self.bias else ''}" + (f", {self.formula}" if self.formula else "")


@dataclass(frozen=True, kw_only=True)
class Relu(Plain, kind="relu"):
    """max(x, 0)."""

    title = "ReLU"
    formula = "relu(z) = max(z, 0)"

    def activation(self) -> Activation:
        return Activation("relu")

    def combine(self, *inputs: Tensor) -> Tensor:
        return inputs[0].relu()


@dataclass(frozen=True, kw_only=True)
class Relu2(Plain, kind="relu2"):
    """max(x, 0)^2 (So et al. 2021)."""

    title = "squared ReLU"
    formula = "relu2(z) = max(z, 0)^2"

    def activation(self) -> Activation:
        return Activation("relu2")

    def combine(self, *inputs: Tensor) -> Tensor:
        return inputs[0].relu().square()


@dataclass(frozen=True, kw_only=True)
class Gelu(Plain, kind="gelu"):
    """x Phi(x), with the error function (Hendrycks and Gimpel 2016)."""

    title = "GELU"
    formula = GELU["erf"]

    def activation(self) -> Activation:
        return Activation("gelu")

    def combine(self, *inputs: Tensor) -> Tensor:
        return gelu(inputs[0], "erf")


@dataclass(frozen=True, kw_only=True)
class GeluTanh(Plain, kind="gelu_tanh"):
    """GELU by its tanh approximation, as in GPT-2."""

    title = "GELU tanh"
    formula = GELU["tanh"]

    def activation(self) -> Activation:
        return Activation("gelu_tanh")

    def combine(self, *inputs: Tensor) -> Tensor:
        return gelu(inputs[0], "tanh")


@dataclass(frozen=True, kw_only=True)
class GeluQuick(Plain, kind="gelu_quick"):
    """x sigmoid(1.702 x)."""

    title = "quick GELU"
    formula = GELU["quick"]

    def activation(self) -> Activation:
        return Activation("gelu_quick")

    def combine(self, *inputs: Tensor) -> Tensor:
        return gelu(inputs[0], "quick")


@dataclass(frozen=True, kw_only=True)
class Silu(Plain, kind="silu"):
    """x sigmoid(x)."""

    title = "SiLU"
    formula = "silu(z) = z sigmoid(z)"

    def activation(self) -> Activation:
        return Activation("silu")

    def combine(self, *inputs: Tensor) -> Tensor:
        from torch.nn.functional import silu

        return silu(inputs[0])


def gelu(x: Tensor, form: str) -> Tensor:
    """GELU in one of its three published forms: erf, tanh, quick."""
    from torch.nn import functional as F

    if form == "quick":
        return x * (1.702 * x).sigmoid()
    return F.gelu(x, approximate="tanh" if form == "tanh" else "none")
