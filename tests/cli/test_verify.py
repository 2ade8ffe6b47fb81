"""`anyformer verify`: what it prints, and how it ends."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.families.family import Family
from anyformer.parts.paged_cache import PagedKVCache
from tests.cli.command import run, widest
from tests.cli.small_run import TEXT, small_run
from tests.contract.draw import BASE


@pytest.fixture
def folder(tmp_path):
    """A small model with a tokenizer, in the format of Llama."""
    family = Family.named("llama")
    own = tmp_path / "own"
    _, words = small_run(own)
    spec = family.spec_from(family.small | {"vocab_size": words.vocab})
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
        (["packing"], 2, "the following arguments are required: SPEC"),
        (["packing", "lama-3-8b"], 2, "the nearest presets are llama-3-8b"),
        (["packing", "llama-3-8b", "--documents", "1"], 2, "1 is not at least 2"),
        (["packing", "llama-3-8b", "--length", "0"], 2, "0 is not at least 1"),
        (["packing", "llama-3-8b", "--set", "widht=3"], 2, "did you mean 'width'?"),
        (["packing", "vit-b-16"], 2, "embed.kind: 'patches' reads pixel_values"),
        (
            ["packing", "bert-base", "--set", "head.kind=sequence", "--set", "head.labels=3"],
            2,
            "head.kind: a 'sequence' head gives one answer for a whole row",
        ),
        (["packing", "llama-3-70b", "--full"], 2, "leave out --full"),
        (["packing", "gpt2-small", "--length", "129"], 2, "length: 129 is more than the 128 positions"),
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
    assert "anyformer verify packing llama-3-8b" in run(capsys, "verify", "packing", "--help").out
    ran = run(capsys, "verify", "parity", "--help")
    assert ran.status == 0
    assert "anyformer verify parity path/to/llama" in ran.out


def test_packing_of_a_large_preset_is_made_small_and_says_to_what(capsys):
    ran = run(capsys, "verify", "packing", "gemma-3-4b")
    assert ran.status == 0, ran.err
    said = " ".join(ran.out.split())
    assert "made small: width 64, 2 layers, 4 heads of 16 (2 of keys), vocabulary 101" in said
    assert "patterns window(12); random weights, float64" in said
    assert "document 3 0 0 0 1" in said
    assert "packed equals alone, and nothing leaks" in said
    assert widest(ran.out.splitlines()) <= 100


def test_packing_of_an_encoder_decoder_as_json_has_both_lengths(capsys):
    ran = run(capsys, "verify", "packing", "t5-small", "--documents", "2", "--length", "11", "--seed", "3", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["passed"] is True
    assert [document["tokens"] for document in ran.json["documents"]] == [[3, 2], [11, 8]]
    assert ran.json["documents"][0]["moved_by"][1] == 0
    assert ran.json["documents"][0]["moved_by"][0] > 0.01


def test_packing_of_a_folder_checks_its_own_weights(capsys, folder):
    ran = run(capsys, "verify", "packing", str(folder), "--full")
    assert ran.status == 0, ran.err
    assert "its own weights" in " ".join(ran.out.split())
    (folder / "model.safetensors").rename(folder / "elsewhere")
    ran = run(capsys, "verify", "packing", str(folder))
    assert (ran.status, "random weights" in " ".join(ran.out.split())) == (0, True)


def test_packing_of_weights_with_changes_is_refused(capsys, folder):
    ran = run(capsys, "verify", "packing", str(folder), "--set", "position.kind=alibi")
    assert ran.status == 2
    assert "holds weights, which fit its own spec only" in ran.err


def test_packing_of_a_spec_file_that_is_small_is_checked_as_it_is(capsys, tmp_path):
    path = tmp_path / "mine.toml"
    path.write_text(af.spec(BASE, {"attention.pattern": "window(40)"}).to_toml())
    ran = run(capsys, "verify", "packing", str(path), "--length", "30")
    assert ran.status == 0, ran.err
    said = " ".join(ran.out.split())
    assert "made small" not in said
    assert "patterns span 40 tokens, more than the longest document has; --length 41 reaches past it" in said


def test_packing_of_an_approximate_mixer_says_what_it_is_held_to(capsys):
    changes = ("attention.kv_heads=8", "attention.heads=8", "attention.mixer.kind=lsh")
    ran = run(capsys, "verify", "packing", "llama-3-8b", *(part for each in changes for part in ("--set", each)))
    assert ran.status == 0, ran.err
    said = " ".join(ran.out.split())
    assert "for information: its mixer is approximate" in said
    assert "it is held to no leak, and to the same output twice" in said
    assert "nothing leaks" in said


def test_packing_that_leaks_fails_and_names_the_documents(capsys, monkeypatch):
    from anyformer.model import token_layout

    honest = token_layout.tokens_of
    monkeypatch.setattr(token_layout, "tokens_of", lambda some: honest(some)._replace(document=0))
    ran = run(capsys, "verify", "packing", "llama-3-8b", "--documents", "2")
    assert ran.status == 1
    assert "document 0 leaks into document 1" in ran.out
    assert "packed differs from alone" in ran.out
    ran = run(capsys, "verify", "packing", "llama-3-8b", "--documents", "2", "--json")
    assert (ran.status, ran.json["leaks"]) == (1, [[0, 1], [1, 0]])


def test_generation_of_a_run_prints_a_row_for_each_way(capsys, tmp_path):
    small_run(tmp_path / "run")
    ran = run(capsys, "verify", "generation", str(tmp_path / "run"), "--prompts", "2", "--new", "4")
    assert ran.status == 0, ran.err
    for way in (
        "without a cache",
        "padded left",
        "padded right",
        "streamed",
        "in pieces",
        "look-up",
        "continuous batching",
    ):
        assert way in ran.out
    # The path before it may take a line of its own.
    assert "its own weights, float64 on cpu" in " ".join(ran.out.split())
    assert "the same tokens in every way: 40 answers, 0 mismatches" in ran.out
    assert widest(ran.out.splitlines()[1:]) <= 100


def test_generation_of_a_preset_as_json_is_one_document(capsys):
    ran = run(
        capsys, "verify", "generation", "t5-small", "--dtype", "float32", "--prompts", "2", "--new", "4", "--json"
    )  # fmt: skip
    assert ran.status == 0, ran.err
    assert ran.json["passed"] is True
    assert ran.json["weights"].startswith("made small")
    assert (ran.json["dtype"], ran.json["tie"], ran.json["limit"]) == ("float32", 1e-4, None)
    ways = {row["way"]: row for row in ran.json["ways"]}
    assert "no prompt to cut" in ways["prompt in pieces"]["absent"]
    assert ways["continuous batching"]["answers"] == 4
    assert ways["continuous batching"]["mismatches"] == 0


def test_generation_that_differs_says_where_and_ends_with_1(capsys, tmp_path, monkeypatch):
    small_run(tmp_path / "run")
    honest = PagedKVCache.update
    monkeypatch.setattr(PagedKVCache, "update", lambda self, layer, k, v, **more: honest(self, layer, k, -v, **more))
    ran = run(capsys, "verify", "generation", str(tmp_path / "run"), "--prompts", "2", "--new", "4")
    assert ran.status == 1
    assert "differs" in ran.out
    assert "continuous batching: prompt 0, greedy, new token" in ran.out


def test_generation_of_what_continues_nothing_is_refused(capsys, tmp_path):
    (tmp_path / "encoder.toml").write_text(
        af.spec(BASE, {"topology": "encoder", "attention.pattern": "full"}).to_toml()
    )
    for given, said in (
        ((str(tmp_path / "encoder.toml"),), "an encoder reads a text at once"),
        (("llama-3-8b", "--device", "cude"), "--device: 'cude' is neither cpu nor cuda"),
        (("llama-3-8b", "--prompts", "1"), "1 is not at least 2"),
    ):
        ran = run(capsys, "verify", "generation", *given)
        assert ran.status == 2
        assert said in ran.err
