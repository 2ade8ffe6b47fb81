"""LayerNorm and RMSNorm in every variant, against their formulas written out."""

import itertools

import pytest
import torch

from anyformer.parts.norm import Norm, QKNorm
from anyformer.parts.norms.layernorm import LayerNorm
from anyformer.parts.norms.rmsnorm import RMSNorm
from anyformer.specs.layer import HeadNorm
from tests.parts.samples import random, randomised
from tests.tolerances import TABLE, assert_close

GAINS = ("weight", "one_plus", "none")
LAYER_NORMS = [
    LayerNorm(eps=eps, gain=gain, bias=bias, gain_at=at)
    for eps, gain, bias, at in itertools.product((1e-5, 0.3), GAINS, (True, False), ("before_cast", "after_cast"))
    if not (gain == "none" and bias)
]
RMS_NORMS = [
    RMSNorm(eps=eps, gain=gain, gain_at=at)
    for eps, gain, at in itertools.product((1e-6, 0.3), GAINS, ("before_cast", "after_cast"))
]


def part(norm, name):
    """A parameter of a norm, or None if this variant has none."""
    return dict(norm.named_parameters()).get(name)


def normed(leaf, x):
    """x / sqrt(mean of squares + eps), centred first by LayerNorm: in the dtype of x."""
    if leaf.kind == "layernorm":
        x = x - x.mean(-1, keepdim=True)
    return x / (x.square().mean(-1, keepdim=True) + leaf.eps).sqrt()


def gain_of(leaf, weight):
    return {"weight": lambda: weight, "one_plus": lambda: 1 + weight, "none": lambda: torch.ones(())}[leaf.gain]()


def name(leaf):
    return "-".join(str(getattr(leaf, f)) for f in ("kind", "eps", "gain", "bias", "gain_at") if hasattr(leaf, f))


@pytest.mark.parametrize("leaf", [*LAYER_NORMS, *RMS_NORMS], ids=name)
def test_norm_in_double_equals_its_formula(leaf):
    norm, x = randomised(Norm(leaf, (10,))), 2 * random(3, 4, 10, seed=9) + 0.7
    expected = normed(leaf, x) * gain_of(leaf, part(norm, "weight"))
    assert_close("formula", norm(x), expected if part(norm, "bias") is None else expected + norm.bias)


@pytest.mark.parametrize("leaf", [*LAYER_NORMS, *RMS_NORMS], ids=name)
def test_norm_has_exactly_the_weights_of_its_variant(leaf):
    has_bias = getattr(leaf, "bias", False)
    wanted = {} if leaf.gain == "none" else {"weight": 0.0 if leaf.gain == "one_plus" else 1.0}
    wanted |= {"bias": 0.0} if has_bias else {}
    assert {n: w.fill for n, w in leaf.weights((10,)).items()} == wanted
    assert [n for n, _ in Norm(leaf, (10,)).named_parameters()] == list(wanted)


@pytest.mark.parametrize("leaf", [LayerNorm(), RMSNorm(), RMSNorm(gain="one_plus")], ids=name)
def test_norm_gradient_equals_that_of_its_formula(leaf):
    norm, x = randomised(Norm(leaf, (10,))), random(3, 10, seed=9)
    ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
    norm(ours).backward(random(3, 10, seed=8))
    expected = normed(leaf, theirs) * gain_of(leaf, norm.weight.detach())
    expected.backward(random(3, 10, seed=8))
    assert_close("formula", ours.grad, theirs.grad)


def firm(exact, size):
    """Where a number is so far from the middle of two bf16 numbers that fp32 rounds it to the same one as fp64."""
    slack = TABLE["single"].limit * size.abs()
    return (exact - slack).bfloat16() == (exact + slack).bfloat16()


def assert_rounds_to(found, exact, sure):
    assert found.dtype == torch.bfloat16
    assert sure.double().mean() > 0.98
    assert torch.equal(found[sure], exact.bfloat16()[sure])


@pytest.mark.parametrize("gain", ["weight", "one_plus"])
@pytest.mark.parametrize("kind", [LayerNorm, RMSNorm])
def test_norm_gain_in_bf16_is_applied_on_the_side_of_the_cast_that_is_asked_for(kind, gain):
    x, weight = random(64, 32, seed=1).bfloat16(), random(32, seed=2).bfloat16()
    bias = random(32, seed=3).bfloat16() if kind is LayerNorm else None
    before, after = kind(gain=gain, gain_at="before_cast"), kind(gain=gain, gain_at="after_cast")
    inner, added = normed(before, x.double()), 0.0 if bias is None else bias.double()
    factor = weight.double() + (gain == "one_plus")
    found = {
        leaf.gain_at: leaf.apply(x, {name: t for name, t in (("weight", weight), ("bias", bias)) if t is not None})
        for leaf in (before, after)
    }

    exact = inner * factor + added
    assert_rounds_to(found["before_cast"], exact, firm(exact, (inner * factor).abs() + abs(added)))
    # After the cast every step is one operation on bf16 numbers, rounded once.
    scaled = (inner.bfloat16().double() * factor.bfloat16().double()).bfloat16().double()
    assert_rounds_to(found["after_cast"], scaled + added, firm(inner, inner))
    assert (found["before_cast"] != found["after_cast"]).double().mean() > 0.1


@pytest.mark.parametrize("leaf", [LayerNorm(eps=0.3, gain="none", bias=False), RMSNorm(eps=0.3, gain="none")], ids=name)
def test_norm_in_bf16_computes_in_fp32(leaf):
    x = random(8, 256, seed=1).bfloat16()
    exact, found = normed(leaf, x.double()), leaf.apply(x, {})
    assert_rounds_to(found, exact, firm(exact, exact))
    assert (found != normed(leaf, x)).any(), "bf16 all the way would round otherwise"


def test_norm_of_zeros_is_zero_or_the_bias():
    zeros = torch.zeros(2, 10, dtype=torch.float64)
    assert torch.equal(randomised(Norm(RMSNorm(), (10,)))(zeros), zeros)
    norm = randomised(Norm(LayerNorm(), (10,)))
    assert_close("same", norm(zeros), norm.bias.expand(2, 10))


@pytest.mark.parametrize(
    "leaf",
    [LayerNorm(), LayerNorm(eps=0.3), RMSNorm(), RMSNorm(eps=0.3, gain="one_plus"), RMSNorm(gain="none")],
    ids=name,
)
@pytest.mark.parametrize("scope", ["head", "heads", "whole"])
def test_heads_norm_scope_sets_the_vector_and_the_gain(scope, leaf):
    norm = randomised(QKNorm(HeadNorm(leaf=leaf, scope=scope), 3, 6))
    x = random(2, 5, 3, 6, seed=9)
    shape = {"head": (6,), "heads": (3, 6), "whole": (18,)}[scope]
    if leaf.gain != "none":
        assert tuple(norm.weight.shape) == shape
    if scope == "whole":
        expected = normed(leaf, x.reshape(2, 5, 18)) * gain_of(leaf, part(norm, "weight"))
    else:
        expected = normed(leaf, x) * gain_of(leaf, part(norm, "weight"))
    expected = expected if part(norm, "bias") is None else expected + norm.bias
    assert_close("formula", norm(x), expected.reshape(x.shape))


@pytest.mark.parametrize("scope", ["head", "heads", "whole"])
def test_heads_norm_in_bf16_keeps_the_dtype_and_computes_in_fp32(scope):
    norm = randomised(QKNorm(HeadNorm(leaf=RMSNorm(gain_at="before_cast"), scope=scope), 3, 64)).bfloat16()
    x = random(2, 5, 3, 64, seed=9).bfloat16()
    flat = x.flatten(-2) if scope == "whole" else x
    exact = (normed(norm.leaf, flat.double()) * norm.weight.detach().double()).reshape(x.shape)
    assert_rounds_to(norm(x).detach(), exact, firm(exact, exact))


@pytest.mark.parametrize(
    ("leaf", "field", "message"),
    [
        (RMSNorm(eps=0.0), "eps", "0.0 is not above 0"),
        (LayerNorm(eps=-1.0), "eps", "-1.0 is not above 0"),
        (LayerNorm(gain="none"), "bias", "a norm without gain has no bias; set it to false"),
    ],
)
def test_norm_variant_that_cannot_be_is_named(leaf, field, message):
    assert list(leaf.problems()) == [(field, message)]
