"""The gain of a norm: a stored weight, one plus a stored weight, or none; multiplied before or after a cast."""

from typing import ClassVar, Literal

from anyformer.specs.axes import Norm, NormRecipe, ParamSpec, Tensor

Gain = Literal["weight", "one_plus", "none"]
GainAt = Literal["before_cast", "after_cast"]


GAIN_WORDS: dict[Gain, str] = {"weight": " * g", "one_plus": " * (1 + g)", "none": ""}
"""How a gain is written in an equation."""


class GainedNorm(Norm):
    """A norm with such a gain, and perhaps a bias."""

    positive = ("eps",)
    centred: ClassVar[bool]
    """Whether the mean is taken off first."""
    gain: Gain
    gain_at: GainAt
    bias: bool = False

    def weights(self, shape: tuple[int, ...]) -> dict[str, ParamSpec]:
        bias = {"bias": ParamSpec(shape=shape, role="bias", fill=0.0)} if self.bias else {}
        fill = 0.0 if self.gain == "one_plus" else 1.0
        return ({} if self.gain == "none" else {"weight": ParamSpec(shape=shape, role="gain", fill=fill)}) | bias

    def recipe(self) -> NormRecipe:
        return NormRecipe(centred=self.centred, gain=self.gain, gain_at=self.gain_at)


def one_plus(weight: Tensor) -> Tensor:
    """The gain that is stored as its distance from 1, in at least fp32."""
    import torch

    return 1 + weight.to(torch.promote_types(weight.dtype, torch.float32))


def scaled(normed: Tensor, like: Tensor, gain: Tensor | None, bias: Tensor | None, at: GainAt) -> Tensor:
    """Normed numbers of at least fp32 with gain and bias, in the dtype of `like`."""
    inner = like.dtype if at == "after_cast" else normed.dtype
    normed = normed.to(inner)
    if gain is not None:
        normed = normed * gain.to(inner)
    if bias is not None:
        normed = normed + bias.to(inner)
    return normed.to(like.dtype)
