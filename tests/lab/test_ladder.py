"""Ladders of sizes: proportions that are kept, about the factor from one to the next, and the given spec as it is."""

import math

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.lab.scaling.ladder import resized, size_changes, sizes, tokens_for

SPEC = af.spec({
    "vocab": 512, "width": 256, "depth": 8, "context": 64, "attention": {"heads": 8, "kv_heads": 4},
    "ffn": {"kind": "swiglu", "width": 768}, "head": {"kind": "lm", "tied": True},
})  # fmt: skip


def head_dim(spec):
    return spec.attention.head_dim or spec.width // spec.attention.heads


@pytest.mark.parametrize("factor", [2.0, 3.5])
@pytest.mark.parametrize("end", ["largest", "smallest"])
@pytest.mark.parametrize("name", ["own", "gpt2", "qwen3-0.6b", "mixtral-8x7b-v0.1", "t5-small", "falcon-7b"])
def test_sizes_grow_by_about_the_factor_and_keep_their_proportions(name, end, factor):
    spec = SPEC if name == "own" else af.spec(name)
    found = sizes(spec, 3, factor, end=end)
    assert found[-1 if end == "largest" else 0] is spec
    params = [each.count().params for each in found]
    for i, count in enumerate(params):
        anchor = params[-1] / factor ** (2 - i) if end == "largest" else params[0] * factor**i
        assert 0.75 < count / anchor < 1.35, params
    for each in found:
        assert head_dim(each) == head_dim(spec)
        assert each.width * spec.attention.heads == spec.width * each.attention.heads
        assert abs(math.log(each.width / each.depth / (spec.width / spec.depth))) < 0.5
        wide, usual = (one.stacks[0].layers[0].ffn.hidden(one.width) / one.width for one in (each, spec))
        assert wide == pytest.approx(usual, rel=0.1)
        assert each.vocab == spec.vocab


def test_sizes_keep_the_group_of_key_heads_where_it_divides_and_mqa_as_it_is():
    assert all(each.attention.heads == 2 * each.attention.kv_heads for each in sizes(SPEC, 4, 2.0))
    mqa = sizes(SPEC.vary({"attention.kv_heads": 1}), 3, 2.0)
    assert [each.attention.kv_heads for each in mqa] == [1, 1, 1]
    assert [resized(SPEC, heads, 8)["attention.kv_heads"] for heads in (1, 7, 9, 10)] == [1, 7, 3, 5]


def test_sizes_of_groups_of_layers_and_of_stacks_change_with_the_others():
    spec = SPEC.vary(
        {
            "layers.order": "1 dense, rest sparse",
            "layers.dense.ffn.bias": True,
            "layers.sparse.ffn": {"kind": "moe", "width": 128, "experts": 4},
        }
    )
    half = spec.vary(resized(spec, 4, 4))
    assert [layer.ffn.hidden(half.width) for layer in half.stacks[0].layers] == [384, 64, 64, 64]
    both = SPEC.vary({"topology": "encoder-decoder", "decoder.depth": 2})
    assert [stack.depth for stack in both.vary(resized(both, 4, 4)).stacks] == [4, 1]


def test_changes_of_a_ladder_are_those_of_its_sizes():
    changes = size_changes(SPEC, 3, 2.0)
    assert changes[-1] == {}
    assert [SPEC.vary(each) for each in changes] == sizes(SPEC, 3, 2.0)
    assert set(changes[0]) == {"width", "depth", "attention.heads", "attention.kv_heads", "ffn.width"}


def test_ladder_that_cannot_be_is_refused_with_the_way_out():
    with pytest.raises(
        InputError, match=r"there is no size of about \d+ parameters of this spec \(width 256, .* fewer steps"
    ):
        sizes(SPEC, 12, 4.0)
    for steps, factor in ((0, 2.0), (3, 1.0), (3, math.nan)):
        with pytest.raises(InputError, match="give 1 step or more, and a factor above 1"):
            sizes(SPEC, steps, factor)
    with pytest.raises(InputError, match="end: 'middle' is not one of largest, smallest"):
        sizes(SPEC, 3, 2.0, end="middle")
    assert sizes(SPEC, 1, 2.0) == [SPEC]


def test_tokens_go_by_the_parameters_that_a_token_uses():
    assert tokens_for(SPEC) == 20 * SPEC.count().params
    assert tokens_for(SPEC, 0.5) == round(0.5 * SPEC.count().params)
    moe = af.spec("mixtral-8x7b-v0.1")
    assert tokens_for(moe) == 20 * moe.count().active_params < 20 * moe.count().params
    with pytest.raises(InputError, match=r"per_param: 0 is not above 0"):
        tokens_for(SPEC, 0)
