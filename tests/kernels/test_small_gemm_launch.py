"""Fused products of few rows against plain torch: on CUDA, or in Triton's interpreter (TRITON_INTERPRET=1) on a CPU."""

import pytest
import torch
from torch.nn import functional as F

from anyformer.kernels import small_gemm
from anyformer.kernels.small_gemm import NormTerms, launch
from anyformer.parts.ffns.gated import Bilinear, Geglu, Glu, Reglu, Swiglu
from anyformer.parts.ffns.plain import Gelu, GeluQuick, GeluTanh, Relu, Relu2, Silu
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.parts.norms.rmsnorm import RMSNorm
from tests.kernels.few_rows import DTYPES, SHAPES, drawn, needs_triton
from tests.tolerances import assert_close

pytestmark = pytest.mark.cuda(required=False)
NORMS = {
    "rms": RMSNorm(),
    "rms-one-plus-before": RMSNorm(gain="one_plus", gain_at="before_cast"),
    "rms-one-plus-after": RMSNorm(gain="one_plus"),
    "rms-bare": RMSNorm(gain="none", eps=1e-2),
    "layer": LayerNorm(),
    "layer-after": LayerNorm(gain_at="after_cast"),
    "layer-no-bias": LayerNorm(bias=False),
    "layer-bare": LayerNorm(gain="none", bias=False),
}
LEAVES = {
    "swiglu": Swiglu(),
    "glu": Glu(),
    "bilinear": Bilinear(),
    "reglu": Reglu(),
    "geglu-erf": Geglu(),
    "geglu-tanh": Geglu(form="tanh"),
    "geglu-quick-clamped": Geglu(form="quick", clamp=1.5, offset=1.0),
    "relu": Relu(),
    "relu2": Relu2(),
    "gelu": Gelu(),
    "gelu-tanh": GeluTanh(),
    "gelu-quick": GeluQuick(),
    "silu": Silu(),
}


def terms(leaf, width, dtype):
    own = {name: drawn(width, dtype=dtype) for name in leaf.weights((width,))}
    return NormTerms(leaf, own)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", DTYPES)
@pytest.mark.parametrize("name", NORMS)
def test_product_with_norm_before_it_equals_plain(name, row, shape):
    count, into, outs = SHAPES[shape]
    dtype = DTYPES[row]
    x, w, b = drawn(count, into, dtype=dtype), drawn(outs, into, dtype=dtype), drawn(outs, dtype=dtype)
    norm = terms(NORMS[name], into, dtype)
    assert_close(row, launch.product(x, w, b, norm=norm), F.linear(norm.leaf.apply(x, norm.own), w, b))
    assert_close(row, launch.norm_rows(x, norm), norm.leaf.apply(x, norm.own))


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", DTYPES)
@pytest.mark.parametrize("bias", [False, True])
def test_product_with_residual_after_it_equals_plain(bias, row, shape):
    count, into, outs = SHAPES[shape]
    dtype = DTYPES[row]
    x, w, b = drawn(count, into, dtype=dtype), drawn(outs, into, dtype=dtype), drawn(outs, dtype=dtype)
    residual = drawn(count, outs, dtype=dtype)
    b = b if bias else None
    assert_close(row, launch.product(x, w, b, residual=residual), residual + F.linear(x, w, b))


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", DTYPES)
@pytest.mark.parametrize("name", LEAVES)
def test_product_with_activation_on_either_side_equals_plain(name, row, shape):
    count, into, outs = SHAPES[shape]
    leaf, dtype = LEAVES[name], DTYPES[row]
    parts = len(leaf.inputs)
    h, w, residual = (
        drawn(count, parts * into, dtype=dtype),
        drawn(outs, into, dtype=dtype),
        drawn(count, outs, dtype=dtype),
    )
    how = {"act": leaf.activation(), "gated": parts == 2}
    before = launch.product(h, w, None, residual=residual, at="input", **how)
    assert_close(row, before, residual + F.linear(leaf.combine(*h.chunk(parts, -1)), w))
    x, wide, b = (
        drawn(count, into, dtype=dtype),
        drawn(parts * outs, into, dtype=dtype),
        drawn(parts * outs, dtype=dtype),
    )
    norm, wide = terms(RMSNorm(), into, dtype), wide * into**-0.5
    after = launch.product(x, wide, b, norm=norm, at="output", **how)
    assert_close(row, after, leaf.combine(*F.linear(norm.leaf.apply(x, norm.own), wide, b).chunk(parts, -1)))
    assert_close(row, launch.combine_rows(h, leaf.activation(), parts == 2), leaf.combine(*h.chunk(parts, -1)))


@needs_triton
def test_product_of_strided_rows_and_more_dimensions_equals_plain():
    dtype = torch.float32
    wide, w, residual = drawn(2, 2, 96, dtype=dtype), drawn(24, 64, dtype=dtype), drawn(2, 1, 24, dtype=dtype)
    x = wide[:, :1, 16:80]
    out = launch.product(x, w, None, residual=residual)
    assert out.shape == (2, 1, 24)
    assert_close("fused", out, residual + F.linear(x, w))


@pytest.mark.parametrize("leaf", LEAVES.values(), ids=LEAVES)
def test_activation_of_a_leaf_names_what_combine_does(leaf):
    act = leaf.activation()
    assert act is not None
    gate, up = torch.randn(2, 64, dtype=torch.float64).mul(3)
    if act.clamp is not None and len(leaf.inputs) == 2:
        gate, up = gate.clamp(max=act.clamp), up.clamp(-act.clamp, act.clamp)
    known = {
        "none": lambda z: z,
        "sigmoid": torch.sigmoid,
        "silu": F.silu,
        "relu": torch.relu,
        "relu2": lambda z: z.relu() ** 2,
        "gelu": F.gelu,
        "gelu_tanh": lambda z: F.gelu(z, approximate="tanh"),
        "gelu_quick": lambda z: z * torch.sigmoid(1.702 * z),
    }
    expected = known[act.name](gate) * ((up + act.offset) if len(leaf.inputs) == 2 else 1)
    assert_close("formula", leaf.combine(*(gate, up)[: len(leaf.inputs)]), expected)


@pytest.mark.parametrize("leaf", NORMS.values(), ids=NORMS)
def test_recipe_of_a_norm_names_what_apply_does(leaf):
    recipe = leaf.recipe()
    assert recipe is not None
    x = torch.randn(3, 64, dtype=torch.float64)
    own = {name: torch.randn(64, dtype=torch.float64) for name in leaf.weights((64,))}
    z = x - x.mean(-1, keepdim=True) if recipe.centred else x
    z = z / (z.square().mean(-1, keepdim=True) + leaf.eps).sqrt()
    if recipe.gain != "none":
        z = z * (own["weight"] + (recipe.gain == "one_plus"))
    assert_close("formula", leaf.apply(x, own), z + own.get("bias", 0))


@pytest.mark.parametrize("rows", [1, 2, 3, 4])
@pytest.mark.parametrize("into", [1, 64, 100, 1024, 2048, 4096, 14336, 53248])
def test_blocks_are_powers_of_two_that_registers_hold(rows, into):
    padded = 1 << (rows - 1).bit_length()
    for outs in (1, 512, 4096, 128256):
        for bits in (16, 32):
            sizes = launch.blocks(padded, outs, into, bits)
            assert all(n & (n - 1) == 0 and n > 0 for n in sizes)
            assert sizes.outs >= 2, "a gated output needs a pair of rows"
            assert padded * sizes.outs * sizes.ins / (32 * sizes.warps) <= 64, "sums that a thread holds"


def test_few_on_a_cpu_is_plain_torch():
    x, w, b = (torch.randn(n, dtype=torch.float64) for n in ((2, 8), (6, 8), (6,)))
    leaf, norm = Swiglu(), NormTerms(RMSNorm(), {"weight": torch.randn(8, dtype=torch.float64)})
    residual = torch.randn(2, 6, dtype=torch.float64)
    normed = norm.leaf.apply(x, norm.own)
    assert_close("same", small_gemm.norm_linear(x, norm, w, b), F.linear(normed, w, b))
    assert_close("same", small_gemm.linear_add(x, w, b, residual), residual + F.linear(x, w, b))
    inner = leaf.combine(*small_gemm.norm_linear(x, norm, w, b).chunk(2, -1))
    assert_close("same", small_gemm.norm_linear_combine(x, norm, w, b, leaf), inner)


@pytest.mark.cuda
@pytest.mark.parametrize("count", [1, 2, 4, 5, 64])
def test_few_on_cuda_equals_plain_in_a_captured_graph(count):
    torch.use_deterministic_algorithms(False)
    dtype, leaf, layers = torch.bfloat16, Swiglu(), 6
    x = drawn(count, 512, dtype=dtype)
    ws = [
        (drawn(2048, 512, dtype=dtype) * (0.04 + 0.001 * i), drawn(512, 1024, dtype=dtype) * 0.03)
        for i in range(layers)
    ]
    norm = terms(RMSNorm(), 512, dtype)

    def chain(y, *, plain):
        for up, down in ws:
            if plain:
                gate_up = F.linear(norm.leaf.apply(y, norm.own), up)
                y = y + F.linear(leaf.combine(*gate_up.chunk(2, -1)), down)
            else:
                y = small_gemm.linear_add(small_gemm.norm_linear_combine(y, norm, up, None, leaf), down, None, y)
        return y

    expected = chain(x, plain=True)
    chain(x, plain=False)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = chain(x, plain=False)
    for _ in range(20):
        out.fill_(torch.nan)
        graph.replay()
        # Each layer rounds four times more, and what one layer adds the next ones carry.
        assert float((out.float() - expected.float()).norm() / expected.float().norm()) < layers * 2**-8
