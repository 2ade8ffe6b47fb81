"""`anyformer verify`: what it prints, and how it ends."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.families.family import Family
from tests.cli.command import run, widest
from tests.cli.small_run import TEXT, small_run


@pytest.fixture
def folder(tmp_path):
    """A small model with a tokenizer, in the format of Llama."""
    family = Family.named("llama")
    own = tmp_path / "own"
    _, words = small_run(own)
    spec = family.spec_from(family.tiny() | {"vocab_size": words.vocab})
    af.save(af.build(spec, seed=1), tmp_path / "llama", format="hf")
    shutil.copy(own / "tokenizer.json", tmp_path / "llama")
    return tmp_path / "llama"


def damaged(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "damaged")
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.2.mlp.up_proj.weight"][0] += 0.5
    save_file(tensors, tmp_path / "damaged" / "model.safetensors", {"format": "pt"})
    return tmp_path / "damaged"


def test_parity_of_a_checkpoint_prints_a_row_for_each_place(capsys, folder):
    ran = run(capsys, "verify", "parity", str(folder))
    assert ran.status == 0, ran.err
    for place in ("decoder embedding", "decoder layer 0", "decoder layer 2", "final hidden", "logits"):
        assert place in ran.out
    assert "LlamaForCausalLM" in ran.out
    assert "float64, limit 1e-07" in ran.out
    assert "100.0%" in ran.out
    assert "the same computation" in ran.out
    assert widest(ran.out.splitlines()[2:]) <= 100


def test_parity_on_a_text_compares_both_inputs(capsys, folder, tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    ran = run(capsys, "verify", "parity", str(folder), "--text", str(tmp_path / "notes.txt"), "--json")
    assert ran.status == 0, ran.err
    assert [found["input"] for found in ran.json["inputs"]] == ["random ids", "text"]
    assert ran.json["same"] is True
    row = ran.json["inputs"][1]["rows"][-1]
    assert row["place"] == "logits"
    assert row["top1"] == 1.0
    assert 0 <= row["max"] <= ran.json["limit"]


def test_parity_of_a_damaged_copy_fails_and_names_the_layer(capsys, folder, tmp_path):
    ran = run(capsys, "verify", "parity", str(damaged(folder, tmp_path)), "--against", str(folder))
    assert ran.status == 1
    assert "differs, first at decoder layer 2 (model.layers.2 of the public class)" in ran.out
    ran = run(capsys, "verify", "parity", str(folder), "--against", str(tmp_path / "damaged"), "--json")
    assert ran.status == 1
    assert ran.json["inputs"][0]["first_difference"] == "decoder layer 2"


def test_parity_without_the_public_library_says_how_to_get_it(capsys, folder, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    ran = run(capsys, "verify", "parity", str(folder))
    assert ran.status == 1
    assert ran.err == "anyformer: this needs the library transformers: pip install 'anyformer[hf]'\n"


@pytest.mark.parametrize(
    ("argv", "status", "line"),
    [
        (
            ["parity", "nowhere"],
            2,
            "nowhere: there is no such directory; give one, or a name on the hub such as org/name",
        ),
        (["parity"], 2, "the following arguments are required: DIR"),
        (["partiy", "x"], 2, "invalid choice: 'partiy'"),
        ([], 2, "the following arguments are required: CHECK"),
        (["parity", "x", "--dtype", "bfloat16"], 2, "invalid choice: 'bfloat16'"),
        (["parity", "x", "--text", "nowhere.txt"], 2, "nowhere.txt: there is no such file"),
    ],
)
def test_verify_of_bad_input_says_what_is_wrong(capsys, argv, status, line):
    ran = run(capsys, "verify", *argv)
    assert ran.status == status
    assert line in ran.err


def test_parity_on_a_text_without_a_tokenizer_says_so(capsys, folder, tmp_path):
    (folder / "tokenizer.json").unlink()
    (tmp_path / "notes.txt").write_text(TEXT)
    ran = run(capsys, "verify", "parity", str(folder), "--text", str(tmp_path / "notes.txt"))
    assert ran.status == 2
    assert "tokenizer.json" in ran.err


def test_parity_of_a_model_that_no_class_can_hold_names_the_axis(capsys, tmp_path):
    small_run(tmp_path, {"attention.softcap": 3.0, "position.kind": "xl"})
    ran = run(capsys, "verify", "parity", str(tmp_path))
    assert ran.status == 2
    assert "for a published class" in ran.err


def test_parity_where_a_number_is_not_finite_fails_with_null(capsys, folder):
    tensors = load_file(folder / "model.safetensors")
    tensors["model.layers.0.mlp.up_proj.weight"][:] = torch.inf
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    ran = run(capsys, "verify", "parity", str(folder), "--json")
    assert ran.status == 1
    assert json.loads(ran.out)["inputs"][0]["rows"][-1]["max"] is None


def test_verify_help_shows_the_checks_and_an_example(capsys):
    assert "parity" in run(capsys, "verify", "--help").out
    ran = run(capsys, "verify", "parity", "--help")
    assert ran.status == 0
    assert "anyformer verify parity path/to/llama" in ran.out
