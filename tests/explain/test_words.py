"""Words and equations: every kind has its own, with its own numbers."""

import dataclasses
from pathlib import Path

import pytest

import anyformer
from anyformer.explain import axes
from anyformer.explain.axes import axes_of
from anyformer.explain.words import file_of, join, leaf_words, settings, some
from anyformer.specs import Attention, FeedForward, Mixer, Norm, Position
from anyformer.specs.axes import Leaf
from anyformer.specs.embed_head import SequenceHead, TokenEmbed, TokenHead
from anyformer.specs.number_format import data, flops, params, percent, ranges, ratio, short, tokens
from tests.contract.draw import every_kind, spec_of_kind
from tests.specs.small import small

ROOT = Path(anyformer.__file__).parent.parent


def leaves_in(value):
    """Every leaf in a tree of nodes."""
    if isinstance(value, Leaf) and value.kind:
        yield value
    if dataclasses.is_dataclass(value):
        for field in dataclasses.fields(value):
            yield from leaves_in(getattr(value, field.name))


def ours():
    """Plug-ins that happen to be installed may say less."""
    return [(axis, kind) for axis, kind in every_kind() if leaf_of(axis, kind).__module__.startswith("anyformer.")]


def leaf_of(axis, kind):
    found = [leaf for leaf in leaves_in(spec_of_kind(axis, kind)) if (leaf.axis, leaf.kind) == (axis, kind)]
    return type(found[0])


@pytest.mark.parametrize(("axis", "kind"), ours())
def test_kind_has_an_equation_words_and_a_file(axis, kind):
    (leaf, *_) = [leaf for leaf in leaves_in(spec_of_kind(axis, kind)) if (leaf.axis, leaf.kind) == (axis, kind)]
    assert leaf.equation().isascii()
    assert len(leaf.equation()) > 5
    assert len(leaf_words(type(leaf))) > 5
    assert (ROOT / file_of(type(leaf))).is_file()
    assert leaf.called()


def test_leaf_without_an_equation_is_called_by_its_kind_and_says_nothing():
    class Silent(Mixer):
        """A mixer of somebody else."""

        kind = "silent"

    assert (Silent().called(), Silent().equation()) == ("silent", "")


@pytest.mark.parametrize("axis", axes_of(small()), ids=lambda axis: axis.name)
def test_file_that_serves_an_axis_exists(axis):
    assert (ROOT / axis.placed[0].choice.file).is_file()


def position(kind, **fields):
    return Position.named(kind)(**fields)


@pytest.mark.parametrize(
    ("leaf", "has", "lacks"),
    [
        (Norm.named("rmsnorm")(eps=1e-3), "mean(x^2) + 0.001) * g", "(1 + g)"),
        (Norm.named("rmsnorm")(gain="one_plus"), "* (1 + g)", "* g"),
        (Norm.named("layernorm")(gain="none", bias=False), "sqrt(var(x) + 1e-05)", "g"),
        (Norm.named("layernorm")(bias=False), "* g", "+ b"),
        (Mixer.named("softmax")(), "sum_k exp(s_ik)", "sink"),
        (Mixer.named("softmax")(sinks=True), "exp(sink_h) + sum_k exp(s_ik)", "relu"),
        (position("rope", theta=5e5), "500000^(-2i/d)", "values"),
        (position("rope", layout="interleaved", on_values=True), "values R_n v", "i + d/2"),
        (position("alibi", before_scale=True), "scale (q_i . k_j - slope_h", "relu"),
        (position("learned", offset=2), "P[p + 2]", "P[p]"),
        (position("shaw", on_values=False), "a[clip(j - i, +-16)]", "b["),
        (position("sinusoidal", layout="halves", endpoint=True), "10000^(-i/(d/2 - 1))", "2i+1"),
        (FeedForward.named("swiglu")(clamp=7.0, offset=1.0), "silu(min(W_gate x, 7)) * (clip(W_up x, +-7) + 1)", "b_"),
        (FeedForward.named("geglu")(form="quick", bias=True), "gelu(W_gate x + b_gate)", "Phi"),
        (FeedForward.named("gelu_tanh")(), "tanh(sqrt(2/pi) (z + 0.044715 z^3))", "b_up"),
        (FeedForward.named("relu")(bias=True), "W_down relu(W_up x + b_up) + b_down", "gate"),
        (TokenEmbed(scale="sqrt(width)", width=8, project_bias=True), "W_p sqrt(width) E[token_t] + b_p", "T["),
        (TokenEmbed(token_types=2), "E[token_t] + T[type_t]", "W_p"),
        (TokenHead(tied=True, softcap=30.0), "30 tanh((E h_t) / 30)", "W"),
        (TokenHead(transform=True, bias=True, scale=0.5), "0.5 (W norm(gelu(W_d h_t + b_d)) + b)", "tanh"),
        (TokenHead(transform=True, transform_bias=False), "W norm(gelu(W_d h_t))", "b_d"),
        (SequenceHead(labels=2, pool="mean", dense=True), "W tanh(W_d h + b_d) + b, h = mean_t h_t", "first"),
    ],
    ids=lambda value: value.kind if isinstance(value, Leaf) else None,
)  # fmt: skip
def test_equation_follows_the_fields(leaf, has, lacks):
    assert has in leaf.equation()
    assert lacks not in leaf.equation()


@pytest.mark.parametrize(
    ("text", "equation"),
    [
        ("window(7)", "0 <= q - k < 7"),
        ("causal & chunked(4)", "(k <= q) and (q // 4 = k // 4)"),
        ("causal & (chunked(4) | window(2))", "(k <= q) and ((q // 4 = k // 4) or (0 <= q - k < 2))"),
    ],
)
def test_equation_of_a_joined_pattern_is_made_of_its_parts(text, equation):
    assert small({"attention.pattern": text}).attention.pattern.equation() == equation


@pytest.mark.parametrize(
    ("changes", "equation"),
    [
        ({}, "a = x + attention(norm(x)); y = a + ffn(norm(a))"),
        ({"norm.placement": "post"}, "a = norm(x + attention(x)); y = norm(a + ffn(a))"),
        ({"norm.placement": "output", "block.branch_scale": 0.5},
         "a = x + 0.5 norm(attention(x)); y = a + 0.5 norm(ffn(a))"),
        ({"norm.attention_placement": "none"}, "a = x + attention(x); y = a + ffn(norm(a))"),
        ({"block.wiring": "parallel"}, "y = x + attention(norm(x)) + ffn(norm(x))"),
        ({"block.wiring": "parallel", "norm.placement": "post"}, "y = norm(x + attention(x) + ffn(x))"),
        ({"block.wiring": "parallel2", "norm.placement": "sandwich"},
         "y = x + norm(attention(norm_1(x))) + norm(ffn(norm_2(x)))"),
        ({"topology": "encoder-decoder"},
         "encoder: a = x + attention(norm(x)); y = a + ffn(norm(a)); "
         "decoder: a = x + attention(norm(x)); c = a + cross(norm(a)); y = c + ffn(norm(c))"),
    ],
)  # fmt: skip
def test_equation_of_a_block_has_its_norms_and_branches(changes, equation):
    (wiring,) = [axis for axis in axes_of(small(changes)) if axis.name == "wiring"]
    assert [placed.choice.equation for placed in wiring.placed] == [equation]


def test_settings_name_what_is_not_at_its_default():
    leaf = Position.named("rope")(theta=5e5, layout="interleaved", on_values=True)
    assert settings(leaf) == "theta 500000, layout interleaved, on values"
    assert settings(leaf, "theta", "layout", "on_values") == ""
    assert settings(Attention(heads=2)) == "heads 2"
    assert settings(Norm.named("layernorm")(bias=False)) == "no bias"


def test_heads_are_named_by_how_they_share_keys():
    for heads, kv_heads, name in ((4, 4, "MHA 4"), (4, 2, "GQA 4/2"), (4, 1, "MQA 4"), (1, 1, "MHA 1")):
        spec = small({"attention": {"heads": heads, "kv_heads": kv_heads}})
        assert axes.heads_name(spec.dims(spec.stacks[0].layers[0], spec.stacks[0])) == name


def test_numbers_are_short_and_round_up_to_the_next_unit():
    assert [short(n) for n in (0, 7, 999, 1000, 1234, 999_999, 1e6)] == ["0", "7", "999", "1.00 k", "1.23 k", "1.00 M", "1.00 M"]  # fmt: skip
    assert (params(8_030_261_248), data(16_060_522_496), flops(1.5e10)) == ("8.03 B", "16.1 GB", "15.0 GFLOP")
    assert (short(-1500, "B"), short(0.25), flops(12.5)) == ("-1.50 kB", "0.250", "12.5 FLOP")
    assert (tokens(8192), tokens(131072), tokens(2000), tokens(512)) == ("8k", "128k", "2,000", "512")
    assert (percent(1, 3), percent(1, 10**6), percent(0, 5)) == ("33.3%", "<0.1%", "0.0%")
    assert (ratio(2, 3), ratio(2, 2), ratio(0, 5), ratio(0, 0)) == ("x 1.5", "same", "", "same")


def test_lists_of_words_are_joined_as_people_do():
    assert [join(list(text)) for text in ("", "a", "ab", "abc")] == ["", "a", "a and b", "a, b and c"]
    assert (some(1, "axis", "axes"), some(2, "axis", "axes"), some(1200, "layer")) == (
        "1 axis",
        "2 axes",
        "1,200 layers",
    )


def test_runs_of_layers_are_found_in_any_order():
    assert ranges([7, 0, 1, 2, 5, 6]) == ["0-2", "5-7"]
    assert ranges([]) == []


def test_equation_of_a_tied_head_has_the_projection_to_a_narrower_table():
    spec = small({"head": {"kind": "lm", "tied": True}, "embed": {"kind": "tokens", "width": 8}})
    assert axes._head(spec).equation == "logits_t = E W_p h_t"
    assert axes._embedding(spec).equation == "x_t = W_p E[token_t]"
