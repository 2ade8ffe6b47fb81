"""The Triton kernels of products with few rows. Imported only where Triton is: see `launch`, which starts them.

One program makes a few outputs: it streams their rows of weights past registers, and holds the sums of every column that
it owns until the end. Norms and activations of the input are made again by each program, since the input is small and
lies in the cache; that is cheaper than a kernel of their own, which the whole device would wait for. Numbers are rounded
to the input's dtype where the plain model rounds.

The first weights are asked for before the kernel waits for the one before it (PDL), so that the memory bus has work
while that one ends. Weights are constants of a captured graph; outside of one `early` is 0 and nothing is read before.
"""
# Triton is not installed where there is no CUDA device.
# pyright: reportMissingImports=false

import functools

import triton
import triton.language as tl

from anyformer.kernels.triton_launch import one_at_a_time

NAN = tl.constexpr(tl.PropagateNan.ALL)
SCALES, CENTRED, GAIN, ONE_PLUS, SHIFT, LATE = (tl.constexpr(2**i) for i in range(6))
"""What a norm has, added up in NORM; late: gain and bias come after the cast to the input's dtype."""


def norm_code(norm):
    """A norm as the sum that its kernel is compiled for; 0: there is none."""
    return 0 if norm is None else _code(norm.leaf, norm.own.get("bias") is not None)


@functools.cache
def _code(leaf, biased):
    recipe = leaf.recipe()
    has = {
        SCALES: True, CENTRED: recipe.centred, GAIN: recipe.gain != "none", ONE_PLUS: recipe.gain == "one_plus",
        SHIFT: biased, LATE: recipe.gain_at == "after_cast",
    }  # fmt: skip
    return sum(part.value for part, there in has.items() if there)


@triton.jit
def rounded(value, dtype: tl.constexpr):
    """As if it had been stored in the dtype and read again."""
    return value.to(dtype).to(tl.float32)


@triton.jit
def sigmoid(z):
    """1 / (1 + e^-z), without overflow to NaN at either end."""
    return 1.0 / (1.0 + tl.exp(-z))


@triton.jit
def activated(z, ACT: tl.constexpr, dtype: tl.constexpr):
    """An activation of fp32 numbers, rounded to the dtype."""
    if ACT == "silu":
        z = z * sigmoid(z)
    elif ACT == "sigmoid":
        z = sigmoid(z)
    elif ACT == "relu":
        z = tl.maximum(z, 0.0, propagate_nan=NAN)
    elif ACT == "relu2":
        z = tl.maximum(z, 0.0, propagate_nan=NAN)
        z = z * z
    elif ACT == "gelu":
        z = 0.5 * z * (1.0 + tl.erf(z * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        # tanh(u) = 2 sigmoid(2u) - 1
        z = z * sigmoid(1.5957691216057308 * (z + 0.044715 * z * z * z))
    elif ACT == "gelu_quick":
        z = z * rounded(sigmoid(rounded(1.702 * z, dtype)), dtype)
    return rounded(z, dtype)


@triton.jit
def combined(gate, up, ACT: tl.constexpr, GATED: tl.constexpr, CLAMP: tl.constexpr, OFFSET: tl.constexpr,
             dtype: tl.constexpr):  # fmt: skip
    """The inner activation of a feed-forward from fp32 numbers that already went through the dtype."""
    if CLAMP > 0.0:
        gate = tl.minimum(gate, CLAMP, propagate_nan=NAN)
        up = tl.minimum(tl.maximum(up, -CLAMP, propagate_nan=NAN), CLAMP, propagate_nan=NAN)
    if OFFSET != 0.0:
        up = rounded(up + OFFSET, dtype)
    act = activated(gate, ACT, dtype)
    if GATED:
        act = rounded(act * up, dtype)
    return act


@triton.jit
def scales(x_at, fits_n, i, eps, INS: tl.constexpr, BI: tl.constexpr, NORM: tl.constexpr):
    """Mean (0 unless centred) and 1 / sqrt(mean square + eps) of each row, (ROWS, 1, 1)."""
    ROWS: tl.constexpr = fits_n.shape[0]
    mean = tl.zeros((ROWS, 1, 1), tl.float32)
    if CENTRED & NORM:
        total = tl.zeros((ROWS, 1, BI), tl.float32)
        for k in range(0, INS, BI):
            total += tl.load(x_at + k, mask=fits_n & (i + k < INS), other=0.0).to(tl.float32)
        mean = tl.sum(total, 2, keep_dims=True) / INS
    square = tl.zeros((ROWS, 1, BI), tl.float32)
    for k in range(0, INS, BI):
        fits = fits_n & (i + k < INS)
        z = tl.load(x_at + k, mask=fits, other=0.0).to(tl.float32)
        z = tl.where(fits, z - mean, 0.0)
        square += z * z
    return mean, tl.rsqrt(tl.sum(square, 2, keep_dims=True) / INS + eps)


@triton.jit
def gained(z, gain, shift, at, fits, NORM: tl.constexpr, dtype: tl.constexpr):
    """Normed fp32 numbers with gain and bias: in fp32, or each rounded to the dtype."""
    if LATE & NORM:
        z = rounded(z, dtype)
    if GAIN & NORM:
        g = tl.load(gain + at, mask=fits, other=0.0).to(tl.float32)
        if ONE_PLUS & NORM:
            g = 1.0 + g
        if LATE & NORM:
            g = rounded(g, dtype)
        z = z * g
        if LATE & NORM:
            z = rounded(z, dtype)
    if SHIFT & NORM:
        b = tl.load(shift + at, mask=fits, other=0.0).to(tl.float32)
        if LATE & NORM:
            b = rounded(b, dtype)
        z = z + b
    return rounded(z, dtype)


@one_at_a_time
@triton.jit
def product(
    x, weight, out, bias, residual, scale, gain, shift, stride, outs, eps, early,
    N: tl.constexpr, ROWS: tl.constexpr, INS: tl.constexpr, BO: tl.constexpr, BI: tl.constexpr,
    NORM: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr, CLAMP: tl.constexpr, OFFSET: tl.constexpr,
    AT: tl.constexpr, SCALE: tl.constexpr, BIAS: tl.constexpr, ADD: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """Outputs `pid * BO` and on of N rows. AT: where the activation acts, on the "input", on the "output", or "no"where.

    An activation of the input reads gate and up side by side, INS numbers each. A gated one of the output pairs output o
    of `outs` with row o + outs of the weights, and a program makes BO / 2 of them.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if early == 0:
            tl.extra.cuda.gdc_wait()
    dtype: tl.constexpr = x.dtype.element_ty
    PAIR: tl.constexpr = GATED and AT == "output"
    MADE: tl.constexpr = BO // 2 if PAIR else BO
    first = tl.program_id(0).to(tl.int64) * MADE
    if PAIR:
        made = first + tl.arange(0, BO) % MADE
        o = made + (tl.arange(0, BO) // MADE).to(tl.int64) * outs
    else:
        made = first + tl.arange(0, BO)
        o = made
    fits_o = made < outs
    # All that meets the weights has three dimensions from the start, (ROWS, BO, BI): numbers then lie in the registers
    # of the thread that multiplies them, and nothing passes through shared memory on the way.
    n = tl.arange(0, ROWS)[:, None, None]
    i = tl.arange(0, BI)[None, None, :]
    fits_n = n < N
    wanted = fits_o[None, :, None]
    at = weight + o[None, :, None] * INS + i
    VECTOR: tl.constexpr = 128 // dtype.primitive_bitwidth
    if SCALE and INS % VECTOR == 0:
        # A thread then takes as many 8-bit weights at a time as it takes inputs.
        at = tl.multiple_of(at, (1, 1, VECTOR))
    EVEN: tl.constexpr = INS % BI == 0
    if EVEN:
        w = tl.load(at, mask=wanted, other=0, eviction_policy="evict_first")
    else:
        w = tl.load(at, mask=wanted & (i < INS), other=0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_wait()
    x_at = x + n * stride + i
    mean, rstd = 0.0, 1.0
    if NORM:
        mean, rstd = scales(x_at, fits_n, i, eps, INS, BI, NORM)
    acc = tl.zeros((ROWS, BO, BI), tl.float32)
    for k in range(0, INS, BI):
        fits_i = i + k < INS
        fits = fits_n & fits_i
        # The next weights are asked for before these are used.
        after = tl.load(at + (k + BI), mask=wanted & (i + (k + BI) < INS), other=0, eviction_policy="evict_first")
        z = tl.load(x_at + k, mask=fits, other=0.0).to(tl.float32)
        if NORM:
            z = gained((z - mean) * rstd, gain, shift, i + k, fits_i, NORM, dtype)
        if AT == "input":
            up = z
            if GATED:
                up = tl.load(x_at + (k + INS), mask=fits, other=0.0).to(tl.float32)
            z = combined(z, up, ACT, GATED, CLAMP, OFFSET, dtype)
        if not EVEN:
            z = tl.where(fits, z, 0.0)
        acc += z * w.to(tl.float32)
        w = after
    y = tl.sum(acc, 2)
    if SCALE:
        y = y * tl.load(scale + o, mask=fits_o, other=0.0).to(tl.float32)[None, :]
    if BIAS:
        y = y + tl.load(bias + o, mask=fits_o, other=0.0).to(tl.float32)[None, :]
    finished(y, out, residual, first, outs, N, BO, MADE, ACT, GATED, CLAMP, OFFSET, AT, ADD, dtype)


@triton.jit
def finished(y, out, residual, first, outs, N: tl.constexpr, BO: tl.constexpr, MADE: tl.constexpr, ACT: tl.constexpr,
             GATED: tl.constexpr, CLAMP: tl.constexpr, OFFSET: tl.constexpr, AT: tl.constexpr, ADD: tl.constexpr,
             dtype: tl.constexpr):  # fmt: skip
    """Activation of the output (ROWS, BO), residual, store."""
    y = rounded(y, dtype)
    if AT == "output":
        if GATED:
            gate, up = tl.split(tl.permute(tl.reshape(y, (y.shape[0], 2, MADE)), (0, 2, 1)))
            y = combined(gate, up, ACT, GATED, CLAMP, OFFSET, dtype)
        else:
            y = combined(y, y, ACT, GATED, CLAMP, OFFSET, dtype)
    n = tl.arange(0, y.shape[0])[:, None]
    made = first + tl.arange(0, MADE)[None, :]
    place = n * outs + made
    fits = (n < N) & (made < outs)
    if ADD:
        y = y + tl.load(residual + place, mask=fits, other=0.0).to(tl.float32)
    tl.store(out + place, y.to(dtype), mask=fits)


@one_at_a_time
@triton.jit
def product_int4(
    x, packed, out, bias, scale, stride, outs, early, one,
    N: tl.constexpr, ROWS: tl.constexpr, INS: tl.constexpr, GROUP: tl.constexpr, BO: tl.constexpr, BW: tl.constexpr,
    BIAS: tl.constexpr, PDL: tl.constexpr,
):  # fmt: skip
    """The product x W^T + b with weights of 4 bits, read as words of 8: see `quantized` for how they lie.

    Half bytes become the first bits of floats from 1 to 2, 1 + h / 16, which costs no conversion. With h = number + 8
    the sum of a group is 16 times that of (1 + h / 16) x, less 24 times that of x. `one` holds the bits of 1.0: as a
    number that is known only at run time it lies in a register, and one instruction masks and sets.
    """
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        if early == 0:
            tl.extra.cuda.gdc_wait()
    dtype: tl.constexpr = x.dtype.element_ty
    WORDS: tl.constexpr = INS // 8
    EACH: tl.constexpr = GROUP // 8
    first = tl.program_id(0).to(tl.int64) * BO
    o = first + tl.arange(0, BO)
    fits_o = o < outs
    wanted = fits_o[None, :, None]
    n = tl.arange(0, ROWS)[:, None, None]
    fits_n = n < N
    j = tl.arange(0, BW)[None, None, :]
    at = packed + o[None, :, None] * WORDS + j
    GROUPS: tl.constexpr = BW // EACH
    g = tl.arange(0, GROUPS)[None, None, :]
    s_at = scale + o[None, :, None] * (INS // GROUP) + g
    w = tl.load(at, mask=wanted & (j < WORDS), other=0, eviction_policy="evict_first")
    if PDL:
        tl.extra.cuda.gdc_wait()
    acc = tl.zeros((ROWS, BO, GROUPS), tl.float32)
    for k in range(0, WORDS, BW):
        word = j + k
        fits = fits_n & (word < WORDS)
        after = tl.load(at + (k + BW), mask=wanted & (j + (k + BW) < WORDS), other=0, eviction_policy="evict_first")
        s = tl.load(s_at + k // EACH, mask=wanted & (g + k // EACH < INS // GROUP), other=0.0).to(tl.float32)
        x_at = x + n * stride + ((word // EACH) * GROUP + word % EACH)
        part = tl.zeros((ROWS, BO, BW), tl.float32)
        total = tl.zeros((ROWS, 1, BW), tl.float32)
        for c in tl.static_range(8):
            z = tl.load(x_at + c * EACH, mask=fits, other=0.0).to(tl.float32)
            moved = w << (19 - 4 * c) if c < 5 else w >> (4 * c - 19)
            part += z * ((moved & 0x780000) | one).to(tl.float32, bitcast=True)
            total += z
        part = 16.0 * part - 24.0 * total
        acc += s * tl.sum(tl.reshape(part, (ROWS, BO, GROUPS, EACH)), 3)
        w = after
    y = tl.sum(acc, 2)
    if BIAS:
        y = y + tl.load(bias + o, mask=fits_o, other=0.0).to(tl.float32)[None, :]
    finished(y, out, out, first, outs, N, BO, BO, "none", False, 0.0, 0.0, "no", False, dtype)


@one_at_a_time
@triton.jit
def norm_rows(x, out, gain, shift, stride, eps, INS: tl.constexpr, BI: tl.constexpr, NORM: tl.constexpr,
              PDL: tl.constexpr):  # fmt: skip
    """One row normed."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    dtype: tl.constexpr = x.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    i = tl.arange(0, BI)
    fits = i < INS
    z = tl.load(x + row * stride + i, mask=fits, other=0.0).to(tl.float32)
    if CENTRED & NORM:
        z = tl.where(fits, z - tl.sum(z, 0) / INS, 0.0)
    z = z * tl.rsqrt(tl.sum(z * z, 0) / INS + eps)
    z = gained(z, gain, shift, i, fits, NORM, dtype)
    tl.store(out + row * INS + i, z.to(dtype), mask=fits)


@one_at_a_time
@triton.jit
def combine_rows(h, out, stride, INS: tl.constexpr, BI: tl.constexpr, ACT: tl.constexpr, GATED: tl.constexpr,
                 CLAMP: tl.constexpr, OFFSET: tl.constexpr, PDL: tl.constexpr):  # fmt: skip
    """BI inner activations of one row from gate and up side by side."""
    if PDL:
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    dtype: tl.constexpr = h.dtype.element_ty
    row = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BI + tl.arange(0, BI)
    fits = i < INS
    gate = tl.load(h + row * stride + i, mask=fits, other=0.0).to(tl.float32)
    up = gate
    if GATED:
        up = tl.load(h + row * stride + INS + i, mask=fits, other=0.0).to(tl.float32)
    z = combined(gate, up, ACT, GATED, CLAMP, OFFSET, dtype)
    tl.store(out + row * INS + i, z.to(dtype), mask=fits)
