"""From rows of logits to their losses and gradients in one Triton kernel. Imported only where Triton is.

A program takes one row: a first pass finds the log-sum-exp as it goes, a second turns the logits into their gradient in
place. The row is still in the L2 cache then, so that memory sees one read and one write.
"""
# Triton is not installed where there is no CUDA device, and its kernels are no Python that a type checker could follow.
# pyright: reportMissingImports=false, reportIndexIssue=false, reportPossiblyUnboundVariable=false

import torch
import triton
import triton.language as tl

from anyformer.kernels.linear_cross_entropy import Row
from anyformer.kernels.triton_launch import one_at_a_time

SKIP = tl.constexpr(-100)


@triton.jit
def transformed(x, scale, cap, CAPPED: tl.constexpr):
    """Scaled and capped logits, in fp32."""
    y = x * scale
    if CAPPED:
        # tanh, which Triton has not: 1 - 2 / (e^2u + 1) is right for any u, as e^2u may be inf or 0.
        y = cap * (1 - 2 / (tl.exp(2 * y / cap) + 1))
    return y


@one_at_a_time
@triton.jit
def rows_kernel(logits, labels, losses, stride, losses_stride, width, vocab, scale, cap, smoothing, z,
                CAPPED: tl.constexpr, SMOOTHED: tl.constexpr, LEARNS: tl.constexpr, BLOCK: tl.constexpr):  # fmt: skip
    """The losses of one row, and its gradient over its logits."""
    row = tl.program_id(0)
    start = logits + row.to(tl.int64) * stride
    label = tl.load(labels + row)
    column = tl.arange(0, BLOCK)
    if label == SKIP:
        tl.store(losses + row, 0.0)
        tl.store(losses + losses_stride + row, 0.0)
        if LEARNS:
            for at in range(0, width, BLOCK):
                inside = at + column < width
                tl.store(start + at + column, tl.zeros((BLOCK,), logits.dtype.element_ty), mask=inside)
        return
    # Before the row is written over.
    aim = (1 - smoothing) * transformed(tl.load(start + label).to(tl.float32), scale, cap, CAPPED)
    highest = -float("inf")
    total = 0.0
    plain = 0.0
    for at in range(0, vocab, BLOCK):
        inside = at + column < vocab
        y = transformed(tl.load(start + at + column, mask=inside, other=0.0).to(tl.float32), scale, cap, CAPPED)
        if SMOOTHED:
            plain += tl.sum(tl.where(inside, y, 0.0), 0)
        y = tl.where(inside, y, -float("inf"))
        above = tl.maximum(highest, tl.max(y, 0))
        total = total * tl.exp(highest - above) + tl.sum(tl.exp(y - above), 0)
        highest = above
    lse = highest + tl.log(total)
    share = smoothing / vocab
    tl.store(losses + row, lse - aim - share * plain)
    tl.store(losses + losses_stride + row, lse * lse)
    if LEARNS:
        # Nobody writes before all have read the label's logit.
        tl.debug_barrier()
        factor = 1 + 2 * z * lse
        for at in range(0, width, BLOCK):
            inside = at + column < vocab
            y = transformed(tl.load(start + at + column, mask=inside, other=0.0).to(tl.float32), scale, cap, CAPPED)
            d = tl.exp(y - lse) * factor - share
            d = tl.where(at + column == label, d - (1 - smoothing), d)
            if CAPPED:
                d *= 1 - (y / cap) * (y / cap)
            d = tl.where(inside, d * scale, 0.0)
            tl.store(start + at + column, d.to(logits.dtype.element_ty), mask=at + column < width)


WARPS, BLOCK = 4, 4096
"""Measured on an H200: many small programs hide each other's waits."""


def softmax_rows(raw_CV: torch.Tensor, labels_C: torch.Tensor, losses_2C: torch.Tensor, row: Row) -> torch.Tensor:
    """As the plain one, in place."""
    capped = row.softcap is not None
    rows_kernel[(raw_CV.shape[0],)](
        raw_CV, labels_C.contiguous(), losses_2C, raw_CV.stride(0), losses_2C.stride(0), raw_CV.shape[1], row.vocab, row.scale,
        row.softcap if capped else 1.0, row.smoothing, row.z, CAPPED=capped, SMOOTHED=row.smoothing != 0.0,
        LEARNS=row.learns, BLOCK=min(BLOCK, triton.next_power_of_2(raw_CV.shape[1])), num_warps=WARPS,
    )  # fmt: skip
    return raw_CV
