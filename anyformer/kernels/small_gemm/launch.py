"""Products with few rows on CUDA, near the speed of the memory bus: which Triton kernel, with which block sizes.

Few rows read each weight once and compute almost nothing: what counts is that the bus never waits. More rows go to
torch's own products, with one kernel for the norm before and one for the activation.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from anyformer.kernels.triton_launch import capability, pdl_options
from anyformer.specs.axes import Activation, Norm

MOST = 2
"""Rows up to which our own products serve. On an H200 a stack of an 8B model's layers takes 3.7 ms with one row, against
4.5 with torch's products and our norms; with two 4.3 against 4.5, with four 6.3 against 4.5.
"""

MOST_QUANTISED = 4
"""The same for weights of 8 or 4 bits, where the other way makes all weights anew."""

MANY = 512
"""Rows up to which norms and activations take our kernels: more are prompts, where a launch costs nothing."""

WIDEST = 1 << 16
"""Numbers in a row that one program norms."""

ONE = 0x3F800000
"""The bits of the fp32 number 1."""

FLOATS = (torch.bfloat16, torch.float16, torch.float32)
NO_ACTIVATION = Activation("none")


class NormTerms(NamedTuple):
    """A norm: its leaf and its parameters."""

    leaf: Norm
    own: Mapping[str, Tensor]


class Blocks(NamedTuple):
    """Rows of weights that a program reads, inputs that it takes at a time, and its warps."""

    outs: int
    ins: int
    warps: int


def blocks(rows: int, outs: int, into: int, bits: int = 16, pair: bool = False, narrow: bool = False) -> Blocks:
    """Block sizes as measured in whole stacks of layers on an H200 (8B, 1B and 0.6B shapes): enough programs for every
    multiprocessor, and enough bytes asked for at once. `bits` are those of an input: a thread takes 16 bytes of them.
    `pair`: a program makes gate and up of the same output; `narrow`: weights of 8 bits.
    """
    if rows > 1:
        sizes = Blocks(4 if rows == 2 else 2, 512, 2)
    elif into >= 8192 and not narrow:
        sizes = Blocks(4, 2048, 4)
    elif into > 2048:
        sizes = Blocks(2 if pair or outs <= 2048 else 4, 2048, 8)
    else:
        sizes = Blocks(2, 2048, 8) if outs <= 2048 and into > 1024 else Blocks(4, 1024, 4)
    vector = 128 // bits
    ins = min(sizes.ins * 16 // bits, max(32 * vector, power(into)))
    return Blocks(sizes.outs, ins, min(sizes.warps, ins // (32 * vector)))


def power(n: int) -> int:
    """The least power of 2 that is not below n."""
    return 1 << (n - 1).bit_length()


def usable(x: Tensor, *others: Tensor | None) -> bool:
    """Whether our kernels can read these rows, and nothing learns here."""
    if x.device.type != "cuda" or x.dtype not in FLOATS or x.numel() == 0 or torch.compiler.is_compiling():
        return False
    if torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in (x, *others)):
        return False
    return capability(x.device) >= 8


def serves(x: Tensor, weight: Tensor, *others: Tensor | None, most: int = MOST) -> bool:
    """Whether our own products take these rows: few of them, weights row by row, all else in one dtype with x."""
    if x.numel() > most * x.shape[-1] or not weight.is_contiguous():
        return False
    return usable(x, weight, *others) and all(t is None or t.dtype == x.dtype for t in others)


def known(norm: NormTerms, x: Tensor) -> bool:
    """Whether our kernels do this norm: of whole rows, with parameters for one row that do not learn here."""
    if norm.leaf.recipe() is None or x.shape[-1] > WIDEST:
        return False
    learns = torch.is_grad_enabled()
    return all(w is None or (w.dim() == 1 and not (learns and w.requires_grad)) for w in norm.own.values())


def flat(x: Tensor) -> Tensor:
    """Rows (N, D) with numbers of a row side by side."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()


def early() -> int:
    """1 where weights may be read before the kernel before has ended: in a graph that is being captured they are
    constants, while outside of one that kernel may be making them.
    """
    return int(torch.cuda.is_current_stream_capturing())


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, *, norm: NormTerms | None = None, act: Activation = NO_ACTIVATION,
    gated: bool = False, at: str = "no", residual: Tensor | None = None, scale: Tensor | None = None,
    sizes: Blocks | None = None, pdl: bool = True,
) -> Tensor:  # fmt: skip
    """The product of few rows, with a norm or an activation before it, an activation or a residual after it."""
    from anyformer.kernels.small_gemm import triton_kernels

    rows = flat(x)
    count, (outs, into) = rows.shape[0], weight.shape
    pair = gated and at == "output"
    made = outs // 2 if pair else outs
    padded = power(count)
    sizes = sizes or blocks(padded, outs, into, 8 * x.element_size(), pair, scale is not None)
    out = torch.empty(count, made, dtype=x.dtype, device=x.device)
    own = norm.own if norm is not None else {}
    options = pdl_options(x.device) if pdl else {}
    kernel: Any = triton_kernels.product
    kernel[(-(-made // (sizes.outs // 2 if pair else sizes.outs)),)](
        rows, weight, out, bias, flat(residual).contiguous() if residual is not None else None, scale,
        own.get("weight"), own.get("bias"), rows.stride(0), made, norm.leaf.eps if norm is not None else 0.0,
        early() if options else 0, N=count, ROWS=padded, INS=into, BO=sizes.outs, BI=sizes.ins, NORM=triton_kernels.norm_code(norm),
        ACT=act.name, GATED=gated, CLAMP=act.clamp or 0.0, OFFSET=act.offset, AT=at, SCALE=scale is not None,
        BIAS=bias is not None, ADD=residual is not None, PDL=bool(options), num_warps=sizes.warps, **options,
    )  # fmt: skip
    return out.view(*x.shape[:-1], made)


def int4_linear(x: Tensor, packed: Tensor, scale_OG: Tensor, group: int, bias_O: Tensor | None) -> Tensor:
    """The product x W^T + b with int4 weights; the block sizes count words of 8 weights, and hold whole groups."""
    from anyformer.kernels.small_gemm import triton_kernels

    rows = flat(x)
    count, outs, into = rows.shape[0], packed.shape[0], packed.shape[1] * 2
    padded = power(count)
    each = (8 if outs > 4096 else 4) if padded == 1 else 2
    out = torch.empty(count, outs, dtype=x.dtype, device=x.device)
    options = pdl_options(x.device)
    kernel: Any = triton_kernels.product_int4
    kernel[(-(-outs // each),)](
        rows, packed.view(torch.int32), out, bias_O, scale_OG, rows.stride(0), outs,
        early() if options else 0, ONE,
        N=count, ROWS=padded, INS=into, GROUP=group, BO=each, BW=max(group // 8, min(512, max(128, power(into // 8)))),
        BIAS=bias_O is not None, PDL=bool(options), num_warps=4, **options,
    )  # fmt: skip
    return out.view(*x.shape[:-1], outs)


def norm_rows(x: Tensor, norm: NormTerms) -> Tensor:
    """Rows normed in one kernel; more than a few go to the leaf."""
    rows = flat(x)
    count, into = rows.shape
    if count > MANY:
        return norm.leaf.apply(x, norm.own)
    from anyformer.kernels.small_gemm import triton_kernels

    out = torch.empty(count, into, dtype=x.dtype, device=x.device)
    ins, options = power(into), pdl_options(x.device)
    kernel: Any = triton_kernels.norm_rows
    kernel[(count,)](
        rows, out, norm.own.get("weight"), norm.own.get("bias"), rows.stride(0), norm.leaf.eps, INS=into, BI=ins,
        NORM=triton_kernels.norm_code(norm), PDL=bool(options), num_warps=8 if ins >= 2048 else 4, **options,
    )  # fmt: skip
    return out.view(x.shape)


def combine_rows(h: Tensor, act: Activation, gated: bool) -> Tensor:
    """Inner activations of rows in one kernel."""
    from anyformer.kernels.small_gemm import triton_kernels

    rows = flat(h)
    count, into = rows.shape[0], rows.shape[1] // (2 if gated else 1)
    out = torch.empty(count, into, dtype=h.dtype, device=h.device)
    ins, options = min(1024, power(into)), pdl_options(h.device)
    kernel: Any = triton_kernels.combine_rows
    kernel[(count, -(-into // ins))](
        rows, out, rows.stride(0), INS=into, BI=ins, ACT=act.name, GATED=gated, CLAMP=act.clamp or 0.0,
        OFFSET=act.offset, PDL=bool(options), num_warps=4, **options,
    )  # fmt: skip
    return out.view(*h.shape[:-1], into)
