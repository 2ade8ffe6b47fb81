"""Activations, gated forms, widths, and the feed-forward network around them."""

import types

import pytest
import torch
from torch.nn import functional as F

from anyformer.evals.memory import used
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.ffns.gated import Bilinear, Gated, Geglu, Glu, Reglu, Swiglu
from anyformer.parts.ffns.plain import Gelu, GeluQuick, GeluTanh, Plain, Relu, Relu2, Silu, Tanh
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
    "tanh": (Tanh(), lambda x: 1 - 2 / (1 + torch.exp(2 * x))),
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


def test_tables_of_this_file_hold_every_dense_kind():
    dense = {kind for kind in FeedForward.kinds() if not FeedForward.named(kind).routes}
    assert {leaf.kind for leaf, _ in (*PLAIN.values(), *GATED.values())} == dense


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
    if leaf.routes:
        assert leaf().hidden(768) == leaf().expert.hidden(768) == 2048
        return
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
        (Relu(chunk=0), "chunk"),
        (Swiglu(chunk=-1), "chunk"),
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


@pytest.mark.parametrize("chunk", [1, 4, 7, 100])
@pytest.mark.parametrize("kind", ["gelu", "swiglu"])
def test_network_in_chunks_equals_all_at_once_in_value_and_gradient(kind, chunk):
    leaf = type((PLAIN | GATED)[kind][0])
    whole = randomised(FeedForwardNet(leaf(bias=True), dims()))
    parts = randomised(FeedForwardNet(leaf(bias=True, chunk=chunk), dims()))
    x, up = random(2, 7, 12, seed=9).requires_grad_(), random(2, 7, 12, seed=10)
    wanted = torch.autograd.grad(whole(x), (x, *whole.parameters()), up)
    found = torch.autograd.grad(parts(x), (x, *parts.parameters()), up)
    assert_close("formula", parts(x), whole(x))
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close("formula", ours, theirs)
    with torch.no_grad():
        assert_close("formula", parts(x), whole(x))


def test_network_in_chunks_sees_no_more_tokens_than_a_chunk_at_once():
    net = randomised(FeedForwardNet(Relu(chunk=4), dims()))
    seen: list[int] = []
    net.up.register_forward_hook(lambda module, given, result: seen.append(result.shape[0]))
    net(random(2, 5, 12))
    assert seen == [4, 4, 2]


def test_network_in_chunks_replays_its_dropout_in_the_backward_pass():
    net, x = randomised(FeedForwardNet(Relu(dropout=0.4, chunk=4), dims())).train(), random(2, 5, 12, seed=9)
    masks: list[torch.Tensor] = []
    net.down.register_forward_pre_hook(lambda module, given: masks.append(given[0] != 0))
    loss = net(x).sum()
    torch.rand(3)
    net.eval()
    state = torch.get_rng_state()
    loss.backward()
    assert torch.equal(torch.get_rng_state(), state)
    first, again = masks[:3], masks[3:]
    assert len(again) == 3
    # Each chunk is computed once more, from the last to the first or the other way round.
    assert all(any(a.shape == b.shape and torch.equal(a, b) for b in again) for a in first)
    shown = (x.flatten(0, 1) @ net.up.weight.T > 0) & ~torch.cat(first)
    assert 0.2 < shown.sum() / (x.flatten(0, 1) @ net.up.weight.T > 0).sum() < 0.6


def test_network_in_chunks_with_dropout_has_the_gradient_of_its_masks():
    net, x = randomised(FeedForwardNet(Gelu(dropout=0.4, chunk=4), dims())).train(), random(2, 5, 12, seed=9)
    up = random(2, 5, 12, seed=10)
    torch.manual_seed(0)
    found = torch.autograd.grad(net(x), list(net.parameters()), up)
    torch.manual_seed(0)
    pieces = [net.answer(piece, True) for piece in x.flatten(0, 1).split(4)]
    wanted = torch.autograd.grad(torch.cat(pieces).view_as(x), list(net.parameters()), up)
    for ours, theirs in zip(found, wanted, strict=True):
        assert_close("formula", ours, theirs)


@pytest.mark.parametrize("dropout", [0.0, 0.4])
def test_network_in_chunks_compiles_as_one_graph_for_training(dropout):
    net = randomised(FeedForwardNet(Swiglu(dropout=dropout, chunk=4), dims())).train()
    x, up = random(2, 5, 12, seed=9).requires_grad_(), random(2, 5, 12, seed=10)
    wrt = (x, *net.parameters())
    torch.compiler.reset()
    fast = torch.compile(net, fullgraph=True, backend="eager")
    torch.manual_seed(0)
    found = torch.autograd.grad(fast(x), wrt, up)
    torch.manual_seed(0)
    for ours, theirs in zip(found, torch.autograd.grad(net(x), wrt, up), strict=True):
        assert_close("formula", ours, theirs)


def test_network_in_chunks_holds_the_inner_activations_of_one_chunk_only():
    sizes, x = dims(width=8, ffn_width=512), random(1, 1024, 8).float().requires_grad_()

    def peak(chunk: int | None) -> int:
        net = randomised(FeedForwardNet(Gelu(chunk=chunk), sizes)).float().train()
        return used(lambda: net(x).sum().backward()).peak

    inner = 1024 * 512 * 4
    assert peak(None) > 3 * inner
    assert peak(64) < inner
