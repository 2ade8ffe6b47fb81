"""Our linear map and look-up table."""

import pytest
import torch

from anyformer.parts.embedding import Embedding
from anyformer.parts.linear import Linear
from tests.parts.samples import random, randomised
from tests.tolerances import assert_close


@pytest.mark.parametrize("bias", [False, True])
def test_linear_equals_the_product_with_its_transposed_weight(bias):
    linear = randomised(Linear(5, 3, bias=bias))
    x = random(2, 4, 5, seed=9)
    expected = torch.stack([(x * row).sum(-1) for row in linear.weight], -1)
    assert_close("formula", linear(x), expected + linear.bias if bias else expected)
    assert tuple(linear.weight.shape) == (3, 5)


def test_linear_by_default_has_one_parameter():
    assert [name for name, _ in Linear(5, 3).named_parameters()] == ["weight"]
    assert [name for name, _ in Linear(5, 3, bias=True).named_parameters()] == ["weight", "bias"]


def test_linear_gradient_equals_the_outer_product():
    linear, x, back = randomised(Linear(5, 3, bias=True)), random(4, 5, seed=9), random(4, 3, seed=8)
    linear(x).backward(back)
    assert_close("formula", linear.weight.grad, torch.einsum("no,ni->oi", back, x))
    assert_close("formula", linear.bias.grad, back.sum(0))


def test_table_gives_the_rows_of_its_ids_and_their_gradients():
    table, ids = randomised(Embedding(7, 4)), torch.tensor([[0, 6, 3], [3, 3, 1]])
    found = table(ids)
    assert_close("same", found, torch.stack([torch.stack([table.weight[i] for i in row]) for row in ids.tolist()]))
    found.backward(torch.ones_like(found))
    assert table.weight.grad[:, 0].tolist() == [1, 1, 0, 3, 0, 0, 1]


def test_linear_and_table_print_their_sizes():
    assert str(Linear(5, 3, bias=True)) == "Linear(5 -> 3, bias)"
    assert str(Embedding(7, 4)) == "Embedding(7 x 4)"
