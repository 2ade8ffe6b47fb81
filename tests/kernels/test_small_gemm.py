"""Products of few tokens: each call against the operations that it stands for."""

import pytest
import torch
from torch.nn import functional as F

from anyformer.kernels import small_gemm
from anyformer.kernels.small_gemm import NormTerms
from anyformer.parts.ffns.gated import Swiglu
from anyformer.parts.ffns.plain import Gelu
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.parts.norms.rmsnorm import RMSNorm
from tests.tolerances import assert_close

ROWS = (1, 2, 7)


def drawn(*shape, dtype=torch.float64, seed=0):
    return torch.randn(*shape, dtype=dtype, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("leaf", [None, RMSNorm(), RMSNorm(gain="one_plus"), RMSNorm(gain="none"), LayerNorm()])
def test_norm_linear_is_the_norm_and_then_the_product(rows, leaf):
    x, weight, bias = drawn(rows, 12), drawn(5, 12, seed=1), drawn(5, seed=2)
    own = {} if leaf is None else {name: drawn(12, seed=3) for name in leaf.weights((12,))}
    normed = x
    if leaf is not None:
        centred = x - x.mean(-1, keepdim=True) if leaf.kind == "layernorm" else x
        normed = centred / (centred.square().mean(-1, keepdim=True) + leaf.eps).sqrt()
        gain = own.get("weight", torch.ones(12)) + (1 if leaf.gain == "one_plus" else 0)
        normed = normed * gain + own.get("bias", 0)
    with torch.no_grad():
        found = small_gemm.norm_linear(x, None if leaf is None else NormTerms(leaf, own), weight, bias)
    assert_close("formula", found, normed @ weight.T + bias)


@pytest.mark.parametrize("rows", ROWS)
def test_products_with_a_residual_or_an_activation_are_their_parts(rows):
    x, weight, bias, residual = drawn(rows, 6), drawn(5, 6, seed=1), drawn(5, seed=2), drawn(rows, 5, seed=3)
    assert_close("formula", small_gemm.linear_add(x, weight, bias, residual), x @ weight.T + bias + residual)
    assert_close("formula", small_gemm.norm_linear_combine(x, None, weight, bias, Gelu()), F.gelu(x @ weight.T + bias))
    merged = drawn(12, 6, seed=6)
    found = small_gemm.norm_linear_combine(x, None, merged, None, Swiglu())
    gate, up = (x @ merged.T).chunk(2, -1)
    assert_close("formula", found, gate * gate.sigmoid() * up)


def test_rms_norm_of_one_row_on_a_cpu_is_that_of_many_rows():
    x, own = drawn(3, 12) * 1e-3, {"weight": drawn(12, seed=1)}
    with torch.no_grad():
        alone = torch.cat([RMSNorm().apply(row[None], own) for row in x])
        assert_close("formula", alone, RMSNorm().apply(x, own))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 16, 64])
@pytest.mark.parametrize("outs", [4096, 4099, 50257 // 8])
def test_product_shared_out_over_its_outputs_equals_the_plain_one(rows, outs):
    generator = torch.Generator().manual_seed(rows)
    x = torch.randn(rows, 130, generator=generator, dtype=torch.float64)
    weight = torch.randn(outs, 130, generator=generator, dtype=torch.float64)
    bias = torch.randn(outs, generator=generator, dtype=torch.float64)
    with torch.no_grad():
        assert small_gemm.cpu_serves(x, weight)
        found = small_gemm.cpu_linear(x[None], weight, bias)
    assert found.shape == (1, rows, outs)
    assert_close("kernel", found[0], torch.nn.functional.linear(x, weight, bias))


def test_product_that_learns_is_not_shared_out():
    x, weight = torch.randn(1, 512), torch.randn(1024, 512)
    assert not small_gemm.cpu_serves(x, weight)
    with torch.no_grad():
        assert small_gemm.cpu_serves(x, weight)
        assert not small_gemm.cpu_serves(x.expand(small_gemm.CPU_ROWS + 1, -1), weight)
        assert not small_gemm.cpu_serves(x, weight[:64])
