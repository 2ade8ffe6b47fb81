"""Axes and differences: every field that matters is seen by an axis, and what means the same is no difference."""

from dataclasses import replace

import pytest

from anyformer.errors import InputError, SpecError
from anyformer.explain.axes import axes_of
from anyformer.explain.difference import difference
from anyformer.specs.codec import listed
from anyformer.specs.stacks import pattern_of
from tests.contract.draw import draw
from tests.explain.specs import images, spec_named
from tests.specs.small import small

IDLE = {("ffn", "multiple_of"), ("layers", "order")}
"""A rounding of a width that is given, and the order's text (its layers are compared): no meaning of their own."""


def differing(a, b):
    return [axis.name for axis, _ in difference(a, b, ("a", "b")).axes]


def resolved(spec):
    """All that a model is made of, an unset pattern as what it stands for."""
    layers = [
        replace(layer, attention=replace(layer.attention, pattern=pattern_of(stack, layer)))
        for stack in spec.stacks
        for layer in stack.layers
    ]
    return (
        layers,
        [stack.norm for stack in spec.stacks],
        spec.embed,
        spec.head,
        spec.loss,
        spec.init,
        spec.ids,
        spec.width,
        spec.vocab,
        spec.context,
    )


def other_values(value):
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int | float):
        return [value * 2, value + 1]
    return [
        "layernorm",
        "rmsnorm",
        "gelu",
        "alibi",
        "none",
        "relu",
        "full",
        "causal",
        "whole",
        "post",
        "parallel",
        "mean",
    ]


@pytest.mark.parametrize("seed", range(14))
def test_every_field_that_changes_the_model_is_seen_by_an_axis(seed):
    spec, tried = draw(seed), 0
    for path, value in listed(spec.to_data()):
        if path[0] == "schema" or path[-2:] in IDLE:
            continue
        for other in other_values(value):
            try:
                varied = spec.vary({".".join(path): other})
            except SpecError:
                continue
            if resolved(varied) != resolved(spec):
                assert differing(spec, varied), f"{'.'.join(path)} = {other!r} in\n{spec.to_toml()}"
                tried += 1
    assert tried > 10


@pytest.mark.parametrize("seed", range(40))
def test_spec_does_not_differ_from_itself(seed):
    spec = draw(seed)
    found = difference(spec, type(spec).from_toml(spec.to_toml()), ("a", "b"))
    assert found.headline == "no axis differs"
    assert all(change.before == change.after for change in found.changes)


@pytest.mark.parametrize(
    "changes",
    [
        {"attention.head_dim": 4},
        {"attention.scale": "1/sqrt(4)"},
        {"ffn.width": 64},
        {"embed.width": 16},
        {"norm.final": True},
        {"attention.pattern": "causal"},
        {"norm.attention_placement": "pre"},
    ],
)
def test_what_means_the_same_is_no_difference(changes):
    assert differing(small(), small().vary(changes)) == []


@pytest.mark.parametrize(
    ("changes", "names"),
    [
        ({"attention.kv_heads": 1}, ["heads"]),
        ({"position.theta": 5.0}, ["position"]),
        ({"norm.kind": "layernorm"}, ["norm"]),
        ({"norm.placement": "post"}, ["placement", "stack norms"]),
        ({"depth": 6}, ["depth"]),
        ({"layers.2.attention.pattern": "window(3)"}, ["pattern"]),
        ({"ffn.dropout": 0.5, "block.dropout": 0.1}, ["dropout"]),
        ({"head.kind": "none"}, ["head", "loss"]),
        ({"topology": "encoder"}, ["topology", "pattern"]),
        ({"topology": "encoder-decoder"}, ["topology", "cross-attention"]),
        ({"ids.eos": [3]}, ["special ids"]),
    ],
)
def test_difference_names_the_axes_that_changed_and_no_other(changes, names):
    assert differing(small(), small().vary(changes)) == names


def test_deeper_model_with_the_same_cycle_differs_by_depth_alone():
    spec = spec_named("local-global")
    assert differing(spec, spec.vary({"depth": 48})) == ["depth"]


@pytest.mark.parametrize(("changes", "headline"), [
    ({}, "no axis differs"),
    ({"depth": 2}, "1 axis differs"),
    ({"depth": 2, "context": 8}, "2 axes differ"),
])  # fmt: skip
def test_headline_counts_the_axes(changes, headline):
    assert difference(small(), small().vary(changes), ("a", "b")).headline == headline


def test_changes_are_those_of_the_counts():
    a, b = spec_named("llama"), spec_named("llama").vary({"attention.kv_heads": 1, "head.tied": True})
    found = difference(a, b, ("a", "b"), 4096)
    first, second = a.count(), b.count()
    by_name = {(c.name, c.unit): c for c in found.changes}
    assert by_name["parameters", "parameters"].after == second.params
    assert by_name["parameters", "parameters"].ratio == second.params / first.params
    assert by_name["head", "parameters"].after == 0
    assert by_name["FLOPs per token", "FLOP"].before == first.flops_per_token(4096)
    assert by_name["KV cache (bfloat16)", "bytes"].after == second.kv_bytes(4096) == first.kv_bytes(4096) // 8
    assert by_name["weights (int8)", "bytes"].before == first.params
    for unit in ("parameters", "FLOP"):
        parts = [c for c in found.changes if c.unit == unit and c.part]
        whole = next(c for c in found.changes if c.unit == unit and not c.part)
        assert sum(c.after for c in parts) == pytest.approx(whole.after)


def test_context_is_the_shorter_of_both_unless_it_is_given():
    a, b = small(), small({"context": 8})
    assert difference(a, b, ("a", "b")).contexts == (8, 8)
    assert difference(a, b, ("a", "b"), 100).contexts == (100, 100)


def test_image_is_counted_at_its_own_length():
    assert difference(small(), images(), ("a", "b")).contexts == (32, 197)
    with pytest.raises(InputError, match="always 197 tokens"):
        difference(small(), images(), ("a", "b"), 64)


def test_context_beyond_the_positions_of_a_model_is_refused():
    with pytest.raises(InputError, match="100 is more than the 32 positions"):
        difference(small(), small({"position": "learned"}), ("a", "b"), 100)


def test_axis_of_layers_that_differ_says_where():
    axes = {axis.name: axis for axis in axes_of(spec_named("local-global"))}
    assert axes["pattern"].value == (
        "layers 0-4, 6-10, 12-16, ... 30-31 (27 layers): window(1024); layers 5, 11, 17, ... 29 (5 layers): causal"
    )
    assert axes["heads"].value == "GQA 32/8, heads of 128"
    assert axes["pattern"].placed[1].layers == {"decoder": (5, 11, 17, 23, 29)}


def test_axis_of_stacks_that_differ_says_which():
    axes = {axis.name: axis for axis in axes_of(spec_named("encoder-decoder").vary({"encoder.depth": 2}))}
    assert axes["depth"].value == "encoder: 2 layers; decoder: 32 layers"
    assert axes["pattern"].value == "encoder: full; decoder: causal"


def test_axes_of_one_layer_are_those_of_its_kind():
    axes = {axis.name: axis for axis in axes_of(spec_named("local-global"), layer=11)}
    assert axes["pattern"].value == "causal"
