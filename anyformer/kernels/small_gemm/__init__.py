"""Products of few tokens: the one public call of each operation. Weights are read once; all else is small beside them.

Shapes: x (N,D) or any rows (...,D), weights (out, in). Where a norm, an activation or a residual stands next to a
product, one call takes both, so that a device may do them in one pass. On CUDA few rows take our own kernels (`launch`);
more go to torch's products, with one kernel for the norm before and one for the activation.

On a CPU torch's own product of one row or a few is threaded badly: on two cores it reads 10 to 15 GB/s of weights where
50 are possible. The same weights as a batch of slices, shared out over their outputs, go to threads one by one.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.small_gemm import launch
from anyformer.kernels.small_gemm.launch import NormTerms as NormTerms
from anyformer.specs.axes import FeedForward

CPU_ROWS = 64
"""Rows up to which slices pay."""
CPU_COLUMNS = 3
"""Rows up to which weights stand on the left: each slice times a few columns."""
CPU_WEIGHTS = 400_000
"""Weights below which torch's own product is as fast."""
CPU_SLICES = tuple(range(8, 33))
"""How many slices there may be."""


def norm_linear(x_ND: Tensor, norm: NormTerms | None, weight_OD: Tensor, bias_O: Tensor | None) -> Tensor:
    """norm(x) W^T + b, (N,O); without a norm x W^T + b."""
    if x_ND.is_cuda and (norm is None or launch.known(norm, x_ND)):
        if weight_OD.dtype == x_ND.dtype and launch.serves(x_ND, weight_OD, bias_O):
            return launch.product(x_ND, weight_OD, bias_O, norm=norm)
        if norm is not None and launch.usable(x_ND, weight_OD, bias_O):
            return F.linear(launch.norm_rows(x_ND, norm), weight_OD, bias_O)
    x_ND = x_ND if norm is None else norm.leaf.apply(x_ND, norm.own)
    way = cpu_linear if weight_OD.numel() >= CPU_WEIGHTS and cpu_serves(x_ND, weight_OD) else F.linear
    return way(x_ND, weight_OD, bias_O)


def norm_linear_combine(
    x_ND: Tensor, norm: NormTerms | None, weight_JD: Tensor, bias_J: Tensor | None, leaf: FeedForward
) -> Tensor:
    """combine(norm(x) W^T + b), (N,F): the merged input projections of a feed-forward and what it makes of them.

    The activation stands behind this product and not before the next one, which would compute it once for each few of
    its outputs.
    """
    act = leaf.activation() if x_ND.is_cuda else None
    if act is not None and (norm is None or launch.known(norm, x_ND)):
        gated = len(leaf.inputs) == 2
        if weight_JD.dtype == x_ND.dtype and launch.serves(x_ND, weight_JD, bias_J):
            return launch.product(x_ND, weight_JD, bias_J, norm=norm, act=act, gated=gated, at="output")
        if launch.usable(x_ND, weight_JD, bias_J):
            return launch.combine_rows(norm_linear(x_ND, norm, weight_JD, bias_J), act, gated)
    return leaf.combine(*norm_linear(x_ND, norm, weight_JD, bias_J).chunk(len(leaf.inputs), -1))


def linear_add(
    x_NI: Tensor, weight_OI: Tensor, bias_O: Tensor | None, residual_NO: Tensor, *, over: bool = False
) -> Tensor:
    """Residual + x W^T + b, (N,O). `over`: the residual may be written over, and may be what comes back."""
    if x_NI.is_cuda and weight_OI.dtype == x_NI.dtype == residual_NO.dtype:
        if launch.serves(x_NI, weight_OI, bias_O, residual_NO):
            return launch.product(x_NI, weight_OI, bias_O, residual=residual_NO)
        dense = x_NI.dim() == 2 and bias_O is None and residual_NO.is_contiguous()
        if over and dense and launch.usable(x_NI, weight_OI, residual_NO):
            return residual_NO.addmm_(x_NI, weight_OI.t())
    way = cpu_linear if weight_OI.numel() >= CPU_WEIGHTS and cpu_serves(x_NI, weight_OI) else F.linear
    return residual_NO + way(x_NI, weight_OI, bias_O)


def norm(x: Tensor, terms: NormTerms) -> Tensor:
    """The norm of rows, in one pass where there are few."""
    ours = x.is_cuda and launch.known(terms, x) and launch.usable(x)
    return launch.norm_rows(x, terms) if ours else terms.leaf.apply(x, terms.own)


def cpu_serves(x: Tensor, weight_OI: Tensor) -> bool:
    """Whether a product is of that kind, and nothing is learned or compiled here."""
    return (
        x.is_cpu
        and weight_OI.numel() >= CPU_WEIGHTS
        and x.numel() <= CPU_ROWS * x.shape[-1]
        and x.dtype == weight_OI.dtype
        and x.dtype in (torch.float32, torch.float64)
        and weight_OI.is_contiguous()
        and not torch.is_grad_enabled()
        and not torch.compiler.is_compiling()
    )


def cpu_linear(x: Tensor, weight_OI: Tensor, bias_O: Tensor | None) -> Tensor:
    """X W^T + b of few rows (...,I)."""
    outs, into = weight_OI.shape
    rows_NI = x.reshape(-1, into)
    count = rows_NI.shape[0]
    slices = next((n for n in CPU_SLICES if outs % n == 0), 0)
    if not slices:
        # The last few outputs are a product of their own.
        whole = outs - outs % CPU_SLICES[0]
        parts = [cpu_linear(rows_NI, weight_OI[:whole], None), F.linear(rows_NI, weight_OI[whole:])]
        y_NO = torch.cat(parts, -1)
    elif count <= CPU_COLUMNS:
        pieces = torch.bmm(weight_OI.view(slices, -1, into), rows_NI.t().expand(slices, into, count))
        y_NO = pieces.view(outs, count).t()
    else:
        pieces = torch.bmm(rows_NI.expand(slices, count, into), weight_OI.view(slices, -1, into).transpose(1, 2))
        y_NO = pieces.transpose(0, 1).reshape(count, outs)
    y_NO = y_NO if bias_O is None else y_NO + bias_O
    return y_NO.reshape(*x.shape[:-1], outs)
