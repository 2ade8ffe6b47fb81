"""Muon: closed forms in fp64, stacks of any shape, and steps that are skipped."""

import pytest
import torch
from torch import nn

from anyformer.optim.rule import STACK, MuonRule, OptimizedParam, StepSize, orthogonalised
from tests.tolerances import assert_close


def moved(rule, *shapes, seed=0, dtype=torch.float64):
    """Random parameters with random gradients."""
    make = torch.Generator().manual_seed(seed)
    found = []
    for i, shape in enumerate(shapes):
        p = nn.Parameter(torch.randn(shape, dtype=dtype, generator=make))
        p.grad = torch.randn(shape, dtype=dtype, generator=make)
        found.append(OptimizedParam(name=f"p{i}", parameter=p, slots=rule.fresh(p.detach())))
    return found


def step(rule, some, rate=0.1, decay=0.0, skip=None):
    for _, update in rule.updates(some, StepSize(rate=rate, decay=decay, skip=skip)):
        update()


@pytest.mark.parametrize("shape", [(3, 8, 8), (2, 5, 12), (2, 12, 5), (1, 1, 6)])
def test_orthogonalised_matrices_keep_directions_and_level_their_sizes(shape):
    g = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    done = orthogonalised(g)
    u, s, vh = torch.linalg.svd(g, full_matrices=False)
    # In the basis of the input's singular vectors the output is diagonal, and its values are near 1.
    inside = u.mT @ done @ vh.mT
    off = inside - torch.diag_embed(torch.diagonal(inside, dim1=-2, dim2=-1))
    assert off.abs().max() < 1e-9
    levelled = torch.diagonal(inside, dim1=-2, dim2=-1)[s / s.amax(-1, keepdim=True) > 0.02]
    assert levelled.min() > 0.6
    assert levelled.max() < 1.3


def test_orthogonalised_stack_is_each_matrix_by_itself():
    g = torch.randn(4, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    assert_close("formula", orthogonalised(g), torch.stack([orthogonalised(each[None])[0] for each in g]))


def test_orthogonalised_does_not_care_about_the_size_of_a_gradient():
    g = torch.randn(1, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(orthogonalised(g), orthogonalised(1e4 * g), atol=1e-5)


def test_orthogonalised_bf16_on_a_cpu_is_computed_in_fp32():
    g = torch.randn(2, 4, 6, generator=torch.Generator().manual_seed(3)).bfloat16()
    assert_close("bf16", orthogonalised(g), orthogonalised(g.float()))


def test_muon_step_is_nesterov_momentum_made_orthogonal():
    rule = MuonRule(momentum=0.9)
    make = torch.Generator().manual_seed(0)
    (one,) = moved(rule, (4, 6))
    buffer, wanted = torch.zeros(4, 6, dtype=torch.float64), one.parameter.detach().clone()
    for _ in range(3):
        one.parameter.grad = g = torch.randn(4, 6, dtype=torch.float64, generator=make)
        buffer = 0.9 * buffer + 0.1 * g
        update = orthogonalised((0.1 * g + 0.9 * buffer)[None])[0]
        wanted = wanted * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * update
        step(rule, [one], decay=0.5)
        assert_close("formula", one.parameter, wanted)
        assert_close("formula", one.slots["momentum"], buffer)


def test_muon_moves_a_mixed_list_as_it_moves_each_matrix_alone():
    rule = MuonRule(momentum=0.9)
    # Wide and tall ones share a stack, one with more dimensions is a stack itself, and one is larger than a stack.
    shapes = [(4, 6), (6, 4), (3, 4, 6), (5, 5), (2, 3, 6, 4), (2, STACK["cpu"])]
    together, alone = moved(rule, *shapes), moved(rule, *shapes)
    step(rule, together)
    for each in alone:
        step(rule, [each])
    for a, b in zip(together, alone, strict=True):
        assert_close("formula", a.parameter, b.parameter)
    tall = MuonRule(momentum=0.9)
    (given,), (turned,) = moved(tall, (6, 4)), moved(tall, (4, 6))
    turned.parameter.data.copy_(given.parameter.detach().mT)
    turned.parameter.grad = given.parameter.grad.mT.clone()
    step(tall, [given])
    step(tall, [turned])
    assert_close("formula", given.parameter, turned.parameter.mT)


@pytest.mark.parametrize("rate", [0.1, torch.tensor(0.1, dtype=torch.float64)], ids=["number", "tensor"])
def test_muon_skip_of_zero_changes_no_bit_of_a_step(rate):
    ends = []
    for skip in (None, torch.zeros(())):
        rule = MuonRule(momentum=0.9)
        some = moved(rule, (4, 6), (6, 4))
        step(rule, some, rate=rate, decay=0.5, skip=skip)
        ends.append([t for each in some for t in (each.parameter.detach(), each.slots["momentum"])])
    assert all(torch.equal(a, b) for a, b in zip(*ends, strict=True))


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(TypeError, match=r"for matrices, got a parameter of shape \(3,\)"):
        MuonRule(momentum=0.9).fresh(torch.zeros(3))
