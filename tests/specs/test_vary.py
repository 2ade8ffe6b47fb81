"""`vary`: dotted overrides give a new spec. Each sentence of its contract is a test here."""

from typing import Any

import pytest

from anyformer.errors import SpecError
from anyformer.specs import Attention, BlockWiring, HeadNorm, Layers, ModelSpec, Norm, NormPlacement, Pattern, Position
from anyformer.specs.axes import FeedForward
from tests.specs.small import problems_of_varying, small


def every(spec: ModelSpec, *path: str, stack: int = 0) -> list[Any]:
    """A field of every layer."""
    found: list[Any] = list(spec.stacks[stack].layers)
    for name in path:
        found = [getattr(node, name) for node in found]
    return found


@pytest.mark.parametrize(
    ("path", "value", "read"),
    [
        ("vocab", 64, lambda s: s.vocab),
        ("width", 32, lambda s: s.width),
        ("depth", 2, lambda s: len(s.stacks[0].layers)),
        ("context", 16, lambda s: s.context),
        ("topology", "encoder", lambda s: s.stacks[0].name),
        ("attention.heads", 2, lambda s: s.attention.heads),
        ("attention.kv_heads", 1, lambda s: s.attention.kv_heads),
        ("attention.head_dim", 8, lambda s: s.attention.head_dim),
        ("attention.softcap", 50.0, lambda s: s.attention.softcap),
        ("attention.pattern", "window(4)", lambda s: str(s.attention.pattern)),
        ("attention.qk_norm.scope", "whole", lambda s: s.attention.qk_norm and s.attention.qk_norm.scope),
        ("position.kind", "alibi", lambda s: s.position.kind),
        ("position.theta", 5.0, lambda s: s.position.theta),
        ("ffn.kind", "gelu", lambda s: s.ffn.kind),
        ("ffn.width", 40, lambda s: s.ffn.width),
        ("norm.kind", "layernorm", lambda s: s.norm.leaf.kind),
        ("norm.placement", "post", lambda s: s.norm.placement),
        ("block.wiring", "parallel", lambda s: s.block.wiring),
        ("head.tied", True, lambda s: s.head.tied),
        ("head.softcap", 30.0, lambda s: s.head.softcap),
        ("loss.z", 1e-4, lambda s: s.loss.z),
        ("init", "gpt2", lambda s: s.init.kind),
        ("layers.3.ffn.width", 8, lambda s: s.stacks[0].layers[3].ffn.width),
    ],
)
def test_dotted_name_sets_its_field_in_a_new_spec(path: str, value: Any, read: Any):
    spec = small()
    before = spec.to_toml()
    assert read(spec) != value
    assert read(spec.vary({path: value})) == value
    assert spec.to_toml() == before


def test_no_change_gives_an_equal_spec():
    assert small().vary({}) == small()


# A kind replaces its node by that kind's defaults; other keys of the same call apply after.


def test_kind_replaces_the_node_by_that_kinds_defaults():
    spec = small({"position": {"kind": "rope", "theta": 5.0, "layout": "interleaved"}})
    assert spec.vary({"position.kind": "alibi"}).position == Position.named("alibi")()
    assert spec.vary({"position.kind": "rope"}).position == Position.named("rope")()


@pytest.mark.parametrize("turn", [1, -1])
def test_other_keys_apply_after_the_kind_whatever_their_order(turn: int):
    changes = dict([("ffn.kind", "geglu"), ("ffn.form", "tanh"), ("ffn.width", 40)][::turn])
    assert small().vary(changes).ffn == FeedForward.named("geglu")(form="tanh", width=40)


@pytest.mark.parametrize(
    "changes",
    [
        {"position": "alibi", "position.slope_base": 4.0},
        {"position.slope_base": 4.0, "position": "alibi"},
        {"position": {"kind": "alibi"}, "position.slope_base": 4.0},
        {"position": {"slope_base": 4.0, "kind": "alibi"}},
        {"position.slope_base": 4.0, "position": {"kind": "alibi"}},
        {"position": Position.named("alibi")(), "position.slope_base": 4.0},
    ],
)
def test_tables_bare_kinds_nodes_and_dotted_names_mean_the_same(changes: dict[str, Any]):
    assert small().vary(changes).position == Position.named("alibi")(slope_base=4.0)


def test_kind_of_an_inlined_node_leaves_what_is_no_part_of_the_kind():
    spec = small({"norm": {"kind": "rmsnorm", "eps": 1e-3, "placement": "post", "final": True}})
    for changes in ({"norm.kind": "layernorm"}, {"norm": "layernorm"}, {"norm": {"kind": "layernorm"}}):
        assert spec.vary(changes).norm == NormPlacement(leaf=Norm.named("layernorm")(), placement="post", final=True)


def test_kind_of_a_head_norm_leaves_its_scope():
    spec = small({"attention.qk_norm": {"kind": "rmsnorm", "eps": 1e-3, "scope": "whole"}})
    for changes in ({"attention.qk_norm.kind": "layernorm"}, {"attention.qk_norm": "layernorm"}):
        assert spec.vary(changes).attention.qk_norm == HeadNorm(leaf=Norm.named("layernorm")(), scope="whole")


def test_kind_of_a_temperature_replaces_it_too():
    spec = small({"attention.temperature": {"kind": "log1p", "strength": 0.5, "length": 16}})
    temperature = spec.vary({"attention.temperature.kind": "log_n"}).attention.temperature
    assert (temperature.kind, temperature.length, temperature.strength) == ("log_n", 8192, 0.1)


def test_table_without_a_kind_changes_the_fields_that_it_names():
    spec = small({"position": {"kind": "rope", "theta": 5.0}})
    varied = spec.vary({"position": {"layout": "interleaved"}}).position
    assert (varied.theta, varied.layout) == (5.0, "interleaved")


# A bare path means every layer, even where groups or stacks say otherwise.

GROUPS = {
    "order": "2 near, 2 far",
    "near": {"attention": {"pattern": "window(4)", "softcap": 5.0}, "position": {"kind": "rope", "theta": 5.0},
             "norm": {"placement": "post"}, "ffn": {"width": 8}},
    "far": {"position": "none"},
    "3": {"ffn": {"width": 12}},
}  # fmt: skip


def test_bare_path_means_every_layer_even_where_groups_override_it():
    spec = small({"layers": GROUPS})
    assert every(spec, "ffn", "width") == [8, 8, None, 12]
    assert every(spec.vary({"ffn.width": 20}), "ffn", "width") == [20] * 4
    assert every(spec.vary({"ffn": {"width": 20}}), "ffn", "width") == [20] * 4
    assert every(spec.vary({"ffn.width": None}), "ffn", "width") == [None] * 4
    assert every(spec.vary({"attention.softcap": 9.0}), "attention", "softcap") == [9.0] * 4
    assert {str(p) for p in every(spec.vary({"attention.pattern": "causal"}), "attention", "pattern")} == {"causal"}


def test_bare_kind_means_every_layer_and_clears_the_fields_of_other_kinds():
    spec = small({"layers": GROUPS})
    for changes in ({"position.kind": "alibi"}, {"position": "alibi"}, {"position": Position.named("alibi")()}):
        assert every(spec.vary(changes), "position") == [Position.named("alibi")()] * 4


def test_bare_kind_of_a_norm_leaves_a_groups_placement():
    varied = small({"layers": GROUPS}).vary({"norm.kind": "layernorm"})
    assert every(varied, "norm", "leaf") == [Norm.named("layernorm")()] * 4
    assert every(varied, "norm", "placement") == ["post", "post", "pre", "pre"]


def test_bare_kind_of_a_head_norm_leaves_a_groups_scope():
    spec = small({"attention.qk_norm": True, "layers": {"0": {"attention": {"qk_norm": {"scope": "whole"}}}}})
    varied = spec.vary({"attention.qk_norm.kind": "layernorm"})
    assert every(varied, "attention", "qk_norm", "scope") == ["whole", "head", "head", "head"]
    assert every(varied, "attention", "qk_norm", "leaf") == [Norm.named("layernorm")()] * 4


def test_bare_field_reaches_groups_with_a_kind_of_their_own_where_it_exists():
    varied = small({"layers": GROUPS}).vary({"position.theta": 7.0})
    assert [getattr(p, "theta", None) for p in every(varied, "position")] == [7.0, 7.0, None, None]
    assert varied.position.theta == 7.0


def test_bare_field_of_a_norm_reaches_groups_with_a_norm_of_their_own():
    layers = {
        "0": {"norm": "layernorm"},
        "1": {"norm": {"kind": "layernorm", "eps": 1e-3}},
        "2": {"norm": {"eps": 1e-2}},
    }
    varied = small({"layers": layers}).vary({"norm.eps": 1e-4})
    assert [(leaf.kind, leaf.eps) for leaf in every(varied, "norm", "leaf")] == [
        ("layernorm", 1e-4), ("layernorm", 1e-4), ("rmsnorm", 1e-4), ("rmsnorm", 1e-4),
    ]  # fmt: skip


def test_bare_field_of_a_pattern_reaches_the_groups_patterns():
    spec = small({"attention.pattern": "window(8)", "layers": {"0": {"attention": {"pattern": "window(4)"}}}})
    varied = spec.vary({"attention.pattern.size": 6})
    assert [str(p) for p in every(varied, "attention", "pattern")] == ["window(6)"] * 4


def test_bare_field_two_steps_down_reaches_groups_with_a_kind_of_their_own():
    scaled = {"kind": "rope", "scaling": {"kind": "linear", "factor": 2.0}}
    spec = small(
        {"position": scaled, "layers": {"0": {"position": {**scaled, "theta": 5.0}}, "1": {"position": "rope"}}}
    )
    varied = spec.vary({"position.scaling.factor": 4.0})
    assert [p.scaling and p.scaling.factor for p in every(varied, "position")] == [4.0, None, 4.0, 4.0]


def test_bare_field_two_steps_down_reaches_groups_that_leave_the_outer_kind_open():
    scaled = {"kind": "rope", "scaling": {"kind": "linear", "factor": 2.0}}
    other = {"kind": "linear", "factor": 3.0}
    spec = small(
        {
            "position": scaled,
            "layers": {"0": {"position": {"scaling": other}}, "1": {"position": {"scaling": {"factor": 5.0}}}},
        }
    )
    assert [p.scaling.factor for p in every(spec, "position")] == [3.0, 5.0, 2.0, 2.0]
    assert [p.scaling.factor for p in every(spec.vary({"position.scaling.factor": 4.0}), "position")] == [4.0] * 4


def test_bare_field_of_a_node_that_a_group_switched_off_leaves_it_off():
    spec = small({"attention.qk_norm": True, "layers": {"0": {"attention": {"qk_norm": "none"}}}})
    varied = spec.vary({"attention.qk_norm.scope": "whole"})
    assert [norm and norm.scope for norm in every(varied, "attention", "qk_norm")] == [None, "whole", "whole", "whole"]


def test_bare_path_keeps_the_other_overrides_of_a_group():
    varied = small({"layers": GROUPS}).vary({"attention.softcap": 9.0})
    assert [str(p) for p in every(varied, "attention", "pattern")] == ["window(4)", "window(4)", "None", "None"]
    assert every(varied, "ffn", "width") == [8, 8, None, 12]


def test_bare_path_means_both_stacks_and_their_groups():
    spec = small({
        "topology": "encoder-decoder",
        "encoder": {"depth": 2, "ffn": {"width": 8}, "layers": {"0": {"ffn": {"width": 12}}}},
        "decoder": {"position": "alibi"},
    })  # fmt: skip
    varied = spec.vary({"depth": 3, "ffn.width": 20, "position.kind": "t5"})
    for stack in (0, 1):
        assert every(varied, "ffn", "width", stack=stack) == [20] * 3
        assert {p.kind for p in every(varied, "position", stack=stack)} == {"t5"}


# `layers.3.X` or a named group: only those.


def test_numbered_layer_changes_alone():
    varied = small().vary({"layers.3.ffn.width": 8, "layers.0.position.kind": "none"})
    assert every(varied, "ffn", "width") == [None, None, None, 8]
    assert [p.kind for p in every(varied, "position")] == ["none", "rope", "rope", "rope"]


def test_named_group_changes_alone():
    varied = small({"layers": GROUPS}).vary({"layers.far.ffn.width": 16, "layers.near.position.theta": 9.0})
    assert every(varied, "ffn", "width") == [8, 8, 16, 12]
    assert [getattr(p, "theta", None) for p in every(varied, "position")] == [9.0, 9.0, None, None]


def test_stack_of_an_encoder_decoder_changes_alone():
    spec = small({"topology": "encoder-decoder"})
    varied = spec.vary({"encoder.depth": 2, "decoder.layers.1.ffn.width": 8, "encoder.attention.heads": 2})
    assert [stack.depth for stack in varied.stacks] == [2, 4]
    assert every(varied, "ffn", "width", stack=1) == [None, 8, None, None]
    assert every(varied, "attention", "heads", stack=0) == [2, 2]
    assert every(varied, "attention", "heads", stack=1) == [4] * 4


def test_new_order_and_groups_come_by_dotted_names():
    varied = small().vary({"layers.order": "a, b", "layers.a": {}, "layers.b.ffn.width": 8})
    assert every(varied, "ffn", "width") == [None, 8, None, 8]


def test_none_removes_a_group_an_order_or_all_layers():
    spec = small({"layers": GROUPS})
    assert every(spec.vary({"layers.3": None}), "ffn", "width") == [8, 8, None, None]
    assert spec.vary({"layers": None}) == small()
    changes = {"layers.order": None, "layers.near": None, "layers.far": None, "layers.3": None}
    assert spec.vary(changes) == small()


# A new depth re-expands a cycle; an explicit list of another length is an error.


def test_new_depth_expands_a_cycle_again():
    spec = small({"depth": 3, "layers": {"order": "2 a, b", "a": {"ffn": {"width": 8}}, "b": {}}})
    assert every(spec.vary({"depth": 7}), "ffn", "width") == [8, 8, None, 8, 8, None, 8]
    assert every(spec.vary({"depth": 2}), "ffn", "width") == [8, 8]
    assert spec.vary({"depth": 2}).vary({"depth": 3}) == spec


def test_explicit_list_of_another_length_is_an_error():
    spec = small({"layers": {"order": ["a", "b", "b", "a"], "a": {}, "b": {}}})
    assert problems_of_varying(spec, {"depth": 5}) == [
        "layers.order: lists 4 layers but depth is 5; list each layer, or write a cycle as text"
    ]
    assert spec.vary({"depth": 2, "layers.order": ["b", "a"]}).stacks[0].depth == 2


def test_numbered_layer_beyond_a_new_depth_is_an_error():
    spec = small({"layers": {"3": {"ffn": {"width": 8}}}})
    assert problems_of_varying(spec, {"depth": 3}) == ["layers.3: there is no layer 3; layers are 0 to 2"]


# Derived sizes stay unset, so that width can vary.


def test_derived_sizes_follow_a_new_width():
    spec = small({"width": 16, "ffn": "gelu"})
    for width in (16, 32, 64):
        varied = spec.vary({"width": width})
        dims = varied.dims(varied.stacks[0].layers[0], varied.stacks[0])
        assert (dims.head_dim, dims.ffn_width, dims.embed_width) == (width // 4, 4 * width, width)
        assert (varied.attention.head_dim, varied.ffn.width) == (None, None)


def test_sizes_that_were_set_stay_when_width_varies():
    spec = small({"attention.head_dim": 6, "ffn": {"kind": "gelu", "width": 40}})
    varied = spec.vary({"width": 64})
    assert (varied.attention.head_dim, varied.ffn.width) == (6, 40)


# None unsets, nodes replace.


def test_none_unsets_an_optional_field():
    spec = small({"attention": {"heads": 4, "kv_heads": 2, "head_dim": 8, "pattern": "window(4)", "qk_norm": True}})
    varied = spec.vary(
        {"attention.kv_heads": None, "attention.head_dim": None, "attention.pattern": None, "attention.qk_norm": None}
    )
    assert varied.attention == Attention(heads=4)


def test_none_of_what_is_not_optional_is_an_error():
    found = problems_of_varying(small({"position": "alibi"}), {"width": None, "position": None, "norm.placement": None})
    assert found == [
        "width: None is not a whole number",
        f"position: None is neither a kind nor a table with one; pick one of {', '.join(Position.kinds())}",
        "norm.placement: None is not one of pre, post, sandwich, output, none",
    ]


def test_true_and_false_switch_an_optional_node():
    spec = small()
    on = spec.vary({"attention.qk_norm": True})
    assert on.attention.qk_norm == HeadNorm()
    assert on.vary({"attention.qk_norm": False}) == spec
    assert on.vary({"attention.qk_norm": "none"}) == spec
    both = {"attention.qk_norm.scope": "whole", "attention.qk_norm": True}
    assert spec.vary(both).attention.qk_norm == HeadNorm(scope="whole")


def test_node_as_value_replaces_the_node_whole():
    spec = small({"attention.softcap": 30.0, "layers": {"0": {"attention": {"softcap": 9.0}}}})
    varied = spec.vary({"attention": Attention(heads=8), "block": BlockWiring(wiring="parallel")})
    assert every(varied, "attention") == [Attention(heads=8)] * 4
    assert varied.block == BlockWiring(wiring="parallel")


def test_node_as_value_replaces_the_node_of_one_layer_whole():
    spec = small({"attention.softcap": 30.0, "norm": {"placement": "post", "ffn_placement": "none"}})
    node = NormPlacement(leaf=Norm.named("layernorm")())
    varied = spec.vary({"layers.1.attention": Attention(heads=4, qk_norm=HeadNorm()), "layers.2.norm": node})
    assert varied.stacks[0].layers[1].attention == Attention(heads=4, qk_norm=HeadNorm())
    assert varied.stacks[0].layers[2].norm == node
    assert varied.stacks[0].layers[0].attention == spec.attention


def test_pattern_as_value_may_be_a_node_or_a_text():
    pattern = Pattern.named("causal")() & Pattern.named("chunked")(size=4)
    assert small().vary({"attention.pattern": pattern}) == small().vary({"attention.pattern": "causal & chunked(4)"})


def test_layers_as_value_replace_all_groups():
    layers = Layers(order="a", groups={"a": {"ffn.width": 8}})
    assert small({"layers": GROUPS}).vary({"layers": layers}) == small({"layers": layers.written()})


# What can't be is refused, with the nearest right name.


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        ({"attnetion.heads": 4}, "attnetion: is unknown; did you mean 'attention'?"),
        ({"attention.haeds": 4}, "attention.haeds: is unknown; did you mean 'heads'?"),
        ({"heads": 4}, "heads: is unknown; did you mean 'attention.heads'?"),
        ({"position.kind": "alibbi"}, "position.kind: 'alibbi' is unknown; did you mean 'alibi'?"),
        ({"position.kind": "alibi", "position.theta": 5.0}, "position.theta: is unknown (known: "),
        ({"layers.naer.ffn.width": 4}, "layers.naer: is a group that layers.order does not name; did you mean 'near'?"),
        ({"layers.near.fnn.width": 4}, "layers.near.fnn: is unknown; did you mean 'ffn'?"),
        ({"depth.x": 4}, "depth: {'x': 4} is not a whole number"),
        (
            {"attention.pattern": "causal & chunked(4)", "attention.pattern.size": 4},
            "attention.pattern.kind: is missing;",
        ),
        ({"norm": 3}, "norm: 3 is not a table"),
    ],
)
def test_change_that_cannot_be_is_refused(changes: dict[str, Any], line: str):
    (found,) = problems_of_varying(small({"layers": GROUPS}), changes)
    assert found.startswith(line)


def test_all_problems_of_a_change_are_named_at_once():
    with pytest.raises(SpecError) as caught:
        small().vary({"attention.heads": 3, "attention.kv_heads": 3, "ffn.kind": "swish", "loss.z": -1.0})
    assert [line.split(":")[0] for line in caught.value.problems] == ["ffn.kind", "loss.z", "attention.heads"]


def test_field_whose_default_is_a_value_can_be_unset_and_survives_the_round_trip():
    spec = small({"attention.mixer": {"kind": "lsh", "chunk": 4}, "attention.kv_heads": None})
    assert spec.attention.mixer.seed == 0
    for changed in (spec.vary({"attention.mixer.seed": None}), spec.vary({"attention.mixer.seed": "none"})):
        assert changed.attention.mixer.seed is None
        assert changed.stacks[0].layers[0].attention.mixer.seed is None
        assert ModelSpec.from_toml(changed.to_toml()) == changed
    assert spec.vary({"layers.1.attention.mixer.seed": "none"}).stacks[0].layers[1].attention.mixer.seed is None
