"""Products with int8 weights on a CPU: a few rows by whole numbers, more by floating-point tiles of the weights.

Both give x W^T with the weights that the numbers stand for, and activations are not rounded to 8 bits: a row gets the
same answer, to the last few bits of fp32, alone and in any batch.

A few rows are bound by how fast weights are read. fbgemm multiplies int8 weights in a layout of its own by unsigned
bytes; an activation becomes three digits to the base 128, most significant first, each a row of its own. Digits reach
from -64 to 64, so no pair of products leaves 16 bits, which is where fbgemm adds them up on processors without VNNI.
Three digits are 21 bits of the row's largest activation: fp32 has 24.

`torch._int_mm` is not used. Where a processor has no VNNI it is a plain loop, 2 to 50 times slower than fp32.
"""

import warnings
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.small_gemm.quantized import dequantise_int4, dequantise_int8

BASE = 128
TOP = 63
"""What the largest activation of a row becomes in the first digit."""
ZERO = 64
"""What stands for 0 in an unsigned byte."""
MOST = 8
"""Rows up to which digits are faster than tiles."""
LEAST = 400_000
"""Weights below which they are not: making the digits takes as long as the product."""
TILE = 1 << 20
"""Weights that are made floating-point at a time: they stay in a cache."""
MANY, WIDE_TILE = 512, 1 << 21
"""Rows from which larger tiles are faster, and their size: one product costs more than making its weights."""
TINY = 1e-30
"""Below every largest activation of a row that is not all 0."""
ENGINES = ("x86", "fbgemm")


def packs() -> bool:
    """Whether fbgemm's products can be had: this torch has them, on x86, and nobody chose another engine."""
    return torch.backends.quantized.engine in ENGINES and _has_operators()


@cache
def _has_operators() -> bool:
    ops: Any = torch.ops.quantized
    try:
        return all((ops.linear_prepack, ops.linear_with_input_q_dq_qweight_dq_output_fp32))
    except AttributeError:
        return False


def pack(data_OI: Tensor, scale_O: Tensor) -> Any:
    """The same weights in fbgemm's layout, a byte each."""
    zeros_O = torch.zeros(data_OI.shape[0], dtype=torch.long)
    with warnings.catch_warnings():
        # torch means to drop this way of making them; `packs` will notice.
        warnings.simplefilter("ignore")
        public: Any = torch
        made = public._make_per_channel_quantized_tensor(data_OI, scale_O.double(), zeros_O, 0)
        return torch.ops.quantized.linear_prepack(made, None)


def by_digits(x_NI: Tensor, packed: Any, bias_O: Tensor | None) -> Tensor:
    """The product x W^T + b of a few fp32 rows with packed weights."""
    rows, into = x_NI.shape
    if rows == 1:
        least, most = x_NI.aminmax()
        # A number on the host saves operations. Not a number stays so: it comes first, and nothing is more.
        most_N1: Any = max(-float(least), float(most), TINY)
    else:
        most_N1 = torch.linalg.vector_norm(x_NI, float("inf"), -1, keepdim=True).clamp_(min=TINY)
    up_311, down_3 = _powers()
    rounded_3NI = ((x_NI / most_N1) * up_311).round_()
    digits_3NI = rounded_3NI.clone()
    digits_3NI[1:].sub_(rounded_3NI[:-1], alpha=BASE)
    product: Any = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32.default
    parts = product(digits_3NI.reshape(-1, into), 1.0, ZERO, packed)
    y_NO = torch.mv(parts.view(3, -1).t(), down_3).view(rows, -1).mul_(most_N1)
    return y_NO if bias_O is None else y_NO.add_(bias_O)


def by_tiles(x_NI: Tensor, data_OI: Tensor, scale_O: Tensor, bias_O: Tensor | None) -> Tensor:
    """The product x W^T + b, the weights made floating-point a tile at a time."""
    rows, (outs, into) = x_NI.shape[0], data_OI.shape
    if x_NI.dtype not in (torch.float32, torch.float64) or torch.compiler.is_compiling():
        return F.linear(x_NI, dequantise_int8(data_OI, scale_O, x_NI.dtype), bias_O)
    scale_O = scale_O.to(x_NI.dtype)
    # Scales go to what is smaller, the weights or their products.
    early = rows > into
    step = -(-outs // max(1, -(-outs * into // (TILE if rows < MANY else WIDE_TILE))))
    y_NO, tile_JI = x_NI.new_empty(rows, outs), x_NI.new_empty(step, into)
    for at in range(0, outs, step):
        some = slice(at, min(outs, at + step))
        w_JI, y_NJ = tile_JI[: some.stop - at].copy_(data_OI[some]), y_NO[:, some]
        if early:
            w_JI.mul_(scale_O[some, None])
        if early and bias_O is not None:
            torch.addmm(bias_O[some], x_NI, w_JI.t(), out=y_NJ)
        else:
            torch.mm(x_NI, w_JI.t(), out=y_NJ)
    if early:
        return y_NO
    return y_NO.mul_(scale_O) if bias_O is None else torch.addcmul(bias_O, y_NO, scale_O, out=y_NO)


def int4_by_tiles(x_NI: Tensor, packed: Tensor, scale_OG: Tensor, group: int, bias_O: Tensor | None) -> Tensor:
    """The same with int4 weights. Unpacking them takes longer than a product of few rows: it saves memory, not time."""
    step = max(1, TILE // (2 * packed.shape[1]))
    tiles = [
        F.linear(x_NI, dequantise_int4(packed[at : at + step], scale_OG[at : at + step], group, x_NI.dtype))
        for at in range(0, packed.shape[0], step)
    ]
    y_NO = tiles[0] if len(tiles) == 1 else torch.cat(tiles, -1)
    return y_NO if bias_O is None else y_NO.add_(bias_O)


@cache
def _powers() -> tuple[Tensor, Tensor]:
    """What an activation of at most 1 is multiplied by, digit by digit, and what products of digits are."""
    with torch.inference_mode(False):
        up_3 = torch.tensor([TOP * BASE**i for i in range(3)], dtype=torch.float32)
        return up_3.view(3, 1, 1), 1 / up_3
