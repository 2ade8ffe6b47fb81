"""Weights of 8 or 4 bits: how they are made, and products with them.

int8 keeps one scale for each output row. int4 keeps one for each group of inputs of a row, and eight numbers in a word of
four bytes: a group of 8 m inputs is m words, and half byte c of word j (low half first) is input c m + j, plus 8. So a
run of words meets a run of inputs, whichever half byte is taken. weight = number * scale.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

SHRINK = (1.0, 0.96, 0.92, 0.88, 0.84)
"""Shares of a group's largest weight that the end of the int4 range is tried at: cutting it may cost less than it buys."""

CHUNK = 1 << 24
"""Weights that are quantised at a time, so that their fp32 copies stay small beside a model."""


def quantise_int8(weight_OI: Tensor) -> tuple[Tensor, Tensor]:
    """(int8 numbers (O,I), fp32 scales (O,)): the largest weight of a row becomes +-127."""
    data_OI = torch.empty(weight_OI.shape, dtype=torch.int8, device=weight_OI.device)
    scale_O = torch.empty(weight_OI.shape[0], dtype=torch.float32, device=weight_OI.device)
    for rows in _rows(weight_OI):
        exact = weight_OI[rows].detach().float()
        scale = exact.abs().amax(-1).clamp(min=torch.finfo(torch.float32).tiny) / 127
        data_OI[rows] = (exact / scale[:, None]).round().clamp(-127, 127).to(torch.int8)
        scale_O[rows] = scale
    return data_OI, scale_O


def dequantise_int8(data_OI: Tensor, scale_O: Tensor, dtype: torch.dtype) -> Tensor:
    """The weights (O,I) that int8 numbers stand for."""
    return (data_OI.to(scale_O.dtype) * scale_O[:, None]).to(dtype)


def quantise_int4(weight_OI: Tensor, group: int) -> tuple[Tensor, Tensor]:
    """(bytes (O,I/2), scales (O,I/group) in the weights' dtype, or fp32 for fp64); groups of whole words of 8 inputs.

    The largest weight of a group becomes -8, the end of the range that reaches further; the scale has its sign. Of a
    few smaller ends the one with the least squared error is taken.
    """
    into = weight_OI.shape[1]
    kept = torch.float32 if weight_OI.dtype == torch.float64 else weight_OI.dtype
    packed = torch.empty(weight_OI.shape[0], into // 2, dtype=torch.uint8, device=weight_OI.device)
    scale_OG = torch.empty(weight_OI.shape[0], into // group, dtype=kept, device=weight_OI.device)
    for rows in _rows(weight_OI):
        exact = weight_OI[rows].detach().float().unflatten(1, (-1, group))
        number, scale = _best(exact, kept)
        packed[rows] = packed_int4(number.flatten(1), group)
        scale_OG[rows] = scale
    return packed, scale_OG


def packed_int4(number_OI: Tensor, group: int) -> Tensor:
    """Bytes (O,I/2) of whole numbers from -8 to 7."""
    half = (number_OI + 8).to(torch.uint8).unflatten(1, (-1, 8, group // 8)).transpose(-1, -2)
    return (half[..., ::2] | half[..., 1::2] << 4).flatten(1)


def dequantise_int4(packed: Tensor, scale_OG: Tensor, group: int, dtype: torch.dtype) -> Tensor:
    """The weights (O,I) that int4 numbers stand for."""
    byte = packed.unflatten(1, (-1, group // 8, 4))
    half = torch.stack([byte & 15, byte >> 4], -1).flatten(-2)
    number = half.transpose(-1, -2).flatten(-2).to(torch.int8) - 8
    exact = torch.promote_types(scale_OG.dtype, torch.float32)
    return (number.to(exact) * scale_OG.to(exact)[..., None]).flatten(1).to(dtype)


def int8_linear(x: Tensor, data_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None = None) -> Tensor:
    """The product x W^T + b for x (..., I)."""
    from anyformer.kernels.small_gemm import launch

    if launch.serves(x, data_OI, bias_O, most=launch.MOST_QUANTISED):
        return launch.product(x, data_OI, bias_O, scale=scale_O)
    return F.linear(x, dequantise_int8(data_OI, scale_O, x.dtype), bias_O)


def int4_linear(x: Tensor, packed: Tensor, scale_OG: Tensor, group: int, bias_O: Tensor | None = None) -> Tensor:
    """The product x W^T + b for x (..., I)."""
    from anyformer.kernels.small_gemm import launch

    if group == launch.power(group) and launch.serves(x, packed, bias_O, most=launch.MOST_QUANTISED):
        return launch.int4_linear(x, packed, scale_OG, group, bias_O)
    return F.linear(x, dequantise_int4(packed, scale_OG, group, x.dtype), bias_O)


def _rows(weight_OI: Tensor) -> list[slice]:
    """Slices of whole rows of about CHUNK weights."""
    step = max(1, CHUNK // max(1, weight_OI.shape[1]))
    return [slice(at, at + step) for at in range(0, weight_OI.shape[0], step)]


def _best(exact_OGJ: Tensor, kept: torch.dtype) -> tuple[Tensor, Tensor]:
    """int4 numbers as floats (O,G,J) and the scale (O,G) of each group, rounded to the dtype that is kept."""
    extreme = exact_OGJ.gather(-1, exact_OGJ.abs().argmax(-1, keepdim=True))
    number, scale = torch.zeros_like(exact_OGJ), torch.zeros_like(extreme, dtype=kept)
    least = torch.full_like(extreme, torch.inf)
    for share in SHRINK:
        tried = (extreme * (-share / 8)).to(kept)
        # A group of zeros, or of weights too small for the dtype, stays all zero.
        rounded = (exact_OGJ / torch.where(tried == 0, 1, tried).float()).round().clamp(-8, 7)
        error = (rounded * tried.float() - exact_OGJ).square().sum(-1, keepdim=True)
        better = error < least
        number, scale = torch.where(better, rounded, number), torch.where(better, tried, scale)
        least = torch.where(better, error, least)
    return number, scale.squeeze(-1)
