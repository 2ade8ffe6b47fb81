"""How a fresh model starts: the spread of every kind of parameter, and what the numbers depend on."""

import pytest
import torch

import anyformer as af
from anyformer.parts.inits.normal import PlainNormal
from anyformer.parts.inits.t5 import T5Factors
from anyformer.specs.axes import Init
from anyformer.specs.parameters import weights

WIDTH, DEPTH, HEADS, HEAD_DIM, FFN, VOCAB = 96, 3, 3, 40, 200, 500
CUT_AT_3 = 0.98658
"""Standard deviation of N(0, 1) cut at +-3: sqrt(1 - 6 phi(3) / (2 Phi(3) - 1))."""

BASE = {
    "vocab": VOCAB, "width": WIDTH, "depth": DEPTH, "context": 150, "attention": {"heads": HEADS, "head_dim": HEAD_DIM},
    "ffn": {"kind": "swiglu", "width": FFN}, "position": "learned",
}  # fmt: skip
BLOCK = "decoder.blocks.1"
FAN_OUT_IN = {
    f"{BLOCK}.attention.body.q.weight": (HEADS * HEAD_DIM, WIDTH),
    f"{BLOCK}.attention.body.k.weight": (HEADS * HEAD_DIM, WIDTH),
    f"{BLOCK}.attention.body.v.weight": (HEADS * HEAD_DIM, WIDTH),
    f"{BLOCK}.attention.body.o.weight": (WIDTH, HEADS * HEAD_DIM),
    f"{BLOCK}.ffn.body.gate.weight": (FFN, WIDTH),
    f"{BLOCK}.ffn.body.up.weight": (FFN, WIDTH),
    f"{BLOCK}.ffn.body.down.weight": (WIDTH, FFN),
    "head.weight": (VOCAB, WIDTH),
}
TABLES = {"embed.tokens.weight": (VOCAB, WIDTH), "decoder.positions.0.table": (150, WIDTH)}


def parameters(changes=None, **build):
    return dict(af.build(af.spec(BASE, changes or {}), **build).named_parameters())


def assert_spread(tensor, std, cut=None):
    """Mean 0 and this standard deviation, to within 5 standard errors of the sample; nothing beyond the cut."""
    x, n = tensor.detach().double(), tensor.numel()
    wanted = std * CUT_AT_3 if cut == 3.0 else std
    assert abs(float(x.std()) / wanted - 1) < 5 / (2 * n) ** 0.5
    assert abs(float(x.mean())) < 5 * wanted / n**0.5
    # A sample of thousands reaches 2.5 sigma for certain, and beyond 3.3 if nothing cuts it.
    top = float(x.abs().max()) / std
    assert top > 2.5
    assert top <= 3.0 + 1e-6 if cut == 3.0 else top > 3.3


def test_glorot_matrices_have_variance_2_over_both_fans_cut_at_3():
    model = parameters()
    for name, (out, into) in FAN_OUT_IN.items():
        assert tuple(model[name].shape) == (out, into)
        assert_spread(model[name], (2 / (out + into)) ** 0.5, cut=3.0)


def test_glorot_tables_have_variance_1_untied_and_1_over_width_tied():
    for tied, std in ((False, 1.0), (True, WIDTH**-0.5)):
        model = parameters({"head.tied": tied})
        for name in TABLES:
            assert_spread(model[name], std, cut=3.0)
        assert ("head.weight" in model) == (not tied)


STARTS = {
    "glorot": {},
    "layernorm": {"norm.kind": "layernorm"},
    "one_plus": {"norm.kind": "rmsnorm", "norm.gain": "one_plus"},
}


@pytest.mark.parametrize("case", STARTS)
def test_gains_start_at_one_and_biases_and_sinks_at_zero(case):
    more = {
        "attention.bias": "qkvo", "ffn.bias": True, "head.bias": True, "attention.qk_norm": True,
        "attention.mixer": {"kind": "softmax", "sinks": True},
    }  # fmt: skip
    spec = af.spec(BASE, STARTS[case] | more)
    model, inventory = dict(af.build(spec).named_parameters()), weights(spec)
    counted = dict.fromkeys(("gain", "bias", "sink"), 0)
    for name, weight in inventory.items():
        if weight.role in counted:
            counted[weight.role] += 1
            of_heads = ".q_norm." in name or ".k_norm." in name
            one_plus = case == "one_plus" and not of_heads
            start = 1.0 if weight.role == "gain" and not one_plus else 0.0
            assert (model[name] == start).all(), name
    assert counted["sink"] == DEPTH
    assert counted["gain"] == 4 * DEPTH + 1
    assert counted["bias"] >= 7 * DEPTH + 1


def test_gpt2_start_divides_projections_into_the_residual_by_sqrt_2_depth():
    model = parameters({"init": {"kind": "gpt2", "std": 0.03}})
    for name in FAN_OUT_IN | TABLES:
        into_residual = name.endswith(("body.o.weight", "body.down.weight"))
        assert_spread(model[name], 0.03 / (2 * DEPTH) ** 0.5 if into_residual else 0.03)


def test_gpt2_start_of_an_encoder_decoder_counts_each_stack_by_its_own_depth():
    spec = af.spec(BASE, {"topology": "encoder-decoder", "encoder.depth": 1, "init": "gpt2"})
    model = dict(af.build(spec).named_parameters())
    for stack, depth in (("encoder", 1), ("decoder", DEPTH)):
        assert_spread(model[f"{stack}.blocks.0.ffn.body.down.weight"], 0.02 / (2 * depth) ** 0.5)
    assert_spread(model["decoder.blocks.0.cross.body.o.weight"], 0.02 / (2 * DEPTH) ** 0.5)


def test_small_start_is_small_inside_and_wang_into_the_residual():
    model = parameters({"init": "small"})
    for name in FAN_OUT_IN | TABLES:
        into_residual = name.endswith(("body.o.weight", "body.down.weight"))
        assert_spread(model[name], 2 / DEPTH / WIDTH**0.5 if into_residual else (2 / (5 * WIDTH)) ** 0.5)


@pytest.mark.parametrize("factor", [1.0, 0.1])
def test_t5_start_equals_the_factors_of_each_role(factor):
    changes = {
        "init": {"kind": "t5", "factor": factor},
        "position": {"kind": "t5", "buckets": 512, "max_distance": 600},
    }
    model = parameters(changes)
    stds = {
        "q.weight": (WIDTH * HEAD_DIM) ** -0.5, "k.weight": WIDTH**-0.5, "v.weight": WIDTH**-0.5,
        "o.weight": (HEADS * HEAD_DIM) ** -0.5, "gate.weight": WIDTH**-0.5, "up.weight": WIDTH**-0.5,
        "down.weight": FFN**-0.5, "head.weight": 1.0, "tokens.weight": 1.0, "positions.0.table": WIDTH**-0.5,
    }  # fmt: skip
    for name in ("embed.tokens.weight", "decoder.positions.0.table", *FAN_OUT_IN):
        std = next(s for end, s in stds.items() if name.endswith(end))
        x = model[name].detach().double()
        assert abs(float(x.std()) / (factor * std) - 1) < 5 / (2 * x.numel()) ** 0.5


def test_t5_start_equals_that_of_the_published_class():
    from transformers import T5Config, T5Model

    torch.manual_seed(0)
    config = T5Config(
        vocab_size=VOCAB, d_model=WIDTH, d_kv=HEAD_DIM, num_heads=HEADS, d_ff=FFN, num_layers=1, initializer_factor=0.5,
        feed_forward_proj="gated-gelu",
    )  # fmt: skip
    theirs = dict(T5Model(config).encoder.block[0].named_parameters())
    roles = {"q": "query", "k": "key", "v": "value", "o": "attention_out"}
    ours = {f"layer.0.SelfAttention.{short}.weight": role for short, role in roles.items()}
    ours |= {f"layer.1.DenseReluDense.{n}.weight": "ffn_out" if n == "wo" else "ffn_in" for n in ("wi_0", "wi_1", "wo")}
    for name, role in ours.items():
        weight = af.specs.axes.ParamSpec(shape=tuple(theirs[name].shape), role=role)
        rule = T5Factors(factor=0.5).rule(weight, width=WIDTH, depth=1, tied=True, heads=HEADS, head_dim=HEAD_DIM)
        assert_spread(theirs[name], rule.std)


def test_fan_in_start_keeps_variance_1():
    model = parameters({"init": "fan_in"})
    for name, (_, into) in FAN_OUT_IN.items():
        assert_spread(model[name], into**-0.5)
    for name in TABLES:
        assert_spread(model[name], 1.0)


@pytest.mark.parametrize("cut", [None, 3.0])
def test_normal_start_has_one_spread_for_all(cut):
    model = parameters({"init": {"kind": "normal", "std": 0.05} | ({"cut": cut} if cut else {})})
    for name in FAN_OUT_IN | TABLES:
        assert_spread(model[name], 0.05, cut=cut)


def test_every_init_kind_is_tested_here():
    assert set(Init.kinds()) == {"glorot", "gpt2", "small", "t5", "fan_in", "normal"}


@pytest.mark.parametrize(
    ("leaf", "field"),
    [(PlainNormal(std=0.0), "std"), (PlainNormal(cut=-1.0), "cut"), (T5Factors(factor=0.0), "factor")],
)
def test_init_setting_that_cannot_be_is_named(leaf, field):
    assert [where for where, _ in leaf.problems()] == [field]


def test_build_same_seed_gives_the_same_model_and_another_seed_another():
    first, again, other = parameters(seed=7), parameters(seed=7), parameters(seed=8)
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not any(torch.equal(first[name], other[name]) for name in FAN_OUT_IN | TABLES)


def test_build_draws_every_tensor_on_its_own():
    model = parameters()
    q, k = (model[f"{BLOCK}.attention.body.{n}.weight"] for n in "qk")
    assert not torch.equal(q, k)
    assert not torch.equal(q, model["decoder.blocks.2.attention.body.q.weight"])


@pytest.mark.parametrize(
    "changes",
    [
        {"position.kind": "rope"}, {"norm.kind": "layernorm"}, {"depth": 2}, {"ffn.kind": "geglu", "ffn.width": FFN},
        {"attention.bias": "qkv"}, {"block.wiring": "parallel"}, {"attention.pattern": "window(4)"},
    ],
    ids=str,
)  # fmt: skip
def test_build_unrelated_axis_varied_leaves_the_other_tensors_as_they_were(changes):
    before, after = parameters(), parameters(changes)
    shared = [name for name in FAN_OUT_IN if name in after]
    assert len(shared) == len(FAN_OUT_IN)
    assert all(torch.equal(before[name], after[name]) for name in shared)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_build_in_another_dtype_rounds_the_same_numbers(dtype):
    single, other = parameters(), parameters(dtype=dtype)
    assert all(torch.equal(single[name].to(dtype), other[name]) for name in single)


def test_build_tied_default_model_starts_with_logits_of_spread_1():
    spec = af.spec(
        {"vocab": 997, "width": 128, "depth": 4, "context": 64, "attention": {"heads": 4}}, {"head.tied": True}
    )
    ids = torch.randint(0, 997, (2, 64), generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        logits = af.build(spec)(ids).logits
    assert 0.9 < float(logits.std()) < 1.1
