"""Activations, gated forms, widths, and the feed-forward network around them."""

import types

import pytest
import torch
from torch.nn import functional as F

from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.gated import Bilinear, Gated, Geglu, Glu, Reglu, Swiglu
from anyformer.parts.ffns.plain import Gelu, GeluQuick, GeluTanh, Plain, Relu, Relu2, Silu
from anyformer.specs.axes import FeedForward
from tests.parts.samples import dims, random, randomised
from tests.tolerances import assert_close

PI = torch.pi
PLAIN = {
    "relu": (Relu(), lambda x: x * (x > 0)),
    "relu2": (Relu2(), lambda x: (x * (x > 0)) ** 2),
    "gelu": (Gelu(), lambda x: x * (1 + torch.erf(x / 2**0.5)) / 2),
    "gelu_tanh": (GeluTanh(), lambda x: x / 2 * (1 + torch.tanh((2 / PI) ** 0.5 * (x + 0.044715 * x**3)))),
    "gelu_quick": (GeluQuick(), lambda x: x / (1 + torch.exp(-1.702 * x))),
    "silu": (Silu(), lambda x: x / (1 + torch.exp(-x))),
}
GATED = {
    "glu": (Glu(), lambda g: 1 / (1 + torch.exp(-g))),
    "bilinear": (Bilinear(), lambda g: g),
    "reglu": (Reglu(), F.relu),
    "geglu": (Geglu(), F.gelu),
    "geglu_tanh": (Geglu(form="tanh"), lambda g: F.gelu(g, approximate="tanh")),
    "geglu_quick": (Geglu(form="quick"), lambda g: g * torch.sigmoid(1.702 * g)),
    "swiglu": (Swiglu(), F.silu),
}
X = 3 * random(4, 50, seed=1)
UP = 3 * random(4, 50, seed=2)


def test_tables_of_this_file_hold_every_kind():
    assert {leaf.kind for leaf, _ in (*PLAIN.values(), *GATED.values())} == set(FeedForward.kinds())


@pytest.mark.parametrize("case", PLAIN)
def test_plain_activation_equals_its_formula(case):
    leaf, formula = PLAIN[case]
    assert_close("formula", leaf.combine(X), formula(X))


@pytest.mark.parametrize("case", GATED)
def test_gated_form_activates_the_gate_and_multiplies_the_other_branch(case):
    leaf, activation = GATED[case]
    assert leaf.inputs == ("gate", "up")
    assert_close("formula", leaf.combine(X, UP), activation(X) * UP)


@pytest.mark.parametrize("case", GATED)
def test_gated_form_clamp_cuts_the_gate_above_and_the_other_branch_on_both_sides(case):
    leaf, activation = GATED[case]
    cut = type(leaf)(**({"form": leaf.form} if case.startswith("geglu") else {}), clamp=2.0, offset=0.5)
    assert X.min() < -2 < 2 < X.max()
    assert UP.min() < -2 < 2 < UP.max()
    expected = activation(X.clamp(max=2.0)) * (UP.clamp(-2.0, 2.0) + 0.5)
    assert_close("formula", cut.combine(X, UP), expected)


def test_gated_form_with_clamp_and_offset_equals_the_experts_of_gpt_oss():
    from transformers.models.gpt_oss.modeling_gpt_oss import GptOssExperts

    gate, up = 6 * random(4, 50, seed=3), 6 * random(4, 50, seed=4)
    assert gate.max() > 7
    assert up.abs().max() > 7
    theirs = GptOssExperts._apply_gate(
        types.SimpleNamespace(alpha=1.702, limit=7.0), torch.stack((gate, up), -1).flatten(-2)
    )
    ours = Geglu(form="quick", clamp=7.0, offset=1.0).combine(gate, up)
    assert_close("oracle", ours, theirs)
    gate, up = gate.clamp(max=7), up.clamp(-7, 7)
    assert_close("formula", ours, gate * torch.sigmoid(1.702 * gate) * (up + 1))


@pytest.mark.parametrize("kind", FeedForward.kinds())
def test_hidden_width_unset_follows_the_model_and_set_stays(kind):
    leaf = FeedForward.named(kind)
    assert leaf(width=100).hidden(768) == 100
    if issubclass(leaf, Plain):
        assert [leaf().hidden(width) for width in (1, 64, 768)] == [4, 256, 3072]
        return
    assert issubclass(leaf, Gated)
    # 8/3 of 24 is 64 exactly; of 25 it is above; Llama's 4096 gives 11008 in steps of 256.
    assert [leaf().hidden(width) for width in (24, 25, 768)] == [64, 128, 2048]
    assert leaf(multiple_of=256).hidden(4096) == 11008
    assert [leaf(multiple_of=1).hidden(width) for width in (3, 4)] == [8, 11]


@pytest.mark.parametrize(
    ("leaf", "field"),
    [
        (Relu(width=0), "width"),
        (Swiglu(width=0), "width"),
        (Swiglu(multiple_of=0), "multiple_of"),
        (Glu(clamp=0.0), "clamp"),
    ],
)
def test_feed_forward_setting_that_cannot_be_is_named(leaf, field):
    assert [where for where, _ in leaf.problems()] == [field]


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", ["gelu", "swiglu"])
def test_network_projects_activates_and_projects_back(case, bias):
    leaf = type((PLAIN | GATED)[case][0])(bias=bias)
    net, x = randomised(FeedForwardNet(leaf, dims())), random(2, 3, 12, seed=9)
    named = dict(net.named_parameters())
    assert sorted(named) == sorted(f"{n}.{p}" for n in (*leaf.inputs, "down") for p in ("weight", "bias")[: 1 + bias])

    def through(name, y):
        y = y @ named[f"{name}.weight"].T
        return y + named[f"{name}.bias"] if bias else y

    inner = F.gelu(through("up", x)) if case == "gelu" else F.silu(through("gate", x)) * through("up", x)
    assert_close("formula", net(x), through("down", inner))


def test_network_dropout_acts_on_the_inner_activation_in_training_only():
    sizes = dims(ffn_width=4000)
    net, x = randomised(FeedForwardNet(Relu(width=4000, dropout=0.25), sizes)), random(1, 1, 12, seed=9)
    whole = net.eval()(x)
    torch.manual_seed(0)
    found = net.train()(x)
    torch.manual_seed(0)
    inner = F.dropout((x @ net.up.weight.T).relu(), 0.25)
    assert_close("formula", found, inner @ net.down.weight.T)
    assert not torch.equal(found, whole)
