"""Saving and loading: what is written, what is refused, and what a kill leaves behind."""

import os
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError, InputError
from tests.contract.draw import BASE


@pytest.fixture
def model():
    return af.build(af.spec(BASE | {"head": {"kind": "lm", "tied": True}}), seed=2)


def rewrite(folder, change):
    """Change the tensors of a saved model, keeping its metadata."""
    from safetensors import safe_open

    file = folder / "model.safetensors"
    with safe_open(file, framework="pt") as stored:
        metadata = stored.metadata()
    tensors = load_file(file)
    change(tensors)
    save_file(tensors, file, metadata)


def test_save_writes_two_files_and_nothing_else(model, tmp_path):
    af.save(model, tmp_path / "new" / "run")
    assert sorted(os.listdir(tmp_path / "new" / "run")) == ["model.safetensors", "spec.toml"]


def test_save_stores_a_tied_table_once(model, tmp_path):
    af.save(model, tmp_path)
    assert "head.weight" not in load_file(tmp_path / "model.safetensors")


def test_load_on_a_cpu_gives_float32_unless_told(model, tmp_path):
    af.save(model.to(torch.bfloat16), tmp_path)
    assert next(af.load(tmp_path).parameters()).dtype == torch.float32
    assert next(af.load(tmp_path, dtype=torch.bfloat16).parameters()).dtype == torch.bfloat16


def test_load_on_meta_allocates_nothing(model, tmp_path):
    af.save(model, tmp_path)
    assert all(p.is_meta for p in af.load(tmp_path, device="meta").parameters())


def test_save_over_an_older_model_replaces_it(model, tmp_path):
    af.save(model, tmp_path)
    other = af.build(af.spec(BASE), seed=9)
    af.save(other, tmp_path)
    assert torch.equal(af.load(tmp_path).embed.tokens.weight, other.embed.tokens.weight)


def test_save_that_fails_leaves_the_older_model(model, tmp_path, monkeypatch):
    af.save(model, tmp_path)

    def full_disk(tensors, place, metadata):
        place.write_bytes(b"half of a")
        raise OSError("no space left")

    monkeypatch.setattr("anyformer.model.native_checkpoint.save_file", full_disk)
    with pytest.raises(OSError, match="no space"):
        af.save(af.build(af.spec(BASE), seed=9), tmp_path)
    assert sorted(os.listdir(tmp_path)) == ["model.safetensors", "spec.toml"]
    assert torch.equal(af.load(tmp_path).embed.tokens.weight, model.embed.tokens.weight)


def test_save_of_a_meta_model_is_refused(tmp_path):
    with pytest.raises(InputError, match="meta"):
        af.save(af.build(af.spec(BASE), device="meta"), tmp_path)


def test_save_in_an_unknown_format_is_refused(model, tmp_path):
    with pytest.raises(InputError, match="'onnx' is unknown"):
        af.save(model, tmp_path, format="onnx")


def test_load_of_an_empty_directory_says_what_is_missing(tmp_path):
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        af.load(tmp_path)


def test_load_names_every_tensor_that_does_not_fit(model, tmp_path):
    af.save(model, tmp_path)

    def spoil(tensors):
        tensors["stray"] = torch.zeros(2)
        del tensors["decoder.final_norm.weight"]
        tensors["embed.tokens.weight"] = torch.zeros(3, 3)

    rewrite(tmp_path, spoil)
    with pytest.raises(CheckpointError) as info:
        af.load(tmp_path)
    for wanted in (
        "stray: is no parameter",
        "decoder.final_norm.weight: is missing",
        "embed.tokens.weight: has shape (3, 3)",
    ):
        assert wanted in str(info.value)


@pytest.mark.parametrize("length", [0, 5, 200, -10])
def test_load_of_a_truncated_file_is_refused_with_its_name(model, tmp_path, length):
    af.save(model, tmp_path)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    with pytest.raises(CheckpointError, match=r"model\.safetensors"):
        af.load(tmp_path)


def test_load_of_foreign_weights_is_refused(tmp_path):
    save_file({"x": torch.zeros(2)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="carries no spec"):
        af.load(tmp_path)


def test_load_with_an_edited_spec_warns_and_keeps_to_the_weights(model, tmp_path):
    af.save(model, tmp_path)
    (tmp_path / "spec.toml").write_text(model.spec.vary({"position.theta": 5.0}).to_toml())
    with pytest.warns(UserWarning, match="not the spec"):
        assert af.load(tmp_path).spec == model.spec


def test_spec_reads_a_saved_directory(model, tmp_path):
    af.save(model, tmp_path)
    assert af.spec(tmp_path) == af.spec(str(tmp_path)) == af.spec(tmp_path / "spec.toml") == model.spec
    shutil.rmtree(tmp_path)
