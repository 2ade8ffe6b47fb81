"""Problems that have nothing to do with each other are told in one message, whatever the command."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.families.family import Family
from tests.cli.command import run
from tests.cli.small_run import TEXT, small_run
from tests.cli.test_ignore_keys import REFUSED

ROOT = Path(af.__file__).parents[1]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    place = tmp_path_factory.mktemp("run")
    small_run(place)
    return place


@pytest.mark.parametrize(("argv", "parts"), [
    (["explain", "gpt2", "--html", "x.html", "--head", "3"], ["--html: ", "--head: "]),
    (["explain", "nosuch", "--machine", "zz"], ["'nosuch' is no preset", "machine 'zz' is unknown"]),
    (["explain", "nosuch", "--machine", "zz", "--head", "1"], ["'nosuch' is no preset", "machine 'zz' is unknown", "--head: "]),
    (["explain", "gpt2", "--layer", "99", "--head", "99"], ["layer 99", "--head: "]),
    (["explain", "{folder}", "--prompt", "the", "--layer", "99", "--head", "99"], ["--layer: 99", "--head: 99"]),
    (["diff", "nosuch1", "nosuch2"], ["'nosuch1' is no preset", "'nosuch2' is no preset"]),
    (["eval", "nosuch", "nosuch.txt", "other.txt"], ["nosuch: there is no such folder", "nosuch.txt: ", "other.txt: "]),
    (["generate", "nosuch", "hi", "--temperature", "-1", "--top-p", "3", "--top-k", "-2"],
     ["--temperature: -1 is not at least 0", "--top-p: 3 is more than 1", "--top-k: -2 is not at least 1"]),
    (["generate", "--temperature", "-1", "--seed", "x"], ["--temperature: -1", "--seed: 'x'", "required: MODEL"]),
    (["convert", "a", "b", "--dtype", "f9", "--kv-heads", "0"], ["--dtype: invalid choice: 'f9'", "--kv-heads: 0 is not"]),
    (["convert", "nosuch", "new", "--text", "nosuch.txt"], ["nosuch: there is no such directory", "nosuch.txt: "]),
])  # fmt: skip
def test_command_tells_all_independent_problems_in_one_message(capsys, folder, tmp_path, monkeypatch, argv, parts):
    monkeypatch.chdir(tmp_path)
    ran = run(capsys, *(word.format(folder=folder) for word in argv))
    assert ran.status == 2
    for part in parts:
        assert part in ran.err, ran.err


def test_config_with_two_bad_sizes_of_blocks_names_both():
    family = Family.named("big_bird")
    assert family is not None
    with pytest.raises(af.SpecError) as info:
        family.spec_from(family.small | {"block_size": 0, "num_random_blocks": -2})
    assert "block_size: 0 is not at least 1" in str(info.value)
    assert "num_random_blocks: -2 is not at least 0" in str(info.value)


@pytest.mark.parametrize(
    "argv", [["generate", "gpt2", "hi"], ["eval", "GPT2", "{text}"], ["chat", "gpt2-xl"], ["convert", "gpt2", "new"]]
)
def test_command_that_needs_weights_says_that_a_preset_has_none(capsys, tmp_path, monkeypatch, argv):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(TEXT)
    ran = run(capsys, *(word.format(text="notes.txt") for word in argv))
    assert ran.status == 2
    assert f"{argv[1]} is a preset: an architecture without weights; `anyformer explain {argv[1]}` shows it" in ran.err
    assert "`anyformer quickstart` trains one" in ran.err
    with pytest.raises(af.InputError, match="is a preset: an architecture without weights"):
        af.load(argv[1])


def test_command_takes_a_name_on_the_hub_as_load_does(capsys, folder, tmp_path, monkeypatch):
    from anyformer.families import io as hub

    asked = []
    monkeypatch.setattr(hub, "fetched", lambda name, revision=None: asked.append(name) or folder)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "notes.txt").write_text(TEXT)
    assert run(capsys, "eval", "org/name", "notes.txt", "--json").status == 0
    assert run(capsys, "generate", "org/name", "the", "--max-new-tokens", "2").status == 0
    assert {*asked} == {"org/name"}
    # A folder that is missing among others is no name on the hub.
    (tmp_path / "runs").mkdir()
    asked.clear()
    assert "there is no such folder" in run(capsys, "generate", "runs/mine", "the").err
    assert asked == []


def test_diff_ignores_a_key_in_the_folder_that_has_it(capsys, folder, tmp_path):
    places = [tmp_path / name for name in ("one", "two")]
    for place, (key, value) in zip(places, REFUSED.items(), strict=True):
        af.save(af.load(folder), place, format="hf")
        file = place / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | {key: value}))
    argv = ["diff", *map(str, places)]
    assert run(capsys, *argv).status == 2
    ran = run(capsys, *argv, "--ignore-keys", ",".join(REFUSED), "--json")
    assert ran.status == 0, ran.err
    ran = run(capsys, *argv, "--ignore-keys", f"{','.join(REFUSED)},nowhere")
    assert ran.status == 2
    assert "has key 'nowhere'" in ran.err
    assert all(str(place / "config.json") in ran.err for place in places)
    assert not any(key in ran.err for key in REFUSED)


def test_eval_without_anything_asks_for_what_it_needs(capsys, folder):
    ran = run(capsys, "eval")
    assert ran.status == 2
    assert "required: MODEL\n" in ran.err
    ran = run(capsys, "eval", str(folder))
    assert "a file (TEXT), or a part of the data such as --part valid" in ran.err


def test_empty_name_of_a_spec_is_refused(capsys, folder, monkeypatch):
    monkeypatch.chdir(folder)
    ran = run(capsys, "explain", "")
    assert ran.status == 2
    assert "the name is empty" in ran.err
    with pytest.raises(af.InputError, match="the name is empty"):
        af.spec("")


def test_quickstart_into_a_place_that_can_not_be_names_that_place_and_what_to_do(capsys):
    ran = run(capsys, "quickstart", "--out", "/proc/nowhere/x")
    assert ran.status == 2
    assert "/proc/nowhere/x: can't be written" in ran.err
    assert ".tmp-" not in ran.err
    assert "choose another place" in ran.err


def test_names_of_the_package_are_the_public_ones_only():
    code = "import anyformer; print(*(name for name in dir(anyformer) if not name.startswith('_')))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    # A module that is loaded is a name of its package.
    assert {*done.stdout.split()} - {"errors"} == {*af.__all__}
    assert not {"Any", "Mapping", "Path", "Sequence", "TYPE_CHECKING", "importlib", "annotations"} & {*dir(af)}
    assert {*af.__all__, "__version__", "__doc__"} <= {*dir(af)}
