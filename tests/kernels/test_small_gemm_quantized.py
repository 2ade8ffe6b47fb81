"""Weights of 8 and 4 bits: how far they are from the plain ones, and the products with them."""

import pytest
import torch

from anyformer.kernels.small_gemm import launch, quantized
from tests.kernels.few_rows import DEVICE, DTYPES, SHAPES, drawn, needs_triton
from tests.tolerances import assert_close


def test_int8_weights_are_within_half_a_step_of_the_plain_ones():
    weight = drawn(40, 96, dtype=torch.float32)
    data, scale = quantized.quantise_int8(weight)
    assert (data.dtype, data.shape, scale.shape) == (torch.int8, weight.shape, (40,))
    off = (quantized.dequantise_int8(data, scale, torch.float32) - weight).abs()
    assert (off <= 0.5001 * scale[:, None]).all()
    assert (data.abs().amax(1) == 127).all()


def test_int4_weights_keep_the_order_of_inputs_and_the_largest_weight():
    whole = torch.randint(-8, 8, (6, 64), generator=torch.Generator().manual_seed(0)).float()
    whole[:, ::32] = -8.0
    packed, scale = quantized.quantise_int4(whole.to(DEVICE), 32)
    assert (packed.dtype, packed.shape, scale.shape) == (torch.uint8, (6, 32), (6, 2))
    assert_close("same", quantized.dequantise_int4(packed, scale, 32, torch.float32), whole.to(DEVICE))


@pytest.mark.parametrize("group", [32, 64, 128])
def test_int4_error_of_normal_weights_is_below_that_of_the_plain_range(group):
    weight = drawn(64, 256, dtype=torch.float32)
    packed, scale = quantized.quantise_int4(weight, group)
    off = quantized.dequantise_int4(packed, scale, group, torch.float32) - weight
    cut = weight.unflatten(1, (-1, group))
    step = cut.abs().amax(-1, keepdim=True) / 7
    plain = (cut / step).round() * step - cut
    assert off.square().mean() < 0.9 * plain.square().mean()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.float64])
def test_quantised_zero_and_tiny_weights_stay_finite(dtype):
    weight = torch.zeros(3, 64, dtype=dtype, device=DEVICE)
    weight[1] = torch.finfo(dtype).tiny
    for made in (
        quantized.dequantise_int8(*quantized.quantise_int8(weight), dtype),
        quantized.dequantise_int4(*quantized.quantise_int4(weight, 64), 64, dtype),
    ):
        assert made.isfinite().all()
        assert (made.abs() <= 2 * weight.abs().max()).all()


def test_quantised_in_pieces_equals_whole(monkeypatch):
    weight = drawn(50, 64, dtype=torch.float32)
    whole = (*quantized.quantise_int8(weight), *quantized.quantise_int4(weight, 32))
    monkeypatch.setattr(quantized, "CHUNK", 64 * 7)
    pieces = (*quantized.quantise_int8(weight), *quantized.quantise_int4(weight, 32))
    assert all(torch.equal(a, b) for a, b in zip(whole, pieces, strict=True))


@pytest.mark.parametrize("rows", [1, 7])
def test_quantised_products_equal_those_of_the_weights_they_stand_for(rows):
    x, weight, bias = (drawn(*n, dtype=torch.float32) for n in ((2, rows, 64), (12, 64), (12,)))
    data, scale = quantized.quantise_int8(weight)
    eight = torch.nn.functional.linear(x, quantized.dequantise_int8(data, scale, x.dtype), bias)
    assert_close("fused", quantized.int8_linear(x, data, scale, bias), eight)
    packed, scale = quantized.quantise_int4(weight, 32)
    four = torch.nn.functional.linear(x, quantized.dequantise_int4(packed, scale, 32, x.dtype), bias)
    assert_close("fused", quantized.int4_linear(x, packed, scale, 32, bias), four)


@needs_triton
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("row", DTYPES)
def test_quantised_kernels_equal_plain(row, shape):
    count, into, outs = SHAPES[shape]
    into, dtype = -(-into // 32) * 32, DTYPES[row]
    x, weight, bias = drawn(count, into, dtype=dtype), drawn(outs, into, dtype=dtype), drawn(outs, dtype=dtype)
    data, scale = quantized.quantise_int8(weight)
    exact = x.double() @ quantized.dequantise_int8(data, scale, torch.float64).T + bias.double()
    assert_close(row, launch.product(x, data, bias, scale=scale), exact)
    packed, scale = quantized.quantise_int4(weight, 32)
    exact = x.double() @ quantized.dequantise_int4(packed, scale, 32, torch.float64).T + bias.double()
    assert_close(row, launch.int4_linear(x, packed, scale, 32, bias), exact)


@needs_triton
@pytest.mark.parametrize("group", [8, 64, 2048])
def test_int4_kernel_with_small_and_large_groups_equals_plain(group):
    x, weight = drawn(2, 2048, dtype=torch.float32), drawn(3, 2048, dtype=torch.float32)
    packed, scale = quantized.quantise_int4(weight, group)
    exact = x.double() @ quantized.dequantise_int4(packed, scale, group, torch.float64).T
    assert_close("fused", launch.int4_linear(x, packed, scale, group, None), exact)


@needs_triton
def test_int8_kernel_with_rows_that_no_vector_divides_equals_plain():
    x, weight = drawn(1, 99, dtype=torch.float32), drawn(5, 99, dtype=torch.float32)
    data, scale = quantized.quantise_int8(weight)
    exact = x.double() @ quantized.dequantise_int8(data, scale, torch.float64).T
    assert_close("fused", launch.product(x, data, None, scale=scale), exact)
