"""Norms, feed-forwards, linear maps, tables and positions alone: torch's own, the parts of a model, every kind."""

import copy
import pickle

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.model.token_layout import place
from anyformer.specs import FeedForward, Norm, Position
from anyformer.specs.codec import write
from tests.contract.contracts import model_of
from tests.contract.draw import spec_of_kind
from tests.nn.alone import ran
from tests.parts.samples import random, randomised
from tests.tolerances import assert_close

ADDED = [kind for kind in Position.kinds() if Position.named(kind).overrides("embed")]
PARTS = {
    "attention": lambda **how: af.nn.Attention(8, 2, position="rope", **how),
    "block": lambda **how: af.nn.Block(8, 2, position="t5", **how),
    "ffn": lambda **how: af.nn.FeedForward(8, **how),
    "moe": lambda **how: af.nn.FeedForward(8, "moe", **how),
    "rmsnorm": lambda **how: af.nn.RMSNorm(8, **how),
    "layernorm": lambda **how: af.nn.LayerNorm(8, **how),
    "linear": lambda **how: af.nn.Linear(8, 4, bias=True, **how),
    "positions": lambda **how: af.nn.PositionEmbedding(8, context=16, **how),
}
every_part = pytest.mark.parametrize("make", PARTS.values(), ids=PARTS)


@every_part
def test_part_is_copied_pickled_and_read_back(make):
    part, x = randomised(make()), random(2, 5, 8)
    want, other = part(x), make().double()
    other.load_state_dict(part.state_dict())
    for twin in (copy.deepcopy(part), pickle.loads(pickle.dumps(part)), other):
        assert torch.equal(twin(x), want)


@every_part
def test_part_has_the_dtype_and_the_device_that_were_asked_for(make):
    assert {p.dtype for p in make(dtype=torch.bfloat16).parameters()} == {torch.bfloat16}
    assert all(p.is_meta for p in make(device="meta").parameters())
    with torch.device("meta"):
        assert all(p.is_meta for p in make().parameters())
    assert {p.device.type for p in make().parameters()} == {"cpu"}


@every_part
def test_part_draws_from_torchs_generator_and_differs_from_its_twin(make):
    torch.manual_seed(0)
    first, second = make(), make()
    torch.manual_seed(0)
    again = make()
    drawn = [p for p in first.parameters() if p.detach().std() > 0]
    assert len(drawn) > 0 or isinstance(first, af.nn.Norm)
    for a, b, c in zip(first.parameters(), second.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, c)
        assert torch.equal(a, b) == (float(a.detach().std()) == 0.0)


@every_part
def test_part_gradients_are_finite(make):
    part = make().double()
    part(random(2, 5, 8)).square().sum().backward()
    assert all(p.grad.isfinite().all() for p in part.parameters() if p.grad is not None)
    assert any(p.grad is not None for p in part.parameters())


@every_part
def test_part_of_double_precision_computes_in_it(make):
    assert make(dtype=torch.float64)(random(2, 5, 8)).dtype == torch.float64


@pytest.mark.parametrize("gain", ["weight", "one_plus", "none"])
def test_rmsnorm_equals_torchs(gain):
    norm, x = randomised(af.nn.RMSNorm(12, eps=1e-3, gain=gain)), random(3, 4, 12)
    weight = {"weight": lambda: norm.weight, "one_plus": lambda: 1 + norm.weight, "none": lambda: None}[gain]()
    assert_close("formula", norm(x), F.rms_norm(x, (12,), weight, 1e-3))


@pytest.mark.parametrize("gain", ["weight", "one_plus"])
@pytest.mark.parametrize("bias", [True, False])
def test_layernorm_equals_torchs(gain, bias):
    norm, x = randomised(af.nn.LayerNorm(12, eps=1e-3, gain=gain, bias=bias)), random(3, 4, 12)
    weight = norm.weight if gain == "weight" else 1 + norm.weight
    assert_close("formula", norm(x), F.layer_norm(x, (12,), weight, norm.bias if bias else None, 1e-3))


def test_norms_start_as_torchs():
    x = random(3, 4, 12)
    assert_close("formula", af.nn.RMSNorm(12, dtype=torch.float64)(x), nn.RMSNorm(12, eps=1e-6).double()(x))
    assert_close(
        "formula", af.nn.RMSNorm(12, gain="one_plus", dtype=torch.float64)(x), nn.RMSNorm(12, eps=1e-6).double()(x)
    )
    assert_close("formula", af.nn.LayerNorm(12, dtype=torch.float64)(x), nn.LayerNorm(12).double()(x))


@pytest.mark.parametrize("kind", Norm.kinds())
def test_norm_of_a_kind_equals_the_models(kind):
    spec = spec_of_kind("norm", kind)
    model, leaf = model_of(spec), write(spec.norm.leaf)
    theirs = model.get_submodule(f"{spec.stacks[0].name}.blocks.0.ffn.inner")
    ours = af.nn.Norm(spec.width, **leaf, dtype=torch.float64)
    ours.load_state_dict(theirs.state_dict())
    x = random(2, 5, spec.width)
    assert_close("same", ours(x), theirs(x))


@pytest.mark.parametrize("kind", FeedForward.kinds())
def test_ffn_of_a_kind_equals_the_models(kind):
    spec = spec_of_kind("ffn", kind)
    options = write(spec.ffn)
    ours = af.nn.FeedForward(spec.width, ffn_width=options.pop("width"), dtype=torch.float64, **options).eval()
    (each, *_), _ = ran(spec)
    theirs = each.block.ffn.body
    ours.body.load_state_dict(theirs.state_dict())
    x = random(2, 5, spec.width)
    assert_close("same", ours(x), theirs(x))
    assert_close("kernel", ours(x[0]), theirs(x)[0])


@pytest.mark.parametrize(
    ("kind", "act"), [("relu", F.relu), ("gelu", F.gelu), ("silu", F.silu), ("relu2", lambda z: F.relu(z).square())]
)
def test_ffn_ungated_equals_torchs_activation_between_its_maps(kind, act):
    ffn, x = randomised(af.nn.FeedForward(12, kind, bias=True)), random(3, 4, 12)
    up, down = ffn.body.up, ffn.body.down
    want = F.linear(act(F.linear(x, up.weight, up.bias)), down.weight, down.bias)
    assert up.out_features == 48
    assert_close("formula", ffn(x), want)


@pytest.mark.parametrize(
    ("kind", "act"), [("swiglu", F.silu), ("geglu", F.gelu), ("glu", torch.sigmoid), ("reglu", F.relu)]
)
def test_ffn_gated_equals_torchs_activation_of_its_gate(kind, act):
    ffn, x = randomised(af.nn.FeedForward(12, kind, ffn_width=20)), random(3, 4, 12)
    gate, up, down = ffn.body.gate, ffn.body.up, ffn.body.down
    assert_close("formula", ffn(x), (act(x @ gate.weight.T) * (x @ up.weight.T)) @ down.weight.T)


def test_ffn_of_experts_is_their_weighed_sum():
    ffn, x = randomised(af.nn.FeedForward(12, "moe", experts=4, top_k=2, ffn_width=8)), random(5, 12)
    body = ffn.body
    score = (x @ body.router.weight.T).softmax(-1)
    share, chosen = score.topk(2)
    gate, up, down = (body.experts.get_submodule(name).weight for name in ("gate", "up", "down"))
    every = torch.stack([(F.silu(x @ g.T) * (x @ u.T)) @ d.T for g, u, d in zip(gate, up, down, strict=True)], 1)
    picked = every.gather(1, chosen[..., None].expand(-1, -1, 12))
    assert_close("formula", ffn(x), (picked * (share / share.sum(-1, keepdim=True))[..., None]).sum(1))


def test_linear_and_embedding_are_torchs_with_our_start():
    torch.manual_seed(0)
    linear, table = af.nn.Linear(300, 500, bias=True), af.nn.Embedding(400, 300)
    assert isinstance(linear, nn.Linear)
    assert isinstance(table, nn.Embedding)
    assert float(linear.weight.detach().std()) == pytest.approx(0.9866 * (2 / 800) ** 0.5, rel=0.01)
    assert float(table.weight.detach().std()) == pytest.approx(0.9866, rel=0.01)
    ids = torch.tensor([[0, 399, 7]])
    assert torch.equal(table(ids), F.embedding(ids, table.weight))
    x = torch.randn(2, 300)
    assert torch.equal(linear(x), F.linear(x, linear.weight, linear.bias))
    with pytest.raises(InputError, match=r"ids: 400 in row 0, column 0 is not from 0 to below num_embeddings = 400"):
        table(torch.tensor([[400]]))


@pytest.mark.parametrize("kind", ADDED)
def test_positions_of_a_kind_equal_what_the_model_adds(kind):
    spec = spec_of_kind("position", kind)
    model, options = model_of(spec), write(spec.position)
    stack = model.get_submodule(spec.stacks[0].name)
    ours = af.nn.PositionEmbedding(spec.width, **options, context=spec.context, dtype=torch.float64)
    ours.body.load_state_dict(stack.positions[0].state_dict())
    x = random(2, 9, spec.width)
    assert_close("same", ours(x), stack.add_positions(x, place(2, 9, x.device)))
    where = torch.tensor([[3, 1, 4, 1, 5, 9, 2, 6, 5]])
    assert_close("same", ours(x, where), stack.add_positions(x, place(2, 9, x.device, positions=where)))
    assert_close("same", ours(x, where[0]), ours(x, where))


def test_positions_of_a_table_are_its_rows():
    added, x = randomised(af.nn.PositionEmbedding(8, context=16)), random(2, 5, 8)
    assert_close("formula", added(x), x + added.body.table[:5])


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (lambda: af.nn.Linear(0, 3), InputError, "in_features: 0 is not a whole number of at least 1"),
        (lambda: af.nn.Embedding(3, 2.0), InputError, "embedding_dim: 2.0 is not a whole number"),
        (lambda: af.nn.RMSNorm(8, eps=-1.0), SpecError, "norm.eps: -1.0 is not above 0"),
        (lambda: af.nn.RMSNorm(8, gain="wait"), SpecError, "norm.gain: 'wait' is unknown"),
        (lambda: af.nn.Norm(8, "rmsnrm"), SpecError, "did you mean 'rmsnorm'"),
        (lambda: af.nn.Norm(8, "rmsnorm", bias=True), SpecError, "norm.bias: is unknown"),
        (lambda: af.nn.LayerNorm(8, gain="none"), SpecError, "norm.bias"),
        (lambda: af.nn.FeedForward(8, "swiglu", experts=3), SpecError, "ffn.experts: is unknown"),
        (lambda: af.nn.FeedForward(8, ffn_width=0), SpecError, "ffn.width: 0 is not at least 1"),
        (lambda: af.nn.FeedForward(8, dropout=1.5), SpecError, "ffn.dropout"),
        (lambda: af.nn.FeedForward(8)(random(2, 5, 9)), InputError, r"got torch.float64 \(2, 5, 9\)"),
        (lambda: af.nn.PositionEmbedding(8, "rope"), InputError, "af.nn.Attention"),
        (lambda: af.nn.PositionEmbedding(8, context=4)(torch.randn(1, 5, 8)), InputError, "5 tokens are more than the 4"),
        (lambda: af.nn.PositionEmbedding(8)(torch.randn(1, 5, 8), torch.zeros(5)), InputError, "whole numbers"),
    ],
)  # fmt: skip
def test_part_misuse_says_what_to_do(make, error, text):
    with pytest.raises(error, match=text):
        make()


def test_public_names_of_nn_are_listed_and_lazy():
    assert {"nn", "optim", "attention"} <= {*dir(af), *af.__all__}
    assert {*af.nn.__all__} == {name for name in af.nn.__all__ if getattr(af.nn, name) is not None}
    assert {*af.optim.__all__} <= {*dir(af.optim)}
    with pytest.raises(AttributeError, match="no attribute 'Adam'"):
        _ = af.optim.Adam
