"""[layers]: orders, groups, numbered layers, and the overrides of an encoder-decoder's stacks."""

from typing import Any

import pytest

from anyformer.specs import ModelSpec
from anyformer.specs.overrides import Layers, Overrides
from tests.specs.small import data_with, problems_with, small

pytestmark = pytest.mark.quick


def widths(spec: ModelSpec, stack: int = 0) -> list[int | None]:
    return [layer.ffn.width for layer in spec.stacks[stack].layers]


def ordered(order: Any, depth: int, **groups: int) -> ModelSpec:
    """A spec whose groups differ in the width of their feed-forward."""
    tables = {name: {"ffn": {"width": width}} for name, width in groups.items()}
    return small({"depth": depth, "layers": {"order": order, **tables}})


@pytest.mark.parametrize(
    ("order", "depth", "names"),
    [
        ("5 local, 1 global", 6, "aaaaab"),
        ("5 local, 1 global", 14, "aaaaabaaaaabaa"),
        ("2*local + global", 6, "aabaab"),
        ("2 * local+global", 3, "aab"),
        ("local,global", 4, "abab"),
        ("2 local, global, local", 8, "aabaaaba"),
        ("1 local, rest global", 5, "abbbb"),
        ("rest local, 2 global", 5, "aaabb"),
        ("local, rest local, global", 4, "aaab"),
        (["local", "global", "global"], 3, "abb"),
    ],
)
def test_order_expands_to_the_depth(order: Any, depth: int, names: str):
    spec = ordered(order, depth, local=8, **{"global": 24})
    assert widths(spec) == [{"a": 8, "b": 24}[name] for name in names]


def test_rest_that_nothing_is_left_for_is_no_mistake():
    spec = small({"layers": {"order": "2 local, rest global, 2 local", "local": {"ffn": {"width": 8}}, "global": {}}})
    assert widths(spec) == [8, 8, 8, 8]


def test_group_that_a_small_depth_cuts_off_is_no_mistake():
    assert widths(ordered("5 local, 1 global", 4, local=8, **{"global": 24})) == [8, 8, 8, 8]


def test_order_with_a_huge_count_is_cut_at_the_depth():
    assert widths(ordered("999999999999 local, global", 4, local=8, **{"global": 24})) == [8, 8, 8, 8]


def test_layers_without_an_order_are_all_alike():
    assert widths(small()) == [None] * 4


def test_numbered_layer_is_overridden_after_its_group():
    spec = small({
        "layers": {
            "order": "local", "local": {"ffn": {"width": 8}, "attention": {"pattern": "window(4)"}},
            "2": {"ffn": {"width": 40}},
        }
    })  # fmt: skip
    assert widths(spec) == [8, 8, 40, 8]
    assert {str(layer.attention.pattern) for layer in spec.stacks[0].layers} == {"window(4)"}


def test_a_kind_in_a_group_replaces_the_node_and_other_fields_change_it():
    spec = small({
        "position": {"kind": "rope", "theta": 5.0, "layout": "interleaved"},
        "layers": {"0": {"position": {"kind": "rope"}}, "1": {"position": "none"}, "2": {"position": {"theta": 7.0}}},
    })  # fmt: skip
    positions = [layer.position for layer in spec.stacks[0].layers]
    assert [p.kind for p in positions] == ["rope", "none", "rope", "rope"]
    assert (positions[0].theta, positions[0].layout) == (10000.0, "half")
    assert (positions[2].theta, positions[2].layout) == (7.0, "interleaved")


def test_group_may_unset_what_the_spec_sets():
    spec = small(
        {
            "attention.softcap": 30.0,
            "attention.qk_norm": True,
            "layers": {"0": {"attention": {"softcap": False, "qk_norm": "none"}}},
        }
    )
    assert [layer.attention.softcap for layer in spec.stacks[0].layers] == [None, 30.0, 30.0, 30.0]
    assert [layer.attention.qk_norm is None for layer in spec.stacks[0].layers] == [True, False, False, False]


@pytest.mark.parametrize(
    ("layers", "lines"),
    [
        ({"order": "3 lcoal, global", "local": {}, "global": {}},
         ["layers.order: 'lcoal' is not a group; did you mean 'local'? (known: global, local)"]),
        ({"order": ["a", "a", "a"], "a": {}},
         ["layers.order: lists 3 layers but depth is 4; list each layer, or write a cycle as text"]),
        ({"order": "5 a, rest b", "a": {}, "b": {}}, ["layers.order: counts 5 layers but depth is 4"]),
        ({"order": "rest a, rest b", "a": {}, "b": {}},
         ["layers.order: has more than one 'rest'; only one item can take what is left over"]),
        ({"order": "0 a", "a": {}}, ["layers.order: names no layer; give at least one item a count above 0"]),
        ({"order": "3 x local", "local": {}},
         ["layers.order: '3 x local' can't be read; write items such as '5 local', 'global' or 'rest local', with "
          "commas between"]),
        ({"order": "local, ", "local": {}},
         ["layers.order: '' can't be read; write items such as '5 local', 'global' or 'rest local', with commas "
          "between"]),
        ({"order": "-1 local", "local": {}},
         ["layers.order: '-1 local' can't be read; write items such as '5 local', 'global' or 'rest local', with "
          "commas between"]),
        ({"order": "a", "a": {}, "b": {}}, ["layers.b: is a group that layers.order does not name (known: a)"]),
        ({"order": "4 a, 0 b", "a": {}, "b": {}}, ["layers.b: is a group that layers.order does not name (known: a)"]),
        ({"a": {"ffn": {"width": 8}}},
         ["layers.a: is a group, but nothing says which layers are in it; set layers.order, or number a layer"]),
        ({"4": {}}, ["layers.4: there is no layer 4; layers are 0 to 3"]),
        ({"03": {}}, ["layers.03: is a group, but nothing says which layers are in it; set layers.order, or number a "
         "layer"]),
        ({"0": {"norm": {"final": True, "embedding": True}}},
         ["layers.0.norm.final: belongs to the whole stack; set norm.final",
          "layers.0.norm.embedding: belongs to the whole stack; set norm.embedding"]),
    ],
)  # fmt: skip
def test_order_or_group_that_cannot_be_is_one_line(layers: dict[str, Any], lines: list[str]):
    assert problems_with({"layers": layers}) == lines


def test_mistake_in_a_group_is_reported_under_the_group_once():
    layers = {"order": "2 a, 2 b", "a": {"attention": {"kv_heads": 3}}, "b": {}}
    line = "layers.a.attention.kv_heads: 3 does not divide heads=4; pick one of [1, 2, 4]"
    assert problems_with({"layers": layers}) == [line]


def test_mistake_of_the_spec_is_not_repeated_for_its_groups():
    layers = {"order": "2 a, 2 b", "a": {"ffn": {"width": 8}}, "b": {}}
    assert problems_with({"attention.softcap": -1.0, "layers": layers}) == ["attention.softcap: -1.0 is not above 0"]


def test_mistakes_of_the_spec_and_of_a_group_at_the_same_path_are_both_named():
    assert problems_with({"attention.softcap": -1.0, "layers": {"0": {"attention": {"softcap": -2.0}}}}) == [
        "layers.0.attention.softcap: -2.0 is not above 0",
        "attention.softcap: -1.0 is not above 0",
    ]


def test_rule_between_a_group_and_the_spec_is_reported_under_the_group():
    layers = {"1": {"attention": {"heads": 1}}}
    line = "layers.1.attention.kv_heads: 2 does not divide heads=1; pick one of [1]"
    assert problems_with({"layers": layers}) == [line]


def test_unknown_kind_of_the_spec_does_not_make_a_groups_fields_unknown():
    (line,) = problems_with({"position": "alibbi", "layers": {"0": {"position": {"slope_base": 4.0}}}})
    assert line.startswith("position.kind: 'alibbi' is unknown")


def test_wrong_depth_does_not_hide_a_mistake_in_a_group_or_invent_one():
    layers = {"order": ["a", "b"], "a": {}, "b": {"ffn": {"dropout": 2.0}}, "7": {}}
    assert problems_with({"depth": 0, "layers": layers}) == [
        "depth: 0 is not between 1 and 10000",
        "layers.b.ffn.dropout: 2.0 is not in [0, 1)",
    ]


BOTH = {"topology": "encoder-decoder"}


def test_stacks_have_depths_nodes_and_layers_of_their_own():
    spec = small({
        **BOTH,
        "layers": {"order": "a, b", "a": {"ffn": {"width": 8}}, "b": {"ffn": {"width": 12}}},
        "encoder": {"depth": 3, "attention": {"heads": 2}},
        "decoder": {"depth": 2, "position": "alibi", "layers": {"order": "b, a", "a": {"ffn": {"width": 20}}}},
    })  # fmt: skip
    encoder, decoder = spec.stacks
    assert (encoder.name, encoder.causal, encoder.cross) == ("encoder", False, False)
    assert (decoder.name, decoder.causal, decoder.cross) == ("decoder", True, True)
    assert (widths(spec, 0), widths(spec, 1)) == ([8, 12, 8], [12, 20])
    assert {layer.attention.heads for layer in encoder.layers} == {2}
    assert {layer.attention.heads for layer in decoder.layers} == {4}
    assert {layer.position.kind for layer in encoder.layers} == {"rope"}
    assert {layer.position.kind for layer in decoder.layers} == {"alibi"}
    assert spec.stack("encoder") is encoder


def test_stack_has_a_final_norm_of_its_own():
    spec = small({**BOTH, "encoder": {"norm": {"final": False}}})
    assert [stack.norm.has_final() for stack in spec.stacks] == [False, True]


def test_stacks_may_share_groups_that_each_reaches_in_part():
    spec = small({
        **BOTH,
        "layers": {"a": {"ffn": {"width": 8}}, "b": {"ffn": {"width": 12}}, "5": {"ffn": {"width": 16}}},
        "encoder": {"layers": {"order": "a"}, "depth": 6},
        "decoder": {"layers": {"order": "b"}},
    })  # fmt: skip
    assert (widths(spec, 0), widths(spec, 1)) == ([8, 8, 8, 8, 8, 16], [12] * 4)


@pytest.mark.parametrize(
    ("changes", "lines"),
    [
        ({"encoder": {"vocab": 3}},
         ["encoder.vocab: can't differ between the stacks; only depth, attention, position, ffn, norm, block, layers "
          "can"]),
        ({"encoder": {"depth": 0}}, ["encoder.depth: 0 is not between 1 and 10000"]),
        ({"decoder": {"depth": "two"}}, ["decoder.depth: 'two' is not a whole number"]),
        ({"encoder": 3}, ["encoder: 3 is not a table of overrides"]),
        ({"encoder": {"ffn": {"wdth": 3}}}, ["encoder.ffn.wdth: is unknown; did you mean 'width'?"]),
        ({"decoder": {"attention": {"kv_heads": 3}}},
         ["decoder.attention.kv_heads: 3 does not divide heads=4; pick one of [1, 2, 4]"]),
        ({"decoder": {"attention": {"pattern": "full"}}},
         ["decoder.attention.pattern: 'full' lets a token see later ones, which a decoder may not; write 'causal & "
          "(full)'"]),
        ({"decoder": {"layers": {"order": "a, b", "a": {}}}},
         ["decoder.layers.order: 'b' is not a group; did you mean 'a'?"]),
        ({"decoder": {"layers": {"9": {}}}}, ["decoder.layers.9: there is no layer 9; layers are 0 to 3"]),
        ({"decoder": {"layers": {"0": {"ffn": {"width": 0}}}}}, ["decoder.layers.0.ffn.width: 0 is not at least 1"]),
        ({"layers": {"0": {"ffn": {"width": 0}}}}, ["layers.0.ffn.width: 0 is not at least 1"]),
        ({"encoder": {"norm": 3}}, ["encoder.norm: 3 is not a table"]),
        ({"encoder": {"attention": 3}}, ["encoder.attention: 3 is not a table"]),
        ({"encoder": {"layers": 3}}, ["encoder.layers: 3 is not a table with an order and groups"]),
        ({"encoder": {"depth": 2}, "layers": {"9": {}}}, ["layers.9: there is no layer 9; layers are 0 to 3"]),
        ({"decoder": {"layers": {"0": {"norm": {"final": True}}}}},
         ["decoder.layers.0.norm.final: belongs to the whole stack; set norm.final"]),
    ],
)  # fmt: skip
def test_mistake_in_a_stack_is_reported_under_the_stack(changes: dict[str, Any], lines: list[str]):
    found = [line.split(" (known")[0] for line in problems_with({**BOTH, **changes})]
    assert [line.split("; did you mean")[0] for line in found] == [line.split("; did you mean")[0] for line in lines]


@pytest.mark.parametrize("topology", ["decoder", "encoder"])
@pytest.mark.parametrize("stack", ["encoder", "decoder"])
def test_stack_overrides_without_two_stacks_are_refused(topology: str, stack: str):
    lines = problems_with({"topology": topology, stack: {"depth": 2}})
    assert lines == [f"{stack}: overrides a stack of an encoder-decoder, but topology is '{topology}'"]


def test_overrides_keep_an_empty_table_because_it_switches_a_node_on():
    over = Overrides.of({"attention": {"qk_norm": {}}})
    assert over.written() == {"attention": {"qk_norm": {}}}
    assert over.paths() == ["attention.qk_norm"]


def test_overrides_leave_out_what_is_none():
    assert Overrides.of({"depth": None, "attention": {"heads": 4, "kv_heads": None}}) == Overrides.of(
        {"attention.heads": 4}
    )
    spec = small({"topology": "encoder-decoder", "encoder": {"depth": None, "ffn": {"width": None}}})
    assert [stack.depth for stack in spec.stacks] == [4, 4]
    assert ModelSpec.from_toml(spec.to_toml()) == spec


def test_overrides_are_equal_however_they_were_written():
    one = Overrides.of({"attention.heads": 4, "attention.pattern": "window(4)", "ids": [1, [2]]})
    other = Overrides.of({"ids": (1, (2,)), "attention": {"pattern": "window(4)", "heads": 4}})
    assert one == other
    assert hash(one) == hash(other)
    assert one.written() == {"attention": {"heads": 4, "pattern": "window(4)"}, "ids": [1, [2]]}


def test_layers_are_hashable_with_groups_given_as_a_table():
    table = {"b": {"ffn.width": 4}, "a": {}}
    layers = Layers(order=["a", "b"], groups=table)
    assert layers == Layers(order=("a", "b"), groups=tuple((k, Overrides.of(v)) for k, v in sorted(table.items())))
    assert hash(layers) == hash(Layers.read(layers.written(), "", None))


def test_data_with_an_unused_group_is_valid_once_it_is_named():
    data = data_with({"layers": {"order": "a, b", "a": {}, "b": {}}})
    assert ModelSpec.from_data(data).stacks[0].depth == 4
