"""The gain of a norm: a stored weight, one plus a stored weight, or none; multiplied before or after a cast."""

from __future__ import annotations

from typing import Literal

from anyformer.specs.axes import ParamSpec, Tensor

Gain = Literal["weight", "one_plus", "none"]
GainAt = Literal["before_cast", "after_cast"]


GAIN_WORDS: dict[Gain, str] = {"weight": " * g", "one_plus": " * (1 + g)", "none": ""}
"""How a gain is written in an equation."""


def gain_weights(form: Gain, shape: tuple[int, ...]) -> dict[str, ParamSpec]:
    """What is stored for a gain of 1."""
    if form == "none":
        return {}
    return {"weight": ParamSpec(shape=shape, role="gain", fill=0.0 if form == "one_plus" else 1.0)}


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
