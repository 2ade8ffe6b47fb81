"""Hostile input: folders and files made to break a reader, read in a process of their own under an audit hook.

None may run code, start a program, open a connection or write; each is refused with the file that is at fault.
"""

import json
import os
import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer.errors import CheckpointError, InputError, SpecError
from anyformer.families.family import Family
from anyformer.families.io import load, spec_of
from anyformer.files import inside
from anyformer.model.safetensors_header import MOST, read_header
from tests.cli.small_run import small_run
from tests.families.watched import FILES, header_of, with_header

ROOT = Path(__file__).parents[2]
EXECUTIONS = 300
"""Of each kind of file."""
TENSOR = "model.layers.0.self_attn.q_proj.weight"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """A folder with nothing wrong in it."""
    place = tmp_path_factory.mktemp("good")
    family = Family.named("llama")
    _, words = small_run(tmp_path_factory.mktemp("own"))
    af.save(af.build(family.spec_from(family.small | {"vocab_size": words.vocab})), place, format="hf")
    words.save(place)
    return place


def watched(*argv):
    """What the process tells, once it has ended by itself."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.families.watched", *map(str, argv)],
        cwd=ROOT, capture_output=True, text=True, timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


class Bomb:
    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return os.system, (f"touch {self.mark}",)


def reheaded(change):
    """A sample whose safetensors header is changed."""

    def make(folder, mark):
        header, body = header_of((folder / "model.safetensors").read_bytes())
        header = change(header) or header
        (folder / "model.safetensors").write_bytes(with_header(header, body))

    return make


def reweighted(change):
    """A sample with other tensors."""

    def make(folder, mark):
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors", {"format": "pt"})

    return make


def configured(**changes):
    """A sample with another config."""

    def make(folder, mark):
        config = json.loads((folder / "config.json").read_text()) | changes
        (folder / "config.json").write_text(json.dumps(config))

    return make


def indexed(name):
    """A sample whose index names a file elsewhere, where the weights really are."""

    def make(folder, mark):
        outside = folder.parent / f"outside-{folder.name}.safetensors"
        shutil.move(folder / "model.safetensors", outside)
        given = name.format(outside=outside)
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {TENSOR: given}}))

    return make


def pickled(name):
    def make(folder, mark):
        (folder / "model.safetensors").unlink()
        (folder / name).write_bytes(pickle.dumps({"a": Bomb(mark)}))

    return make


def pickle_called_safetensors(folder, mark):
    (folder / "model.safetensors").write_bytes(pickle.dumps({"a": Bomb(mark)}))


def remote_code(folder, mark):
    (folder / "hostile_model.py").write_text(f"import os; os.system('touch {mark}')")
    auto = {"AutoConfig": "hostile_model.Config", "AutoModelForCausalLM": "hostile_model.Model"}
    configured(auto_map=auto, architectures=["HostileForCausalLM"], model_type="hostile")(folder, mark)


def linked(name):
    """A file that is a link out of the folder."""

    def make(folder, mark):
        outside = folder.parent / f"outside-{folder.name}-{name}"
        shutil.move(folder / name, outside)
        (folder / name).symlink_to(outside)

    return make


def linked_shard(folder, mark):
    (folder / "one.safetensors").symlink_to(folder.parent / "anywhere.safetensors")
    shutil.copy(folder / "model.safetensors", folder.parent / "anywhere.safetensors")
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {TENSOR: "one.safetensors"}}))


def duplicated_name(folder, mark):
    header, body = header_of((folder / "model.safetensors").read_bytes())
    text = json.dumps(header)
    entry = json.dumps({TENSOR: header[TENSOR]})[1:-1]
    twice = (text[:-1] + ", " + entry + "}").encode()
    (folder / "model.safetensors").write_bytes(len(twice).to_bytes(8, "little") + twice + body)


def huge_header(folder, mark):
    with (folder / "model.safetensors").open("r+b") as file:
        file.write((MOST + 1).to_bytes(8, "little"))
        file.truncate(2 * MOST)


def cut_off(folder, mark):
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


def moved(header, name=TENSOR, by=-8):
    begin, end = header[name]["data_offsets"]
    header[name]["data_offsets"] = [begin + by, end + by]


def grown(header):
    header[TENSOR] = {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}


def wrapped(header):
    header[TENSOR] |= {"shape": [2**32, 2**32]}


SAMPLES = {
    "pickle-bin": (pickled("pytorch_model.bin"), "pytorch_model.bin"),
    "pickle-pt": (pickled("weights.pt"), "weights.pt"),
    "pickle-called-safetensors": (pickle_called_safetensors, "model.safetensors"),
    "remote-code": (remote_code, "config.json"),
    "unknown-type": (configured(architectures=None, model_type="hostile"), "config.json"),
    "unknown-key": (configured(per_layer_config={"0": {"hidden_act": "relu"}}), "config.json"),
    "remote-code-of-a-known-class": (configured(auto_map={"AutoModel": "hostile_model.Model"}), "config.json"),
    "type-is-a-path": (configured(architectures=None, model_type="../../etc"), "config.json"),
    "class-is-code": (configured(architectures=["__import__('os').system('id')"]), "config.json"),
    "activation-is-code": (configured(hidden_act="__import__('os').system('id')"), "config.json"),
    "depth-of-a-billion": (configured(num_hidden_layers=10**9), "config.json"),
    "width-of-10^30": (configured(hidden_size=10**30), "config.json"),
    "vocabulary-of-10^12": (configured(vocab_size=10**12), "model.embed_tokens.weight"),
    "tensor-missing": (reweighted(lambda t: t.pop(TENSOR)), TENSOR),
    "tensor-extra": (reweighted(lambda t: t.update({"model.extra": torch.zeros(3)})), "model.extra"),
    "tensor-of-another-shape": (reweighted(lambda t: t.update({TENSOR: torch.zeros(3, 3)})), TENSOR),
    "tensor-quantised": (reweighted(lambda t: t.update({TENSOR: t[TENSOR].to(torch.int8)})), TENSOR),
    "header-of-10^12-elements": (reheaded(grown), TENSOR),
    "header-that-wraps-around": (reheaded(wrapped), TENSOR),
    "header-overlap": (reheaded(moved), "overlap"),
    "header-hole": (reheaded(lambda h: moved(h, by=8)), "model.safetensors"),
    "header-negative": (reheaded(lambda h: h[TENSOR].update(data_offsets=[-8, 8])), TENSOR),
    "header-unknown-dtype": (reheaded(lambda h: h[TENSOR].update(dtype="PICKLE")), TENSOR),
    "header-deep": (lambda f, m: (f / "model.safetensors").write_bytes(
        (200_000).to_bytes(8, "little") + b"[" * 200_000), "model.safetensors"),
    "header-beyond-the-file": (lambda f, m: (f / "model.safetensors").write_bytes(
        (2**63).to_bytes(8, "little") + b"{}"), "model.safetensors"),
    "header-huge": (huge_header, "model.safetensors"),
    "header-name-twice": (duplicated_name, TENSOR),
    "shard-cut-off": (cut_off, "model.safetensors"),
    "shard-empty": (lambda f, m: (f / "model.safetensors").write_bytes(b""), "model.safetensors"),
    "index-parent": (indexed("../x.safetensors"), "model.safetensors.index.json"),
    "index-absolute": (indexed("{outside}"), "model.safetensors.index.json"),
    "index-pickle": (indexed("weights.bin"), "model.safetensors.index.json"),
    "index-null": (indexed("a\x00.safetensors"), "model.safetensors.index.json"),
    "link-weights": (linked("model.safetensors"), "model.safetensors"),
    "link-config": (linked("config.json"), "config.json"),
    "link-shard": (linked_shard, "one.safetensors"),
    "config-deep": (lambda f, m: (f / "config.json").write_text("{\"a\":" * 100_000), "config.json"),
    "config-long-number": (lambda f, m: (f / "config.json").write_text('{"a": ' + "9" * 100_000 + "}"), "config.json"),
}  # fmt: skip


@pytest.fixture(scope="module")
def told(good, tmp_path_factory):
    """What the process says of every sample, and where nothing may appear."""
    home, mark = tmp_path_factory.mktemp("samples"), tmp_path_factory.mktemp("mark") / "executed"
    for name, (make, _) in SAMPLES.items():
        shutil.copytree(good, home / name)
        make(home / name, mark)
    answer = watched("samples", good, *(home / name for name in SAMPLES))
    return answer, home, mark


@pytest.mark.parametrize("name", SAMPLES)
def test_hostile_folder_is_refused_by_name_and_runs_nothing(told, name):
    answer, home, mark = told
    found = answer[name]
    assert found["result"] == "refused", found
    assert str(home / name) in found["message"], "the folder at fault is named"
    assert SAMPLES[name][1] in found["message"], "so is the file, or the tensor"
    assert found["events"] == []
    assert not mark.exists()


def test_watch_would_have_seen_code_that_runs(good, tmp_path):
    code = (
        "import os, sys; from tests.families.watched import Watch; w = Watch(); w.on = True\n"
        "os.system('true')\nexec(compile('1', '/elsewhere/hostile.py', 'exec'))\nopen(sys.argv[1], 'w')\n"
        "import pickle; pickle.loads(pickle.dumps(print))\nw.on = False\nprint([e.split()[0] for e in w.found])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "x")], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == str(["os.system", "exec", "open", "pickle.find_class"])


@pytest.fixture(scope="module")
def fuzzed(good, tmp_path_factory):
    return watched("fuzz", good, tmp_path_factory.mktemp("scratch"), 0, EXECUTIONS)


@pytest.mark.parametrize("kind", FILES)
def test_fuzzed_file_is_read_or_refused_and_runs_nothing(fuzzed, kind):
    found = fuzzed[kind]
    assert found["executions"] == EXECUTIONS
    assert found["crashed"] == []
    assert found["events"] == []
    assert found["nameless"] == [], "a refusal names the file"
    assert found["refused"] > EXECUTIONS / 4
    assert found["loaded"] + found["refused"] == EXECUTIONS


def test_auto_map_is_refused_and_its_file_never_imported(good, tmp_path):
    shutil.copytree(good, tmp_path / "m")
    (tmp_path / "m" / "hostile.py").write_text("raise SystemExit")
    configured(auto_map={"AutoModel": "hostile.Model"})(tmp_path / "m", None)
    for given in ({}, {"ignore_keys": ["auto_map"]}):
        with pytest.raises((SpecError, InputError), match="auto_map"):
            load(tmp_path / "m", **given)
    assert "hostile" not in sys.modules


def test_refused_load_leaves_no_model_and_no_file(good, tmp_path):
    shutil.copytree(good, tmp_path / "m")
    cut_off(tmp_path / "m", None)
    before = sorted(os.listdir(tmp_path / "m"))
    with pytest.raises(CheckpointError):
        load(tmp_path / "m")
    assert sorted(os.listdir(tmp_path / "m")) == before


def test_header_of_a_whole_file_gives_what_is_in_it(good):
    header = read_header(good / "model.safetensors")
    tensors = load_file(good / "model.safetensors")
    assert {name: place.shape for name, place in header.tensors.items()} == {
        n: tuple(t.shape) for n, t in tensors.items()
    }
    assert header.metadata["format"] == "pt"


def test_links_of_the_hub_s_cache_stay_inside(good, tmp_path):
    """In a cache the files of a snapshot are links into the repository's own blobs, and nowhere else."""
    snapshot = tmp_path / "models--org--name" / "snapshots" / "abc"
    blobs = tmp_path / "models--org--name" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(good / name, blobs / name)
        (snapshot / name).symlink_to(f"../../blobs/{name}")
    assert load(snapshot).spec == load(good).spec
    (snapshot / "1_Pooling").mkdir()
    (snapshot / "1_Pooling" / "config.json").symlink_to("../../../blobs/config.json")
    assert inside(snapshot / "1_Pooling" / "config.json", snapshot / "1_Pooling")
    (snapshot / "config.json").unlink()
    (snapshot / "config.json").symlink_to(good / "config.json")
    with pytest.raises(CheckpointError, match=r"is a link to .* outside of its folder"):
        load(snapshot)
    assert inside(blobs / "config.json", blobs)


@pytest.mark.parametrize("path", ["width", "attention.heads", "attention.head_dim", "embed.width", "depth"])
@pytest.mark.parametrize("digits", [10, 30, 5000])
def test_spec_with_an_absurd_size_is_refused_at_once(good, path, digits):
    # A prime near it has no divisor that is found early.
    with pytest.raises(SpecError, match=path):
        spec_of(good).vary({path: 10**digits + 7})


@pytest.mark.parametrize("path", ["context", "vocab"])
def test_spec_with_a_size_that_no_number_has_is_refused(good, path):
    assert spec_of(good).vary({path: 10**10}).count().params > 0, "large ones may be: nothing is made of that length"
    with pytest.raises(SpecError, match=f"{path}: a number of 100 bits is beyond all sizes"):
        spec_of(good).vary({path: 10**30})
