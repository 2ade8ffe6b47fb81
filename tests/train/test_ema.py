"""The mean of the weights: its formula, its use, and its state."""

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.train.optim import Ema, take
from tests.contract.draw import BASE
from tests.tolerances import assert_close

SPEC = af.spec(BASE)


def shake(model, seed):
    make = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=make))


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def test_ema_is_the_mean_of_all_weights_by_their_age():
    model = af.build(SPEC, dtype=torch.float64)
    ema, factor, seen = Ema(model, 0.8), 0.8, []
    for t in range(1, 6):
        shake(model, t)
        ema.update(model)
        seen.append(weights(model))
        counts = [(1 - factor) * factor ** (t - i) / (1 - factor**t) for i in range(1, t + 1)]
        assert sum(counts) == pytest.approx(1.0)
        for k, mean in enumerate(ema.means.values()):
            assert_close("formula", mean, sum(c * w[k] for c, w in zip(counts, seen, strict=True)))


def test_ema_is_used_for_a_while_and_given_back_even_after_an_error():
    model = af.build(SPEC)
    ema = Ema(model, 0.5)
    for t in range(3):
        shake(model, t)
        ema.update(model)
    before = weights(model)
    means = [mean.clone() for mean in ema.means.values()]
    inside = []

    def fail():
        with ema.used(model) as used:
            inside.extend(weights(used))
            raise KeyError("fails")

    with pytest.raises(KeyError, match="fails"):
        fail()
    assert all(torch.equal(a, b) for a, b in zip(inside, means, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(ema.means.values(), means, strict=True))


def test_ema_before_any_update_is_the_weights_themselves():
    model = af.build(SPEC)
    before = weights(model)
    with Ema(model, 0.9).used(model):
        assert all(torch.equal(a, b) for a, b in zip(weights(model), before, strict=True))


def test_ema_of_bf16_weights_is_kept_in_fp32():
    model = af.build(SPEC, dtype=torch.bfloat16)
    ema = Ema(model, 0.99)
    for t in range(3):
        shake(model, t)
        ema.update(model)
    assert {mean.dtype for mean in ema.means.values()} == {torch.float32}
    with ema.used(model):
        for p, mean in zip(model.parameters(), ema.means.values(), strict=True):
            assert torch.equal(p, mean.bfloat16())


def test_ema_goes_on_from_its_means_to_the_bit():
    model = af.build(SPEC)
    ema = Ema(model, 0.9)
    for t in range(2):
        shake(model, t)
        ema.update(model)
    other = Ema(model, 0.9)
    take(ema.means, other.means)
    other.steps.copy_(ema.steps)
    for each in (ema, other):
        each.update(model)
    assert all(torch.equal(a, b) for a, b in zip(ema.means.values(), other.means.values(), strict=True))


@pytest.mark.parametrize("factor", [0.0, 1.0, -0.5])
def test_ema_refuses_a_factor_that_is_no_share(factor):
    with pytest.raises(InputError, match="not between 0 and 1"):
        Ema(af.build(SPEC), factor)
