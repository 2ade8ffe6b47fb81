"""Our linear map and look-up table."""

import pytest
import torch
from torch.nn.utils import prune

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


def test_linear_and_table_are_known_to_tools_as_those_of_torch():
    linear, table = Linear(5, 3), Embedding(7, 4)
    assert isinstance(linear, torch.nn.Linear)
    assert isinstance(table, torch.nn.Embedding)
    assert (linear.in_features, linear.out_features, linear.bias) == (5, 3, None)
    assert (table.num_embeddings, table.embedding_dim, table.padding_idx) == (7, 4, None)
    # What a tool asks of a module of torch without an option, ours answers too.
    assert set(torch.nn.Linear(5, 3, bias=False).__dict__) <= set(linear.__dict__)
    assert set(torch.nn.Embedding(7, 4).__dict__) <= set(table.__dict__)
    assert list(torch.nn.Linear(5, 3, bias=False)._parameters) == list(linear._parameters)


def test_linear_and_table_draw_no_random_numbers_when_they_are_made():
    before = torch.get_rng_state()
    Linear(5, 3, bias=True), Embedding(7, 4)
    assert torch.equal(torch.get_rng_state(), before)


def test_linear_and_table_reset_to_our_own_start():
    torch.manual_seed(0)
    linear, table = Linear(300, 500, bias=True), Embedding(400, 500)
    for module, std in ((linear, (2 / 800) ** 0.5), (table, 1.0)):
        module.reset_parameters()
        # Cut at 3 sigma, a normal keeps 0.986 of its standard deviation; 150,000 draws know it to a few thousandths.
        assert float(module.weight.detach().std()) == pytest.approx(0.9866 * std, rel=0.01)
        assert float(module.weight.detach().abs().max()) <= 3 * std
    assert not linear.bias.any()
    with torch.device("meta"):
        Linear(5, 3, bias=True).reset_parameters()
        Embedding(5, 3).reset_parameters()


def test_linear_weight_and_bias_can_be_parametrized_and_replaced():
    linear, x = randomised(Linear(5, 3)), random(2, 5, seed=9)
    plain = linear(x)
    torch.nn.utils.parametrizations.weight_norm(linear)
    assert_close("formula", linear(x), plain)
    linear.register_parameter("bias", torch.nn.Parameter(torch.ones(3, dtype=torch.float64)))
    assert_close("formula", linear(x), plain + 1)


def test_linear_bias_alone_can_be_parametrized_and_pruned():
    linear, x = randomised(Linear(5, 3, bias=True)), random(2, 5, seed=9)
    weight, bias = linear.weight.detach().clone(), linear.bias.detach().clone()

    class Twice(torch.nn.Module):
        def forward(self, it):
            return 2 * it

    torch.nn.utils.parametrize.register_parametrization(linear, "bias", Twice())
    assert_close("formula", linear(x), x @ weight.T + 2 * bias)
    prune.random_unstructured(linear, "weight", amount=0.5)
    assert_close("formula", linear(x), x @ (weight * linear.weight_mask).T + 2 * bias)
    swapped = torch.func.functional_call(Linear(5, 3).double(), {"weight": 3 * weight}, (x,))
    assert_close("formula", swapped, 3 * x @ weight.T)
