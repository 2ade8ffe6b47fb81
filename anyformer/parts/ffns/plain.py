"""Ungated feed-forwards: down(act(up(x))) (Vaswani et al. 2017, eq. 2), one class for each activation."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from anyformer.specs.axes import Activation, ActivationName, FeedForward, Problem, Tensor

FORMULAS: dict[ActivationName, str] = {
    "none": "",
    "sigmoid": "sigmoid(z) = 1 / (1 + e^-z)",
    "silu": "silu(z) = z sigmoid(z)",
    "relu": "relu(z) = max(z, 0)",
    "relu2": "relu2(z) = max(z, 0)^2",
    "gelu": "gelu(z) = z Phi(z)",
    "gelu_tanh": "gelu(z) = z/2 (1 + tanh(sqrt(2/pi) (z + 0.044715 z^3)))",
    "gelu_quick": "gelu(z) = z sigmoid(1.702 z)",
}
"""What each activation computes, for equations."""


def linear(name: str, bias: bool) -> str:
    """A projection in an equation."""
    return f"W_{name} x + b_{name}" if bias else f"W_{name} x"


@dataclass(frozen=True, kw_only=True)
class Plain(FeedForward):
    """Two matrices."""

    inputs = ("up",)
    minimum = {"width": 1, "chunk": 1}
    act: ClassVar[ActivationName | None] = None
    """The activation; None: the leaf defines `combine`."""
    width: int | None = None
    """Unset: 4 times the model's width."""
    bias: bool = False
    down_bias: bool | None = None
    """Whether the projection back has a bias, where that is not what `bias` says of all (GTE)."""
    dropout: float = 0.0
    """Dropout on the inner activation."""
    chunk: int | None = None
    """Tokens that go through the network at a time, so that no more inner activations are alive; unset: all at once."""

    def problems(self) -> Iterator[Problem]:
        yield from super().problems()
        if self.down_bias is not None and self.down_bias == self.bias:
            yield "down_bias", f"has no effect: bias is {str(self.bias).lower()} for all projections; leave it out"

    def hidden(self, width: int) -> int:
        return 4 * width if self.width is None else self.width

    def equation(self) -> str:
        formula = FORMULAS[self.act] if self.act else ""
        inner = f"{(formula or self.kind).partition('(')[0]}({linear('up', self.bias)})"
        return f"y = W_down {inner}{' + b_down' if self.biased_down() else ''}" + (f", {formula}" if formula else "")

    def activation(self) -> Activation | None:
        return Activation(self.act) if self.act else None

    def combine(self, *inputs: Tensor) -> Tensor:
        from anyformer.kernels.activations import ACTIVATIONS

        if self.act is None:
            raise TypeError(f"{type(self).__name__} defines neither act nor combine()")
        return ACTIVATIONS[self.act](inputs[0])


@dataclass(frozen=True, kw_only=True)
class Relu(Plain, kind="relu"):
    """max(x, 0)."""

    title, act = "ReLU", "relu"


@dataclass(frozen=True, kw_only=True)
class Relu2(Plain, kind="relu2"):
    """max(x, 0)^2 (So et al. 2021)."""

    title, act = "squared ReLU", "relu2"


@dataclass(frozen=True, kw_only=True)
class Gelu(Plain, kind="gelu"):
    """x Phi(x), with the error function (Hendrycks and Gimpel 2016)."""

    title, act = "GELU", "gelu"


@dataclass(frozen=True, kw_only=True)
class GeluTanh(Plain, kind="gelu_tanh"):
    """GELU by its tanh approximation, as in GPT-2."""

    title, act = "GELU tanh", "gelu_tanh"


@dataclass(frozen=True, kw_only=True)
class GeluQuick(Plain, kind="gelu_quick"):
    """x sigmoid(1.702 x)."""

    title, act = "quick GELU", "gelu_quick"


@dataclass(frozen=True, kw_only=True)
class Silu(Plain, kind="silu"):
    """x sigmoid(x)."""

    title, act = "SiLU", "silu"


@dataclass(frozen=True, kw_only=True)
class Tanh(Plain, kind="tanh"):
    """(e^x - e^-x) / (e^x + e^-x), which heads have more often than feed-forwards."""

    def combine(self, *inputs: Tensor) -> Tensor:
        return inputs[0].tanh()
