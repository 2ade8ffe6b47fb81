"""Directories of published models: what is read, what is refused, and that nothing outside is touched."""

import json
import os

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.checkpoint import save_published
from anyformer.families.family import Family
from anyformer.families.io import load, save, spec_of
from tests.contract.draw import BASE


@pytest.fixture
def model():
    family = Family.named("llama")
    assert family is not None
    return af.build(family.spec_from(family.small), seed=3)


@pytest.fixture
def folder(model, tmp_path):
    save_published(model, tmp_path)
    return tmp_path


def rewrite(folder, change):
    tensors = load_file(folder / "model.safetensors")
    change(tensors)
    save_file(tensors, folder / "model.safetensors")


def edit(folder, **changes):
    config = json.loads((folder / "config.json").read_text()) | changes
    (folder / "config.json").write_text(json.dumps(config))


def test_save_as_hf_writes_two_files_that_load_again(model, tmp_path):
    save(model, tmp_path, format="hf")
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors"]
    again = load(tmp_path)
    assert again.spec == spec_of(tmp_path) == model.spec
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_save_in_our_own_format_loads_again(model, tmp_path):
    save(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "spec.toml"]
    assert load(tmp_path).spec == model.spec


def test_save_in_an_unknown_format_is_refused(model, tmp_path):
    with pytest.raises(InputError, match=r"'onnx' is unknown \(known: anyformer, hf, gguf\)"):
        save(model, tmp_path, format="onnx")


def test_save_as_hf_over_our_own_format_is_refused(model, tmp_path):
    save(model, tmp_path)
    with pytest.raises(InputError, match="in our own format"):
        save(model, tmp_path, format="hf")


def test_save_as_hf_of_a_meta_model_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="meta"):
        save(af.build(model.spec, device="meta"), tmp_path, format="hf")


def test_save_as_hf_with_fewer_shards_leaves_no_older_ones(model, tmp_path):
    save_published(model, tmp_path, shard_bytes=20_000)
    assert (tmp_path / "model.safetensors.index.json").is_file()
    (tmp_path / "tokenizer.json").write_text("{}")
    save_published(model, tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["config.json", "model.safetensors", "tokenizer.json"]


def test_save_as_hf_for_a_named_family_writes_its_class(model, tmp_path):
    save_published(model, tmp_path, family="mistral")
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == ["MistralForCausalLM"]
    with pytest.raises(InputError, match="'nemo' is unknown"):
        save_published(model, tmp_path, family="nemo")


def test_save_as_hf_of_what_no_class_holds_says_why(model, tmp_path):
    odd = af.build(model.spec.vary({"attention.softcap": 3.0}))
    with pytest.raises(SpecError, match=r"attention\.softcap"):
        save(odd, tmp_path / "new", format="hf")
    assert not (tmp_path / "new").exists()


def test_load_on_a_cpu_gives_float32_unless_told(model, tmp_path):
    save_published(model.to(torch.bfloat16), tmp_path)
    assert next(load(tmp_path).parameters()).dtype == torch.float32
    assert next(load(tmp_path, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


def test_load_on_meta_allocates_nothing(folder):
    assert all(p.is_meta for p in load(folder, device="meta").parameters())


def test_load_gives_a_model_in_evaluation_mode(folder, model, tmp_path):
    assert not load(folder).training
    save(model, tmp_path / "own")
    assert not load(tmp_path / "own").training


def test_load_names_every_tensor_that_does_not_fit(folder):
    def spoil(tensors):
        tensors["model.layers.0.self_attn.q_norm.weight"] = torch.zeros(2)
        tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(4)
        del tensors["model.norm.weight"]
        tensors["lm_head.weight"] = torch.zeros(3, 3)

    rewrite(folder, spoil)
    with pytest.raises(CheckpointError) as info:
        load(folder)
    text = str(info.value)
    assert "model.layers.0.self_attn.q_norm.weight: is no parameter" in text
    assert "model.norm.weight: is missing" in text
    assert "lm_head.weight: has shape (3, 3)" in text
    assert "inv_freq" not in text


def test_load_of_a_tied_model_reads_its_head_instead_of_its_table(folder, model):
    spec = model.spec.vary({"head.tied": True})
    save_published(af.build(spec), folder)

    def move(tensors):
        tensors["lm_head.weight"] = tensors.pop("model.embed_tokens.weight")

    table = load(folder).embed.tokens.weight
    rewrite(folder, move)
    assert torch.equal(load(folder).embed.tokens.weight, table)


def test_load_of_a_tied_model_stored_twice_must_be_the_same_twice(folder, model):
    save_published(af.build(model.spec.vary({"head.tied": True})), folder)

    def double(tensors):
        tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].clone()

    rewrite(folder, double)
    load(folder)

    def differ(tensors):
        tensors["lm_head.weight"][0, 0] += 1

    rewrite(folder, differ)
    with pytest.raises(CheckpointError, match="set tie_word_embeddings to false"):
        load(folder)


def test_load_of_quantised_weights_is_refused(folder):
    rewrite(folder, lambda tensors: tensors.update({k: t.to(torch.int8) for k, t in tensors.items()}))
    with pytest.raises(CheckpointError, match="quantised"):
        load(folder)


def test_dtype_on_an_accelerator_is_the_checkpoint_s_own():
    from anyformer.model.native_checkpoint import default_dtype

    assert default_dtype(torch.device("cuda"), torch.bfloat16) == torch.bfloat16
    assert default_dtype(torch.device("cpu"), torch.bfloat16) == torch.float32


def released(kind, tmp_path, change):
    """A small checkpoint with the names of a released file, and the model that it must give."""
    family = Family.named(kind)
    assert family is not None
    model = af.build(family.spec_from(family.small), seed=4)
    save_published(model, tmp_path, family=kind)
    tensors = {}
    for name, tensor in load_file(tmp_path / "model.safetensors").items():
        tensors[change(name)] = tensor
    return model, tensors


def same(model, tmp_path, tensors):
    save_file(tensors, tmp_path / "model.safetensors")
    return all(torch.equal(a, b) for a, b in zip(load(tmp_path).parameters(), model.parameters(), strict=True))


def test_names_of_the_released_gpt2_are_read(tmp_path):
    model, tensors = released("gpt2", tmp_path, lambda name: name.removeprefix("transformer."))
    masks = {f"h.{i}.attn.{name}": torch.ones(1) for i in range(3) for name in ("bias", "masked_bias")}
    assert same(model, tmp_path, tensors | masks)


def test_names_of_the_released_bert_are_read(tmp_path):
    def old(name):
        return name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta")

    model, tensors = released("bert", tmp_path, old)
    unused = ("bert.pooler.dense.weight", "bert.pooler.dense.bias", "cls.seq_relationship.weight")
    assert same(model, tmp_path, tensors | {name: torch.ones(2) for name in unused})


def test_names_of_the_released_roberta_are_read(tmp_path):
    model, tensors = released("roberta", tmp_path, lambda name: name)
    twice = {"lm_head.decoder.weight": tensors["roberta.embeddings.word_embeddings.weight"].clone()}
    unused = ("roberta.pooler.dense.weight", "roberta.pooler.dense.bias", "roberta.embeddings.position_ids")
    assert same(model, tmp_path, tensors | twice | {name: torch.ones(2) for name in unused})


def test_names_that_the_public_vit_has_in_memory_are_read(tmp_path):
    inside = {"attention.attention.query": "attention.q_proj", "attention.output.dense": "attention.o_proj"}

    def now(name):
        for old, new in inside.items():
            if old in name:
                return name.replace(old, new).replace("encoder.layer", "layers")
        return name

    model, tensors = released("vit", tmp_path, now)
    unused = ("vit.pooler.dense.weight", "vit.pooler.dense.bias", "vit.embeddings.mask_token")
    assert same(model, tmp_path, tensors | {name: torch.ones(2) for name in unused})


def test_names_of_the_released_gpt_neox_are_read(tmp_path):
    model, tensors = released("gpt_neox", tmp_path, lambda name: name.replace("lm_head", "embed_out"))
    buffers = ("bias", "masked_bias", "rotary_emb.inv_freq")
    assert same(model, tmp_path, tensors | {f"gpt_neox.layers.0.attention.{name}": torch.ones(2) for name in buffers})


def test_names_of_the_released_t5_are_read(tmp_path):
    model, tensors = released("t5", tmp_path, lambda name: name)
    twice = {f"{stack}.embed_tokens.weight": tensors["shared.weight"].clone() for stack in ("encoder", "decoder")}
    extra = {"decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight": torch.ones(8, 4)}
    assert same(model, tmp_path, tensors | twice | extra)


@pytest.mark.parametrize(
    "name", ["../outside.safetensors", "/etc/passwd", "sub/model.safetensors", "weights.bin", "..", "a\n.safetensors"]
)
def test_index_that_names_a_file_elsewhere_is_refused(folder, name):
    (folder / "model.safetensors").rename(folder.parent / "outside.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"lm_head.weight": name}}))
    with pytest.raises(CheckpointError, match="not the name of a safetensors file beside it"):
        load(folder)


def test_index_that_names_a_missing_file_is_refused(folder):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"x": "gone.safetensors"}}))
    with pytest.raises(CheckpointError, match=r"gone\.safetensors is missing"):
        load(folder)


@pytest.mark.parametrize("index", ["{}", "[]", "{", '{"weight_map": []}'])
def test_index_that_can_not_be_used_is_refused(folder, index):
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(index)
    with pytest.raises(CheckpointError, match=r"model\.safetensors\.index\.json"):
        load(folder)


def test_tensor_in_two_shards_is_refused(folder):
    os.link(folder / "model.safetensors", folder / "twin.safetensors")
    (folder / "model.safetensors").rename(folder / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"a": "twin.safetensors", "b": "other.safetensors"}})
    )
    with pytest.raises(CheckpointError, match="stands in more than one file"):
        load(folder)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "tf_model.h5"])
def test_directory_with_pickles_only_is_refused_with_the_reason(folder, name):
    (folder / "model.safetensors").rename(folder / name)
    with pytest.raises(CheckpointError, match=f"holds {name} and no model.safetensors; such files can run code"):
        load(folder)


def test_directory_without_weights_is_refused(folder):
    (folder / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors nor"):
        load(folder)


@pytest.mark.parametrize("length", [0, 5, 200, -10])
def test_damaged_shard_is_refused_with_its_name(folder, length):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors: is damaged"):
        load(folder)


@pytest.mark.parametrize("text", ["{", "[1]", "\x00", "[" * 100_000, '{"a": 1} x'])
def test_config_that_is_no_table_is_refused(folder, text):
    (folder / "config.json").write_text(text)
    with pytest.raises(CheckpointError, match=r"config\.json"):
        spec_of(folder)


def test_config_beyond_a_sane_size_is_refused_unread(folder):
    (folder / "config.json").write_text(" " * (2**22 + 1))
    with pytest.raises(CheckpointError, match="at most 4194304 are read"):
        spec_of(folder)


def test_config_problems_carry_the_name_of_the_file(folder):
    edit(folder, hidden_act="mish")
    with pytest.raises(SpecError, match=r"config\.json.*\n.*hidden_act: 'mish'"):
        af.spec(folder)


def test_empty_directory_says_what_is_missing(tmp_path):
    with pytest.raises(SpecError, match=r"directory without a spec\.toml or a config\.json"):
        spec_of(tmp_path)
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        load(tmp_path)


def test_spec_of_a_folder_without_its_toml_is_the_one_that_the_weights_carry(tmp_path):
    spec = af.spec(BASE)
    af.save(af.build(spec), tmp_path)
    (tmp_path / "spec.toml").unlink()
    assert af.spec(tmp_path) == spec
