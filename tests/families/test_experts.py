"""Experts in files: every layout that a family knows is read, the released one is written, and damage is named."""

import json
import re

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError
from anyformer.families.checkpoint import save_published
from anyformer.families.family import Family, families
from anyformer.families.tensor_ops import Stacked

LAYOUTS = [
    (family.kind, i)
    for family in families()
    for i in range(len(getattr(family, "tensors", ()) and family.tensors.also))
]
SEVERAL = sorted({kind for kind, _ in LAYOUTS})


def small(kind):
    family = Family.named(kind)
    assert family is not None
    return family, family.spec_from(family.small)


def folder_of(kind, place, layout=None):
    """A model of a family, and its folder: as released, or in one of the other layouts."""
    family, spec = small(kind)
    model = af.build(spec, dtype=torch.float32, seed=5)
    save_published(model, place, family=kind)
    if layout is not None:
        parameters = dict(model.named_parameters())
        entries = family.table(spec).also[layout].entries(spec)
        tensors = {e.theirs: e.op.merge([parameters[n].detach() for n in e.ours]).contiguous() for e in entries}
        save_file(tensors, place / "model.safetensors")
    return model


def rewrite(place, change):
    tensors = load_file(place / "model.safetensors")
    change(tensors)
    save_file(tensors, place / "model.safetensors")


@pytest.mark.parametrize(("kind", "layout"), LAYOUTS)
def test_folder_in_another_layout_gives_the_same_model(kind, layout, tmp_path, monkeypatch):
    model = folder_of(kind, tmp_path, layout)
    # Each part goes from the file to its place; nothing is put together on the way.
    for name in ("cat", "stack"):
        monkeypatch.setattr(torch, name, None)
    again = af.load(tmp_path)
    monkeypatch.undo()
    for (name, a), b in zip(again.named_parameters(), model.parameters(), strict=True):
        assert torch.equal(a, b), name


def test_families_with_a_tensor_for_each_expert_are_read_fused_too():
    assert {"qwen3_moe", "qwen2_moe", "mixtral", "glm4_moe", "olmoe", "granitemoe", "aria_text"} <= {*SEVERAL}
    assert {"gpt_oss", "llama4_text", "dbrx"}.isdisjoint(SEVERAL), "these are released in one layout only"


@pytest.mark.parametrize(
    ("kind", "name", "shape"),
    [
        ("qwen3_moe", "model.layers.0.mlp.experts.4.up_proj.weight", (12, 32)),
        ("mixtral", "model.layers.0.block_sparse_moe.experts.4.w3.weight", (40, 32)),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj", (5, 32, 80)),
        ("gpt_oss", "model.layers.0.mlp.experts.gate_up_proj_bias", (5, 80)),
        ("gpt_oss", "model.layers.0.mlp.experts.down_proj", (5, 40, 32)),
        ("llama4_text", "model.layers.0.feed_forward.experts.gate_up_proj", (5, 32, 24)),
        ("llama4_text", "model.layers.0.feed_forward.experts.down_proj", (5, 12, 32)),
        ("granitemoe", "model.layers.0.block_sparse_moe.input_linear.weight", (5, 80, 32)),
        ("aria_text", "model.layers.0.mlp.experts.fc1.weight", (5, 32, 80)),
        ("dbrx", "transformer.blocks.0.ffn.experts.mlp.w2", (60, 32)),
        ("ernie4_5_moe", "model.layers.1.mlp.moe_statics.e_score_correction_bias", (1, 5)),
    ],
)
def test_released_layout_is_what_is_written(kind, name, shape, tmp_path):
    folder_of(kind, tmp_path)
    assert load_file(tmp_path / "model.safetensors")[name].shape == shape


@pytest.mark.parametrize("kind", ["qwen3_moe", "mixtral", "glm4_moe"])
def test_expert_that_is_missing_is_named_and_nothing_is_loaded(kind, tmp_path):
    folder_of(kind, tmp_path)
    gone = next(
        name for name in load_file(tmp_path / "model.safetensors") if re.search(r"s\.[12]\..*experts\.3\.", name)
    )
    rewrite(tmp_path, lambda tensors: tensors.pop(gone))
    with pytest.raises(CheckpointError, match=rf"does not fit its spec:\n  {re.escape(gone)}: is missing$"):
        af.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "layout", "name", "shape"),
    [
        ("qwen3_moe", None, "model.layers.2.mlp.experts.1.down_proj.weight", (32, 11)),
        ("qwen3_moe", 0, "model.layers.2.mlp.experts.gate_up_proj", (5, 24, 31)),
        ("qwen3_moe", 0, "model.layers.2.mlp.experts.down_proj", (4, 32, 12)),
        ("granitemoe", 0, "model.layers.1.block_sparse_moe.experts.gate_up_proj", (6, 80, 32)),
        ("gpt_oss", None, "model.layers.1.mlp.experts.gate_up_proj", (5, 80, 32)),
        ("dbrx", None, "transformer.blocks.1.ffn.experts.mlp.v1", (59, 32)),
    ],
)
def test_expert_of_another_shape_is_named_with_both(kind, layout, name, shape, tmp_path):
    folder_of(kind, tmp_path, layout)
    wanted = tuple(load_file(tmp_path / "model.safetensors")[name].shape)
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.zeros(shape)}))
    with pytest.raises(CheckpointError, match=re.escape(f"{name}: has shape {shape}, the spec says {wanted}")):
        af.load(tmp_path)


def test_folder_with_layers_in_two_layouts_is_refused_by_the_names_that_are_missing(tmp_path):
    folder_of("qwen3_moe", tmp_path / "fused", 0)
    folder_of("qwen3_moe", tmp_path / "each")
    fused = load_file(tmp_path / "fused" / "model.safetensors")

    def mix(tensors):
        for name in [name for name in tensors if name.startswith("model.layers.2.mlp.experts")]:
            del tensors[name]
        tensors |= {name: tensor for name, tensor in fused.items() if name.startswith("model.layers.2.mlp.experts")}

    rewrite(tmp_path / "each", mix)
    with pytest.raises(CheckpointError) as info:
        af.load(tmp_path / "each")
    lines = str(info.value).splitlines()[1:]
    assert sum(line.endswith("is missing") for line in lines) == 3 * 5
    assert sum(line.endswith("is no parameter of this spec") for line in lines) == len(lines) - 3 * 5 == 2


@pytest.mark.parametrize("kind", ["glm4_moe", "hy_v3"])
def test_extra_layer_that_predicts_further_tokens_is_left_out_and_another_is_not(kind, tmp_path):
    model = folder_of(kind, tmp_path)
    file = tmp_path / "model.safetensors"
    extra = {name.replace("layers.2.", "layers.3."): t for name, t in load_file(file).items() if ".layers.2." in name}
    more = {f"model.layers.3.{name}.weight": torch.zeros(32) for name in ("enorm", "hnorm", "eh_proj")}
    more |= {
        "model.layers.3.shared_head.head.weight": torch.zeros(61, 32),
        "model.layers.3.embed_tokens.weight": torch.zeros(61, 32),
    }
    rewrite(tmp_path, lambda tensors: tensors.update(extra | more))
    again = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))
    # A config that says one layer too few is a mistake, and would drop a layer of the model.
    rewrite(tmp_path, lambda tensors: [tensors.pop(name) for name in more])
    with pytest.raises(CheckpointError, match=r"model\.layers\.3\.self_attn\.q_proj\.weight: is no parameter"):
        af.load(tmp_path)


@pytest.mark.parametrize(
    ("kind", "name"),
    [("exaone_moe", "mtp.layers.0.self_attn.q_proj.weight"), ("mellum", "mtp.fc.weight"),
     ("ernie4_5_moe", "model.mtp_block.0.mlp.up_proj.weight")],
)  # fmt: skip
def test_tensors_of_extra_predictions_are_left_out(kind, name, tmp_path):
    folder_of(kind, tmp_path)
    plain = af.load(tmp_path)
    rewrite(tmp_path, lambda tensors: tensors.update({name: torch.zeros(3)}))
    again = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(plain.parameters(), again.parameters(), strict=True))


@pytest.mark.parametrize("shapes", [[(3, 4, 5), (3, 4, 5)], [(3, 4), (3, 4)], [(3, 4, 5)]])
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("interleaved", [False, True])
def test_stacked_experts_undone_give_the_same_elements(shapes, transposed, interleaved):
    op = Stacked(transposed=transposed, interleaved=interleaved)
    ours = [torch.randn(shape) for shape in shapes]
    theirs = op.merge(ours)
    assert tuple(theirs.shape) == op.shape(shapes)
    assert all(torch.equal(a, b) for a, b in zip(op.split(theirs, shapes), ours, strict=True))
    if op.keeps(shapes):
        assert torch.equal(theirs, ours[0])


def test_stacked_experts_lie_as_the_public_classes_hold_them():
    gate, up = torch.arange(8.0).view(2, 2, 2), 10 + torch.arange(8.0).view(2, 2, 2)
    assert Stacked().merge([gate, up])[0].tolist() == [[0, 1], [2, 3], [10, 11], [12, 13]]
    assert Stacked(transposed=True).merge([gate, up])[0].tolist() == [[0, 2, 10, 12], [1, 3, 11, 13]]
    both = Stacked(transposed=True, interleaved=True)
    assert both.merge([gate, up])[0].tolist() == [[0, 10, 2, 12], [1, 11, 3, 13]]
    assert Stacked(flat=True).merge([gate]).tolist() == gate.view(4, 2).tolist()
    assert Stacked(flat=True, transposed=True).merge([gate]).tolist() == [[0, 2], [1, 3], [4, 6], [5, 7]]


def test_layout_is_chosen_by_its_names_also_where_a_file_lacks_the_prefix(tmp_path):
    model = folder_of("qwen3_moe", tmp_path, 0)
    bare = {name.removeprefix("model."): t for name, t in load_file(tmp_path / "model.safetensors").items()}
    save_file(bare, tmp_path / "model.safetensors")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["Qwen3MoeForCausalLM"]
    again = af.load(tmp_path)
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_folder_with_another_number_of_experts_is_refused_by_shapes_in_its_own_layout(tmp_path):
    folder_of("qwen3_moe", tmp_path, 0)
    file = tmp_path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | {"num_experts": 7}))
    with pytest.raises(CheckpointError) as info:
        af.load(tmp_path)
    assert "model.layers.0.mlp.experts.down_proj: has shape (5, 32, 12), the spec says (7, 32, 12)" in str(info.value)
    assert "is missing" not in str(info.value)
