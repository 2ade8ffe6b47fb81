"""`--ignore-keys`: every command that reads a published folder refuses an unknown key, and goes on if told to."""

import io
import json
import sys

import pytest

import anyformer as af
from tests.cli.command import run
from tests.cli.small_run import small_run

pytestmark = pytest.mark.filterwarnings("default:.*passed over")
REFUSED = {"per_layer_config": {"0": {"hidden_act": "relu"}}, "layer_types": ["full_attention"] * 2}
KEYS = ",".join(REFUSED)

COMMANDS = {
    "generate": ["generate", "{folder}", "the", "--max-new-tokens", "3", "--greedy"],
    "chat": ["chat", "{folder}", "--plain", "--max-new-tokens", "3"],
    "eval": ["eval", "{folder}", "{text}", "--json"],
    "explain": ["explain", "{folder}", "--json"],
    "explain a prompt": ["explain", "{folder}", "--prompt", "the cat", "--json"],
    "diff": ["diff", "{folder}", "llama-2-7b", "--json"],
    "convert": ["convert", "{folder}", "{new}", "--json"],
    "verify packing": ["verify", "packing", "{folder}", "--json"],
    "verify generation": ["verify", "generation", "{folder}", "--json", "--prompts", "2", "--new", "2", "--length", "5"],
    "bench generate": ["bench", "generate", "{folder}", "--json", "--lengths", "4", "--batch", "1", "--new", "2",
                       "--repeats", "1", "--cached-only"],
}  # fmt: skip


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A Llama, as published, with two keys that nobody here can read and one that nobody reads anywhere."""
    made, place = tmp_path_factory.mktemp("run"), tmp_path_factory.mktemp("hf")
    model, tokenizer = small_run(made)
    af.save(model, place, format="hf")
    tokenizer.save(place)
    config = json.loads((place / "config.json").read_text()) | REFUSED | {"unsloth_version": "2024.8"}
    (place / "config.json").write_text(json.dumps(config))
    return place


@pytest.mark.parametrize("name", list(COMMANDS))
def test_command_refuses_unknown_keys_all_at_once_and_goes_on_without_them(name, folder, tmp_path, capsys, monkeypatch):
    (tmp_path / "text").write_text("the cat sat on the mat\n" * 5)
    given = {"folder": folder, "text": tmp_path / "text", "new": tmp_path / "new"}
    argv = [word.format_map(given) for word in COMMANDS[name]]
    monkeypatch.setattr(sys, "stdin", io.StringIO("the cat\n"))
    refused = run(capsys, *argv)
    assert refused.status == 2
    assert all(f"{key}: is not a key that we know here" in refused.err for key in REFUSED)
    assert "--ignore-keys" in refused.err
    done = run(capsys, *argv, "--ignore-keys", KEYS)
    assert done.status == 0, done.err
    assert done.out
    assert done.err.count("passed over, as LlamaForCausalLM never reads them: unsloth_version\n") == 1


def test_verify_parity_tells_of_keys_and_compares_what_both_can_read(folder, capsys, tmp_path):
    config = json.loads((folder / "config.json").read_text())
    for key in REFUSED:
        del config[key]
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    # A width for the logits that the public class has a word for, and reads in no Llama.
    (tmp_path / "config.json").write_text(json.dumps(config | {"unpadded_vocab_size": None}))
    assert run(capsys, "verify", "parity", str(tmp_path), "--json").status == 2
    done = run(capsys, "verify", "parity", str(tmp_path), "--json", "--ignore-keys", "unpadded_vocab_size")
    assert "passed over" in done.err
    assert done.status == 0, done.err
    assert done.json["same"]


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["explain", "llama-2-7b", "--ignore-keys", "a"], "ignore_keys: llama-2-7b is no directory"),
        (["explain", "{folder}", "--ignore-keys", "a,,b"], "'a,,b' is no list of keys"),
        (["explain", "{folder}", "--ignore-keys", f"{KEYS},none"], "the file has no key 'none'"),
        (["explain", "{folder}", "--ignore-keys", f"{KEYS},vocab_size"], "'vocab_size' is read and understood"),
    ],
)
def test_keys_that_there_is_nothing_to_ignore_of_are_refused(argv, message, folder, capsys):
    ran = run(capsys, *(word.format(folder=folder) for word in argv))
    assert ran.status == 2
    assert message in ran.err
