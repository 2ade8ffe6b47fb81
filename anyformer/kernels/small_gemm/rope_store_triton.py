"""The Triton kernel of rotate-and-store. Imported only where Triton is: see `rope_store`, which starts it.

One program takes some heads of one token. Numbers are rounded to the input's dtype where the plain model rounds. Where
the device can, it is started while the kernel before it ends (PDL).
"""
# Triton is not installed where there is no CUDA device.
# pyright: reportMissingImports=false, reportIndexIssue=false

import math

import torch
import triton
import triton.language as tl

from anyformer.kernels.small_gemm.triton_kernels import CENTRED, gained, norm_code, rounded
from anyformer.kernels.triton_launch import one_at_a_time, pdl_options

TILE = 1024
"""Numbers of a program."""
LEAST = tl.constexpr(1e-30)
HALVES = tl.constexpr(12582912.0)
"""1.5 * 2^23: a float added to it and taken off again is a whole number, halves rounded to even ones."""


@triton.jit
def normed(x, swapped, gain, shift, head, i, j, fits, gain_head, eps, DIM: tl.constexpr, TURNS: tl.constexpr,
           NORM: tl.constexpr, dtype: tl.constexpr):  # fmt: skip
    """Heads normed, and the same numbers with pairs swapped: those are read at j instead of i."""
    if CENTRED & NORM:
        mean = tl.sum(x, 1, keep_dims=True) / DIM
        x = tl.where(fits, x - mean, 0.0)
        swapped = tl.where(fits, swapped - mean, 0.0)
    scale = tl.rsqrt(tl.sum(x * x, 1, keep_dims=True) / DIM + eps)
    x = gained(x * scale, gain, shift, head * gain_head + i, fits, NORM, dtype)
    if TURNS:
        swapped = gained(swapped * scale, gain, shift, head * gain_head + j, fits, NORM, dtype)
    return x, swapped


@one_at_a_time
@triton.jit(do_not_specialize=["x_row", "turn_row"])
def rotate_heads(
    x, out, k_pool, v_pool, k_scale, v_scale, slots, cos, sin,
    q_gain, q_shift, k_gain, k_shift, v_gain, v_shift, q_head, k_head, v_head, q_eps, k_eps, v_eps,
    clip, x_row, turn_row, slot_stride, head_stride,
    H: tl.constexpr, G: tl.constexpr, DIM: tl.constexpr, WIDE: tl.constexpr, R: tl.constexpr, HALF: tl.constexpr,
    Q_NORM: tl.constexpr, K_NORM: tl.constexpr, V_NORM: tl.constexpr, LAST: tl.constexpr, CLIP: tl.constexpr,
    SCALED: tl.constexpr, BH: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Axes: token, and BH heads of queries, keys or values. A norm is a sum of what it has; 0: there is none."""
    dtype: tl.constexpr = x.dtype.element_ty
    n, first = tl.program_id(0).to(tl.int64), tl.program_id(1) * BH
    head = first + tl.arange(0, BH)[:, None]
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    i = tl.arange(0, WIDE)[None, :]
    fits = i < DIM
    # The other one of each pair.
    if R == 0:
        j = i
    elif HALF:
        j = tl.where(i < R // 2, i + R // 2, tl.where(i < R, i - R // 2, i))
    else:
        j = tl.where(i < R, i + 1 - 2 * (i % 2), i)
    at = x + n * x_row + head * DIM
    y = tl.load(at + i, mask=fits, other=0.0).to(tl.float32)
    if CLIP:
        y = tl.minimum(tl.maximum(y, -clip), clip)
    y = rounded(y, dtype)
    if first >= H + G:
        if V_NORM:
            y, _ = normed(y, y, v_gain, v_shift, head - H - G, i, i, fits, v_head, v_eps, DIM, False, V_NORM, dtype)
    else:
        other = y
        if R > 0:
            other = tl.load(at + j, mask=fits, other=0.0).to(tl.float32)
            if CLIP:
                other = tl.minimum(tl.maximum(other, -clip), clip)
            other = rounded(other, dtype)
        if not LAST:
            if first < H:
                if Q_NORM:
                    y, other = normed(
                        y, other, q_gain, q_shift, head, i, j, fits, q_head, q_eps, DIM, R > 0, Q_NORM, dtype
                    )
            else:
                if K_NORM:
                    y, other = normed(
                        y, other, k_gain, k_shift, head - H, i, j, fits, k_head, k_eps, DIM, R > 0, K_NORM, dtype
                    )
        if R > 0:
            c = tl.load(cos + n * turn_row + i, mask=i < R, other=1.0).to(tl.float32)
            s = tl.load(sin + n * turn_row + i, mask=i < R, other=0.0).to(tl.float32)
            y = tl.where(i < R, rounded(rounded(y * c, dtype) + other * s, dtype), y)
        if LAST:
            if first < H:
                if Q_NORM:
                    y, _ = normed(y, y, q_gain, q_shift, head, i, i, fits, q_head, q_eps, DIM, False, Q_NORM, dtype)
            else:
                if K_NORM:
                    y, _ = normed(y, y, k_gain, k_shift, head - H, i, i, fits, k_head, k_eps, DIM, False, K_NORM, dtype)
    if first < H:
        tl.store(out + (n * H + head) * DIM + i, y.to(dtype), mask=fits)
        return
    slot = tl.load(slots + n).to(tl.int64)
    g = (head - H) % G
    pool, factors = k_pool, k_scale
    if first >= H + G:
        pool, factors = v_pool, v_scale
    to = pool + slot * slot_stride + g * head_stride + i
    if SCALED:
        factor = tl.div_rn(tl.max(tl.abs(tl.where(fits, y, 0.0)), 1, keep_dims=True), 127.0)
        whole = tl.div_rn(y, tl.maximum(factor, LEAST)) + HALVES - HALVES
        tl.store(to, whole.to(tl.int8), mask=fits)
        tl.store(factors + slot * G + g, factor)
    else:
        tl.store(to, y.to(pool.dtype.element_ty), mask=fits)


def launch(given):
    """Queries (N,H,K); keys and values are in the pool then."""
    qkv, heads, kv_heads, dim, k_pool = given.qkv_NC, given.heads, given.kv_heads, given.dim, given.k_PsGK
    tokens = qkv.shape[0]
    out = torch.empty(tokens, heads, dim, dtype=qkv.dtype, device=qkv.device)
    norms = given.q_norm, given.k_norm, given.v_norm
    owns = [{} if norm is None else norm.own for norm in norms]
    gains = [own.get(name, out) for own in owns for name in ("weight", "bias")]
    steps = [dim if any(weight.dim() == 2 for weight in own.values()) else 0 for own in owns]
    epsilons = [0.0 if norm is None else norm.leaf.eps for norm in norms]
    q_norm, k_norm, v_norm = map(norm_code, norms)
    turning = 0 if given.cos_ND is None else given.cos_ND.shape[-1]
    cos, sin = (out, out) if given.cos_ND is None else (given.cos_ND, given.sin_ND)
    k_scale, v_scale = given.scales or (out, out)
    wide = triton.next_power_of_2(dim)
    # Heads of one program are all queries, all keys or all values.
    some = min(math.gcd(heads, kv_heads) & -math.gcd(heads, kv_heads), max(1, TILE // wide))
    options = pdl_options(qkv.device)
    rotate_heads[(tokens, (heads + 2 * kv_heads) // some)](
        qkv, out, k_pool, given.v_PsGK, k_scale, v_scale, given.slot_N, cos, sin, *gains, *steps, *epsilons,
        1.0 if given.clip is None else given.clip, qkv.stride(0), 0 if cos.shape[0] == 1 else cos.stride(0),
        k_pool.stride(1), k_pool.stride(2), H=heads, G=kv_heads, DIM=dim, WIDE=wide, R=turning,
        HALF=given.layout == "half", Q_NORM=q_norm, K_NORM=k_norm, V_NORM=v_norm, LAST=given.norm_last,
        CLIP=given.clip is not None, SCALED=given.scales is not None, BH=some, PDL=bool(options),
        num_warps=max(1, some * wide // 256), **options,
    )  # fmt: skip
    return out
