"""The written form: TOML and plain data, read back equal, or refused with every mistake named at once."""

import pytest

from anyformer.errors import SpecError
from anyformer.specs import Attention, Layers, ModelSpec, NormPlacement
from anyformer.specs.axes import Init, Norm, Position
from tests.specs.small import SMALL, data_with, problems_of, problems_with, small

RICH = """
schema = 1
topology = "encoder-decoder"
vocab = 100
width = 24
depth = 4
context = 64
position = "t5"

[attention]
heads = 4
kv_heads = 2
pattern = "full"
bias = "qv"
scale = 1
qk_norm = true

[ffn]
kind = "geglu"
form = "tanh"

[norm]
kind = "layernorm"
eps = 1e-12
placement = "post"
final = true

[layers]
order = "3 near, far"
near.attention.qk_norm = {}
far.attention.qk_norm = "none"
0.ffn.width = 40

[encoder]
depth = 6

[decoder]
attention.pattern = "causal & (window(8) | chunked(16))"
layers.far.position.buckets = 16

[embed]
kind = "tokens"
scale = "sqrt(width)"
shared = false

[ids]
start = 0
eos = [1, 2]
"""


@pytest.mark.parametrize("text", [RICH, small().to_toml(), small({"position": "alibi", "init": "gpt2"}).to_toml()])
def test_toml_round_trip_is_equal_with_same_hash_and_same_text(text: str):
    spec = ModelSpec.from_toml(text)
    again = ModelSpec.from_toml(spec.to_toml())
    assert again == spec
    assert hash(again) == hash(spec)
    assert again.to_toml() == spec.to_toml()


def test_toml_of_a_rich_spec_means_what_it_says():
    spec = ModelSpec.from_toml(RICH)
    encoder, decoder = spec.stacks
    assert (encoder.depth, decoder.depth) == (6, 4)
    assert [layer.attention.qk_norm is not None for layer in decoder.layers] == [True, True, True, False]
    assert str(decoder.layers[0].attention.pattern) == "causal & (window(8) | chunked(16))"
    assert str(encoder.layers[0].attention.pattern) == "full"
    assert [layer.ffn.width for layer in encoder.layers] == [40, None, None, None, None, None]
    assert [layer.position.buckets for layer in encoder.layers] == [32] * 6
    assert [layer.position.buckets for layer in decoder.layers] == [32, 32, 32, 16]
    assert spec.norm.leaf.eps == 1e-12
    assert spec.norm.placement == "post"
    assert spec.ids.eos == (1, 2)


def test_specs_that_differ_in_one_field_are_not_equal():
    assert small({"position": {"kind": "rope", "theta": 5.0}}) != small()
    assert small({"layers": {"0": {"ffn": {"width": 8}}}}) != small()


def test_derived_sizes_stay_unset_in_the_written_form():
    data = small({"attention": {"heads": 4}}).to_data()
    assert {"kv_heads", "head_dim", "pattern", "softcap", "qk_norm"} & data["attention"].keys() == set()
    assert "width" not in data["ffn"]
    assert "final" not in data["norm"]
    assert "width" not in data["embed"]


def test_an_order_given_as_list_is_written_as_list():
    spec = small({"layers": {"order": ["a", "b", "b", "a"], "a": {}, "b": {"ffn": {"width": 8}}}})
    assert spec.to_data()["layers"] == {"order": ["a", "b", "b", "a"], "a": {}, "b": {"ffn": {"width": 8}}}
    assert ModelSpec.from_toml(spec.to_toml()) == spec


def test_an_empty_text_that_is_no_default_is_not_dropped():
    with pytest.raises(SpecError, match=r"attention\.scale: '' is not a scale"):
        ModelSpec(vocab=8, width=8, depth=1, context=8, attention=Attention(heads=2, scale=""))


def test_a_spec_made_in_python_equals_the_one_that_is_read():
    made = ModelSpec(
        vocab=32,
        width=16,
        depth=4,
        context=32,
        attention=Attention(heads=4, kv_heads=2, softcap=30),
        position=Position.named("alibi")(),
        norm=NormPlacement(leaf=Norm.named("layernorm")(), placement="post"),
        layers=Layers(order="a, b", groups={"a": {}, "b": {"attention.pattern": "window(4)", "ffn": {"width": 8}}}),
        init=Init.named("normal")(std=0.01),
    )
    read = small({
        "attention": {"heads": 4, "kv_heads": 2, "softcap": 30.0},
        "position": "alibi",
        "norm": {"kind": "layernorm", "placement": "post"},
        "layers": {"order": "a, b", "a": {}, "b": {"attention": {"pattern": "window(4)"}, "ffn": {"width": 8}}},
        "init": {"kind": "normal", "std": 0.01},
    })  # fmt: skip
    assert made == read
    assert hash(made) == hash(read)


def test_a_spec_made_in_python_from_plain_data_holds_nodes():
    made = ModelSpec(vocab=32, width=16, depth=4, context=32, attention={"heads": 4, "kv_heads": 2}, position="rope")
    assert made == small()
    assert isinstance(made.attention, Attention)
    assert isinstance(made.position, Position)


def test_a_spec_made_in_python_is_checked_as_one_that_is_read():
    with pytest.raises(SpecError) as caught:
        ModelSpec(vocab=8, width=8, depth=1.5, context=8, attention=Attention(heads=2, kv_heads=3))
    assert caught.value.problems == (
        "depth: 1.5 is not a whole number",
        "attention.kv_heads: 3 does not divide heads=2; pick one of [1, 2]",
    )


@pytest.mark.parametrize("schema", [2, 0, "1", 1.0, True])
def test_another_schema_version_is_refused(schema: object):
    assert problems_with({"schema": schema}) == [f"schema: {schema!r} is not the version that this anyformer reads (1)"]


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("widht", "'width'"),
        ("heads", "'attention.heads'"),
        ("softcap", "'attention.softcap' or 'head.softcap'"),
        ("gain", "'norm.gain'"),
        ("attention.sclae", "'scale'"),
        ("attention.mixer.sinkz", "'sinks'"),
        ("attention.qk_norm.whne", "'when'"),
        ("norm.plcement", "'placement'"),
        ("norm.esp", "'eps'"),
        ("position.thta", "'theta'"),
        ("position.scaling.factr", "'factor'"),
        ("block.wirng", "'wiring'"),
        ("loss.zz", "'z'"),
        ("ids.eso", "'eos'"),
        ("layers.0.width", "'ffn.width'"),
        ("layers.0.fnn", "'ffn'"),
        ("layers.0.ffn.wdth", "'width'"),
    ],
)
def test_unknown_key_at_any_level_is_refused_with_the_nearest(path: str, right: str):
    base = {"position": {"kind": "rope", "scaling": {"kind": "linear", "factor": 2}}} if "position" in path else {}
    base |= {"attention": {"heads": 4, "mixer": {"kind": "softmax"}}} if "mixer" in path else {}
    (line,) = problems_with({**base, path: 1})
    assert line.split(" (known")[0] == f"{path}: is unknown; did you mean {right}?"


def test_unknown_key_without_a_near_one_lists_all_that_are_known():
    known = "balance, label_smoothing, router_z, z"
    assert problems_with({"loss.focus": 1}) == [f"loss.focus: is unknown (known: {known})"]


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("position.kind", "alibbi", "position.kind: 'alibbi' is unknown; did you mean 'alibi'?"),
        ("position", "RoPE", "position.kind: 'RoPE' is unknown; did you mean 'rope'?"),
        ("norm.kind", "rms_norm", "norm.kind: 'rms_norm' is unknown; did you mean 'rmsnorm'?"),
        ("attention.qk_norm", "layrnorm", "attention.qk_norm.kind: 'layrnorm' is unknown; did you mean 'layernorm'?"),
        ("topology", "encodr", "topology: 'encodr' is unknown; did you mean 'encoder'?"),
        ("norm.placement", "sandwhich", "norm.placement: 'sandwhich' is unknown; did you mean 'sandwich'?"),
        ("attention.pattern", "windw(4)", "attention.pattern: 'windw' is unknown; did you mean 'window'?"),
        ("init", "xavier", f"init.kind: 'xavier' is unknown (known: {', '.join(Init.kinds())})"),
    ],
)
def test_unknown_kind_is_refused_with_the_nearest(path: str, value: str, line: str):
    (found,) = problems_with({path: value})
    assert found.startswith(line)


@pytest.mark.parametrize(
    ("path", "value", "line"),
    [
        ("width", "16", "width: '16' is not a whole number"),
        ("width", 16.0, "width: 16.0 is not a whole number"),
        ("depth", True, "depth: True is not a whole number"),
        ("context", [1], "context: [1] is not a whole number"),
        ("attention", 4, "attention: 4 is not a table"),
        ("attention.dropout", "some", "attention.dropout: 'some' is not a finite number"),
        ("attention.softcap", float("inf"), "attention.softcap: inf is not a finite number"),
        ("attention.softcap", 10**400, f"attention.softcap: {10**400} is not a finite number"),
        ("attention.bias", True, "attention.bias: True is not a text"),
        ("attention.scale", [1], "attention.scale: [1] is neither a finite number nor a text"),
        ("attention.cross_position", 1, "attention.cross_position: 1 is not true or false"),
        ("position", 3,
         f"position: 3 is neither a kind nor a table with one; pick one of {', '.join(Position.kinds())}"),
        ("position", {"theta": 3.0}, f"position.kind: is missing; pick one of {', '.join(Position.kinds())}"),
        ("topology", 1, "topology: 1 is not one of decoder, encoder, encoder-decoder"),
        ("ids.eos", 3, "ids.eos: 3 is not a list, each item a whole number"),
        ("ids.eos", [3, "x"], "ids.eos[1]: 'x' is not a whole number"),
        ("layers", "a, b", "layers: 'a, b' is not a table with an order and groups"),
        ("layers.order", 3, "layers.order: 3 is neither a text such as '5 local, 1 global' nor a list of names"),
        ("layers.order", ["a", 1],
         "layers.order: ['a', 1] is neither a text such as '5 local, 1 global' nor a list of names"),
        ("layers.0", 3, "layers.0: 3 is not a table of overrides"),
        ("layers.0.ffn.width", "x", "layers.0.ffn.width: 'x' is not a whole number"),
        ("attention.pattern", "window('x')",
         "attention.pattern: window in \"window('x')\": size 'x' is not a whole number"),
    ],
)  # fmt: skip
def test_wrong_type_is_refused_where_it_stands(path: str, value: object, line: str):
    assert problems_with({path: value}) == [line]


@pytest.mark.parametrize("name", ["width", "depth", "context", "attention"])
def test_missing_size_is_one_line_and_hides_no_other_mistake(name: str):
    wrong = {"norm": {"eps": -1.0}}
    assert problems_with({name: None, **wrong}) == [
        f"{name}: is missing; it has no default",
        "norm.eps: -1.0 is not above 0",
    ]


def test_five_mistakes_of_different_sorts_are_named_in_one_message():
    text = """
    vocab = 32
    width = 16
    depth = "four"
    context = 32
    [attention]
    heads = 4
    kv_heads = 3
    [position]
    kind = "alibbi"
    [loss]
    zz = 0.1
    [ffn]
    kind = "swiglu"
    dropout = 1.5
    """
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_toml(text, "my.toml")
    assert str(caught.value) == "\n  ".join([
        "invalid spec (my.toml):",
        "depth: 'four' is not a whole number",
        f"position.kind: 'alibbi' is unknown; did you mean 'alibi'? (known: {', '.join(Position.kinds())})",
        "loss.zz: is unknown; did you mean 'z'? (known: balance, label_smoothing, router_z, z)",
        "attention.kv_heads: 3 does not divide heads=4; pick one of [1, 2, 4]",
        "ffn.dropout: 1.5 is not in [0, 1)",
    ])  # fmt: skip


def test_message_order_follows_the_file_not_the_hash_seed():
    lines = problems_of(data_with({"zeta": 1, "alpha": 2, "mu": 3}))
    assert [line.split(":")[0] for line in lines] == ["zeta", "alpha", "mu"]


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ("width = 16\ndepth = = 4\n", "(at line 2, column 9)"),
        ("width = 16\nwidth = 17\n", "(at line 2, column 11)"),
        ("[norm]\n[norm]\n", "(at line 2, column 6)"),
    ],
)
def test_toml_that_cannot_be_parsed_names_file_line_and_column(text: str, place: str, tmp_path):
    path = tmp_path / "broken.toml"
    path.write_text(text)
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_file(path)
    first, second = str(caught.value).split("\n")
    assert first == f"invalid spec ({path}):"
    assert second.startswith("  not TOML: ")
    assert second.endswith(place)


def test_file_that_is_not_utf8_is_refused_with_the_byte(tmp_path):
    path = tmp_path / "latin.toml"
    path.write_bytes(b"# caf\xe9\nwidth = 16\n")
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_file(path)
    assert str(caught.value) == f"invalid spec ({path}):\n  is not UTF-8 text (byte 5)"


def test_file_that_is_missing_is_refused_by_name(tmp_path):
    path = tmp_path / "none.toml"
    with pytest.raises(SpecError) as caught:
        ModelSpec.from_file(path)
    assert str(caught.value) == f"invalid spec ({path}):\n  can't be read: No such file or directory"


def test_file_with_a_byte_order_mark_is_read(tmp_path):
    path = tmp_path / "bom.toml"
    path.write_bytes(b"\xef\xbb\xbf" + small().to_toml().encode())
    assert ModelSpec.from_file(path) == small()


def test_reading_does_not_change_the_data_it_was_given():
    data = data_with({"schema": 1, "layers": {"order": "a", "a": {"attention": {"heads": 2}}}})
    before = repr(data)
    ModelSpec.from_data(data).vary({"attention.heads": 8})
    assert repr(data) == before
    assert repr(SMALL) == repr(data_with({}))


def test_optional_nodes_are_switched_by_true_false_and_none():
    assert small({"attention.qk_norm": True}).attention.qk_norm is not None
    assert small({"attention.qk_norm": {}}) == small({"attention.qk_norm": True})
    assert small({"attention.qk_norm": False}) == small({"attention.qk_norm": "none"}) == small()
    assert small({"norm.ffn_placement": "none"}).norm.ffn_placement == "none"
