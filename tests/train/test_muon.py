"""Muon and the groups of parameters: closed forms in fp64, and roles over random specs."""

import pytest
import torch

import anyformer as af
from anyformer.specs.weights import weights
from anyformer.train.muon import Muon, orthogonalised
from anyformer.train.optim import INSIDE, Optimizers
from anyformer.train.rates import Rates
from anyformer.train.schedule import Trapezoid
from tests.contract.draw import BASE, draw


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
    alone = torch.stack([orthogonalised(each[None])[0] for each in g])
    assert torch.allclose(orthogonalised(g), alone, rtol=1e-12, atol=1e-12)


def test_orthogonalised_does_not_care_about_the_size_of_a_gradient():
    g = torch.randn(1, 6, 9, dtype=torch.float64, generator=torch.Generator().manual_seed(2))
    assert torch.allclose(orthogonalised(g), orthogonalised(1e4 * g), atol=1e-5)


def test_muon_step_is_nesterov_momentum_made_orthogonal():
    make = torch.Generator().manual_seed(0)
    p = torch.randn(4, 6, dtype=torch.float64, generator=make).requires_grad_()
    start = p.detach().clone()
    optimizer = Muon([p], lr=0.1, momentum=0.9, weight_decay=0.5)
    buffer, wanted = torch.zeros(4, 6, dtype=torch.float64), start.clone()
    for _ in range(3):
        p.grad = torch.randn(4, 6, dtype=torch.float64, generator=make)
        buffer = 0.9 * buffer + 0.1 * p.grad
        update = orthogonalised((0.1 * p.grad + 0.9 * buffer)[None])[0]
        wanted = wanted * (1 - 0.1 * 0.5) - 0.1 * 0.2 * 6**0.5 * update
        optimizer.step()
        assert torch.allclose(p.detach(), wanted, atol=1e-12)


def test_muon_state_survives_a_round_trip():
    make = torch.Generator().manual_seed(0)
    grads = torch.randn(4, 3, 5, generator=make)
    ends = []
    for stop in (0, 2):
        p = torch.zeros(3, 5, requires_grad=True)
        optimizer = Muon([p])
        for i, grad in enumerate(grads):
            if stop and i == stop:
                state, q = optimizer.state_dict(), p.detach().clone()
                p = q.requires_grad_()
                optimizer = Muon([p])
                optimizer.load_state_dict(state)
            p.grad = grad.clone()
            optimizer.step()
        ends.append(p.detach())
    assert torch.equal(*ends)


def test_muon_refuses_what_is_no_matrix():
    with pytest.raises(ValueError, match=r"for matrices, got a parameter of shape \(3,\)"):
        Muon([torch.zeros(3, requires_grad=True)])


@pytest.mark.parametrize("seed", range(24))
def test_optimizers_serve_every_parameter_of_any_spec_once_by_its_role(seed):
    spec = draw(seed)
    model = af.build(spec)
    optimizers = Optimizers(model, Rates())
    served = [id(p) for p in optimizers.parameters()]
    assert sorted(served) == sorted(id(p) for p in model.parameters())
    by_muon = {id(p) for o in optimizers.all if isinstance(o, Muon) for g in o.param_groups for p in g["params"]}
    roles = weights(spec)
    for name, parameter in model.named_parameters():
        assert (id(parameter) in by_muon) == (roles[name].role in INSIDE), name


def test_optimizers_scale_every_rate_by_the_factor_and_drop_gradients():
    model = af.build(af.spec(BASE))
    optimizers = Optimizers(model, Rates(matrices=0.5, tables=0.25, vectors=0.125))
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizers.step(0.5)
    rates = {group["lr"] for optimizer in optimizers.all for group in optimizer.param_groups}
    assert rates == {0.25, 0.125, 0.0625}
    assert all(p.grad is None for p in model.parameters())


def test_trapezoid_rises_stays_and_falls_to_zero():
    schedule = Trapezoid(warmup=0.1, decay=0.4)
    assert 0 < schedule.factor(0.0) < 0.05
    assert schedule.factor(0.05) == pytest.approx(0.51)
    assert schedule.factor(0.1) == schedule.factor(0.5) == 1.0
    assert schedule.factor(0.8) == pytest.approx(0.5)
    assert schedule.factor(1.0) == 0.0
    assert Trapezoid(warmup=0.0, decay=0.0).factor(0.5) == 1.0
