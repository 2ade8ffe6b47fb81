"""int8 products on a CPU: a few rows by digits, more by tiles, both with the weights that the numbers stand for."""

import pytest
import torch

from anyformer.kernels.small_gemm import cpu_int8
from anyformer.kernels.small_gemm.quantized import dequantise_int4, quantise_int4, quantise_int8
from tests.tolerances import assert_close

needs_fbgemm = pytest.mark.skipif(not cpu_int8.packs(), reason="this build of torch has no fbgemm")
SHAPES = [(9, 40), (130, 768), (700, 2048)]


def drawn(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def exact(x, data, scale, bias=None):
    y = x.double() @ (data.double() * scale.double()[:, None]).T
    return y if bias is None else y + bias.double()


@needs_fbgemm
@pytest.mark.parametrize("count", [1, 2, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_int8_by_digits_is_the_product_with_the_weights_that_numbers_stand_for(count, shape):
    data, scale = quantise_int8(drawn(*shape))
    x, bias = drawn(count, shape[1], seed=1), drawn(shape[0], seed=2)
    found = cpu_int8.by_digits(x, cpu_int8.pack(data, scale), bias)
    assert_close("single", found, exact(x, data, scale, bias).float())


@needs_fbgemm
def test_int8_by_digits_of_the_largest_numbers_does_not_saturate():
    data, scale = torch.full((16, 512), 127, dtype=torch.int8), torch.ones(16)
    x = torch.ones(3, 512)
    x[1] *= -1
    # Half of what one unit of the first digit is: the second digit is at its end.
    x[2] = 0.5 / 63
    x[2, 0] = 1.0
    assert_close("single", cpu_int8.by_digits(x, cpu_int8.pack(data, scale), None), exact(x, data, scale).float())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("count", [1, 9, 64, 2100])
@pytest.mark.parametrize("bias", [False, True])
def test_int8_by_tiles_is_the_product_with_the_weights_that_numbers_stand_for(count, bias, dtype, monkeypatch):
    # Tiles of 5 and of 20 outputs, the last one smaller.
    monkeypatch.setattr(cpu_int8, "TILE", 200)
    monkeypatch.setattr(cpu_int8, "WIDE_TILE", 800)
    data, scale = quantise_int8(drawn(23, 40))
    x, b = drawn(count, 40, seed=1).to(dtype), drawn(23, seed=2).to(dtype) if bias else None
    found = cpu_int8.by_tiles(x, data, scale, b)
    assert found.dtype == dtype
    assert_close("single", found, exact(x, data, scale, b).to(dtype))


@needs_fbgemm
def test_int8_rows_are_the_same_alone_in_a_batch_and_beside_a_much_larger_row():
    data, scale = quantise_int8(drawn(64, 768))
    packed, x = cpu_int8.pack(data, scale), drawn(40, 768, seed=1)
    x[3] *= 1e4
    many, few = cpu_int8.by_tiles(x, data, scale, None), cpu_int8.by_digits(x[:8], packed, None)
    for i in range(8):
        alone = cpu_int8.by_digits(x[i : i + 1], packed, None)
        assert_close("single", alone, few[i : i + 1])
        assert_close("single", alone, many[i : i + 1])


@needs_fbgemm
@pytest.mark.parametrize("count", [1, 3])
def test_int8_rows_of_zeros_give_the_bias_and_what_is_not_finite_stays_so(count):
    data, scale = quantise_int8(drawn(9, 40))
    packed, bias = cpu_int8.pack(data, scale), drawn(9, seed=2)
    assert torch.equal(cpu_int8.by_digits(torch.zeros(count, 40), packed, bias), bias.expand(count, -1))
    for wrong in (float("nan"), float("inf"), float("-inf")):
        x = drawn(count, 40, seed=1)
        x[-1, 7] = wrong
        for y in (cpu_int8.by_digits(x, packed, bias), cpu_int8.by_tiles(x, data, scale, bias)):
            assert not y[-1].isfinite().any()
            assert y[:-1].isfinite().all()


def test_int4_by_tiles_is_the_product_with_the_weights_that_numbers_stand_for(monkeypatch):
    monkeypatch.setattr(cpu_int8, "TILE", 64 * 5)
    packed, scale = quantise_int4(drawn(23, 64), 32)
    x, bias = drawn(7, 64, seed=1), drawn(23, seed=2)
    want = x.double() @ dequantise_int4(packed, scale, 32, torch.float64).T + bias.double()
    assert_close("single", cpu_int8.int4_by_tiles(x, packed, scale, 32, bias), want.float())
