"""`anyformer convert`: formats, dtypes and surgery from the command line, and what it never does."""

import json
import os
import pickle
import re
import shutil
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file

import anyformer as af
from anyformer import files
from anyformer.data.tokenizer import prompt_ids
from tests.cli.command import run
from tests.cli.small_run import TEXT, small_run

LLAMA = {
    "attention": {"heads": 4, "kv_heads": 4}, "norm": {"kind": "rmsnorm"}, "ffn": {"kind": "swiglu", "width": 32},
    "position": {"kind": "rope"}, "ids": {"bos": 0}, "head": {"kind": "lm", "tied": False},
}  # fmt: skip


@pytest.fixture
def source(tmp_path):
    """A small run that a published class can hold."""
    small_run(tmp_path / "run", LLAMA)
    return tmp_path / "run"


@pytest.fixture
def text(tmp_path):
    (tmp_path / "notes.txt").write_text(TEXT)
    return str(tmp_path / "notes.txt")


def same(a, b):
    left, right = (dict(af.load(place, dtype=torch.float64).named_parameters()) for place in (a, b))
    return left.keys() == right.keys() and all(torch.equal(left[name], right[name]) for name in left)


def test_convert_there_and_back_loses_nothing(capsys, source, tmp_path):
    ran = run(capsys, "convert", str(source), str(tmp_path / "hf"), "--format", "hf")
    assert ran.status == 0, ran.err
    assert "files of LlamaForCausalLM" in " ".join(ran.out.split())
    words = ["tokenizer.json", "tokenizer_config.json"]
    assert sorted(os.listdir(tmp_path / "hf")) == ["config.json", "model.safetensors", *words]
    ran = run(capsys, "convert", str(tmp_path / "hf"), str(tmp_path / "back"), "--json")
    assert ran.json["format"] == "anyformer"
    assert sorted(os.listdir(tmp_path / "back")) == ["model.safetensors", "spec.toml", *words]
    assert same(source, tmp_path / "hf")
    assert same(source, tmp_path / "back")
    spec, text = af.spec(source), "the cat sat"
    ids = {prompt_ids(spec, af.tokenizer(folder), text) for folder in (source, tmp_path / "hf", tmp_path / "back")}
    assert len(ids) == 1


def test_convert_for_a_named_family_writes_its_class(capsys, source, tmp_path):
    ran = run(capsys, "convert", str(source), str(tmp_path / "hf"), "--format", "hf", "--family", "mistral", "--json")
    assert ran.json["architecture"] == "MistralForCausalLM"
    assert same(source, tmp_path / "hf")
    ran = run(capsys, "convert", str(source), str(tmp_path / "x"), "--family", "mistral")
    assert (ran.status, "is for the format hf" in ran.err) == (2, True)
    ran = run(capsys, "convert", str(source), str(tmp_path / "x"), "--format", "hf", "--family", "bert")
    assert (ran.status, "topology" in ran.err) == (2, True)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float64"])
def test_convert_to_a_dtype_stores_it(capsys, source, tmp_path, dtype):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), "--dtype", dtype, "--json")
    assert ran.json["dtype"] == dtype
    assert all(t.dtype == getattr(torch, dtype) for t in load_file(tmp_path / "new" / "model.safetensors").values())
    ran = run(capsys, "convert", str(tmp_path / "new"), str(tmp_path / "again"), "--json")
    assert ran.json["dtype"] == dtype, "unless told otherwise it stays"


def test_convert_of_what_no_class_can_hold_names_the_axis_and_the_way_out(capsys, tmp_path):
    small_run(tmp_path / "run", LLAMA | {"attention": {"heads": 4, "kv_heads": 4, "softcap": 3.0}})
    ran = run(capsys, "convert", str(tmp_path / "run"), str(tmp_path / "hf"), "--format", "hf")
    assert ran.status == 2
    assert "attention.softcap" in ran.err
    assert "--format anyformer keeps it as it is" in ran.err
    assert not (tmp_path / "hf").exists()


def test_convert_replaces_its_own_folders_only(capsys, source, tmp_path):
    place = tmp_path / "new"
    for form in ("hf", "anyformer", "hf"):
        assert run(capsys, "convert", str(source), str(place), "--format", form).status == 0
    assert not (place / "spec.toml").exists()
    (place / "thesis.txt").write_text("ten years of work")
    ran = run(capsys, "convert", str(source), str(place))
    assert ran.status == 2
    assert "holds thesis.txt, which would be lost" in ran.err
    assert (place / "thesis.txt").read_text() == "ten years of work"


def test_convert_leaves_a_model_of_somebody_else_alone(capsys, source, tmp_path):
    place = tmp_path / "theirs"
    run(capsys, "convert", str(source), str(place), "--format", "hf")
    save_file(load_file(place / "model.safetensors"), place / "model.safetensors", {"format": "pt"})
    ran = run(capsys, "convert", str(source), str(place))
    assert ran.status == 2
    assert "anyformer did not write it" in ran.err
    assert sorted(os.listdir(place)) == ["config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"]


def test_convert_onto_the_source_itself_is_refused(capsys, source):
    ran = run(capsys, "convert", str(source), str(source / ".." / "run"))
    assert (ran.status, "is the source itself" in ran.err) == (2, True)
    assert af.load(source)


class Stop(BaseException):
    """As a kill: nothing after it runs on purpose."""


class Dying(files.Disk):
    """A disk that is gone from a certain call on."""

    def __init__(self, calls):
        self.calls = calls

    def count(self):
        self.calls -= 1
        if self.calls < 0:
            raise Stop

    def sync(self, path):
        self.count()

    def rename(self, source, target):
        self.count()
        super().rename(source, target)

    def remove(self, path):
        self.count()
        super().remove(path)


def test_convert_that_is_killed_at_any_call_leaves_the_old_folder_or_the_new_one(capsys, source, tmp_path, monkeypatch):
    place, whole = tmp_path / "new", files.DISK
    run(capsys, "convert", str(source), str(place), "--rope-theta", "7")
    monkeypatch.setattr(files, "alive", lambda process: False)
    ended = 0
    for calls in range(60):
        monkeypatch.setattr(files, "DISK", Dying(calls))
        try:
            run(capsys, "convert", str(source), str(place))
        except Stop:
            ended += 1
        else:
            break
        finally:
            monkeypatch.setattr(files, "DISK", whole)
        assert af.load(place).spec.position.theta in (7.0, 10000.0)
    else:
        pytest.fail("it never came to an end")
    assert ended > 10
    assert af.load(place).spec.position.theta == 10000.0
    assert [name for name in os.listdir(tmp_path) if name.startswith(".")] == []


def test_convert_with_fewer_heads_reports_perplexity_before_and_after(capsys, source, text, tmp_path):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), "--kv-heads", "2", "--text", text, "--json")
    assert ran.status == 0, ran.err
    before, after = ran.json["before"], ran.json["after"]
    assert before["tokens"] == after["tokens"] > 0
    assert before["perplexity"] != after["perplexity"]
    assert af.load(tmp_path / "new").spec.attention.kv_heads == 2
    again = run(capsys, "eval", str(tmp_path / "new"), text, "--json").json
    assert again["perplexity"] == pytest.approx(after["perplexity"], rel=1e-5)
    ran = run(capsys, "convert", str(source), str(tmp_path / "other"), "--kv-heads", "1", "--text", text)
    assert "before" in ran.out
    assert "after" in ran.out


def test_convert_with_a_long_window_keeps_the_perplexity(capsys, source, text, tmp_path):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), "--window", "4096", "--text", text, "--json")
    assert ran.json["before"]["perplexity"] == pytest.approx(ran.json["after"]["perplexity"], rel=1e-6)


def test_convert_with_rope_options_writes_a_spec_that_a_class_can_hold(capsys, source, tmp_path):
    argv = ["--rope-scaling", "yarn:4", "--rope-theta", "5000", "--positions", "256", "--format", "hf"]
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), *argv)
    assert ran.status == 0, ran.err
    spec = af.spec(tmp_path / "new")
    assert (spec.context, spec.position.theta, spec.position.scaling.kind) == (256, 5000.0, "yarn")


def test_convert_with_set_changes_any_field_that_needs_no_weights(capsys, source, tmp_path):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), "--set", "attention.softcap=30.0")
    assert ran.status == 0, ran.err
    assert af.spec(tmp_path / "new").attention.softcap == 30.0
    ran = run(capsys, "convert", str(source), str(tmp_path / "x"), "--set", "width=8")
    assert (ran.status, "don't fit the changed spec" in ran.err) == (2, True)
    assert not (tmp_path / "x").exists()


@pytest.mark.parametrize(
    ("argv", "line"),
    [
        (["--kv-heads", "3"], "can't be pooled into 3; pick from 1, 2, 4"),
        (["--rope-scaling", "yarn"], "'yarn' is not KIND:FACTOR, such as yarn:4"),
        (["--rope-scaling", "yran:4"], "'yran' is none of"),
        (["--positions", "2"], "positions: 2 is less than"),
        (["--pool", "median"], "invalid choice: 'median'"),
        (["--kv-head", "2"], "--kv-head is no option of this command; did you mean '--kv-heads'?"),
        (["--text", "nowhere.txt"], "nowhere.txt: there is no such file"),
    ],
)
def test_convert_of_bad_input_says_what_is_wrong_and_writes_nothing(capsys, source, tmp_path, argv, line):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), *argv)
    assert ran.status == 2
    assert line in ran.err
    assert not (tmp_path / "new").exists()


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.system, (f"touch {self.place}",)


@pytest.fixture
def pickled(capsys, source, tmp_path):
    """A folder with a config.json and weights in pytorch_model.bin."""
    place = tmp_path / "pickled"
    run(capsys, "convert", str(source), str(place), "--format", "hf")
    torch.save(load_file(place / "model.safetensors"), place / "pytorch_model.bin")
    (place / "model.safetensors").unlink()
    return place


def test_pickled_weights_are_refused_with_the_way_out(capsys, pickled, tmp_path):
    ran = run(capsys, "convert", str(pickled), str(tmp_path / "new"))
    assert ran.status == 1
    assert f"if you trust it: anyformer convert --unsafe-pickle {pickled} NEW" in ran.err


def test_pickled_weights_are_converted_when_asked_for(capsys, pickled, source, tmp_path):
    ran = run(capsys, "convert", "--unsafe-pickle", str(pickled), str(tmp_path / "new"))
    assert ran.status == 0, ran.err
    assert same(source, tmp_path / "new")
    assert (tmp_path / "new" / "tokenizer.json").is_file()


def test_pickled_weights_in_shards_below_a_name_are_converted(capsys, pickled, source, tmp_path):
    state = torch.load(pickled / "pytorch_model.bin", weights_only=True)
    names = sorted(state)
    (pickled / "pytorch_model.bin").unlink()
    placed = {}
    for i, part in enumerate((names[::2], names[1::2])):
        torch.save({"state_dict": {name: state[name] for name in part}}, pickled / f"part-{i}.bin")
        placed |= dict.fromkeys(part, f"part-{i}.bin")
    (pickled / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": placed}))
    ran = run(capsys, "convert", "--unsafe-pickle", str(pickled), str(tmp_path / "new"))
    assert ran.status == 0, ran.err
    assert same(source, tmp_path / "new")


def test_pickle_that_would_run_a_command_runs_nothing(capsys, pickled, tmp_path):
    mark = tmp_path / "executed"
    with (pickled / "pytorch_model.bin").open("wb") as file:
        pickle.dump({"a": Bomb(mark)}, file)
    ran = run(capsys, "convert", "--unsafe-pickle", str(pickled), str(tmp_path / "new"))
    assert ran.status == 1
    assert "its pickled weights can't be read" in ran.err
    assert not mark.exists()
    assert not (tmp_path / "new").exists()


def test_fence_of_the_child_stops_what_gets_past_the_unpickler(tmp_path):
    import subprocess
    import sys

    mark = tmp_path / "executed"
    attempts = {
        "system": f"os.system('touch {mark}')", "popen": f"import subprocess; subprocess.run(['touch', '{mark}'])",
        "write": f"open('{mark}', 'w')", "connect": "import socket; socket.create_connection(('127.0.0.1', 9), 1)",
    }  # fmt: skip
    (tmp_path / "new").mkdir()
    for name, attempt in attempts.items():
        code = (
            "import os; from pathlib import Path; from anyformer.convert.unpickle import _fence\n"
            f"_fence(Path('{tmp_path / 'new'}')); open('{tmp_path / 'new' / 'x'}', 'w')\n{attempt}\n"
        )
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
        assert done.returncode == 3, (name, done.stderr)
        assert "which weights have no need of" in done.stderr
        assert not mark.exists(), name


def test_unsafe_pickle_without_pickles_says_so(capsys, source, tmp_path):
    shutil.copytree(source, tmp_path / "copy")
    (tmp_path / "copy" / "config.json").write_text("{}")
    ran = run(capsys, "convert", "--unsafe-pickle", str(tmp_path / "copy"), str(tmp_path / "new"))
    assert (ran.status, "holds no pickled weights" in ran.err) == (1, True)


def test_convert_help_has_an_example_for_each_use(capsys):
    out = run(capsys, "convert", "--help").out
    assert "anyformer convert path/to/llama llama-gqa --kv-heads 8 --text notes.txt" in out


def converted(capsys, *argv):
    return run(capsys, "convert", *map(str, argv))


@pytest.mark.parametrize("kind", ["int8", "int4"])
def test_convert_quantize_writes_a_folder_that_loads_as_the_model_quantised_in_memory(tmp_path, text, kind, capsys):
    wide = {
        "width": 32,
        "attention": {"heads": 4, "kv_heads": 4, "head_dim": 8},
        "ffn": {"kind": "swiglu", "width": 48},
    }
    small_run(tmp_path / "run", LLAMA | wide)
    done = converted(capsys, tmp_path / "run", tmp_path / "small", "--quantize", kind, "--text", text, "--json")
    assert done.status == 0, done.err
    found = done.json
    weights = tmp_path / "small" / "model.safetensors"
    assert (found["quantized"], found["dtype"], found["bytes"]) == (kind, "float32", weights.stat().st_size)
    assert found["bytes"] < (tmp_path / "run" / "model.safetensors").stat().st_size
    assert found["before"]["perplexity"] != found["after"]["perplexity"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        saved, made = af.load(tmp_path / "small"), af.load(tmp_path / "run", quantize=kind)
    ids = torch.arange(9)[None]
    with torch.no_grad():
        assert torch.equal(saved(ids).logits, made(ids).logits)
    assert af.tokenizer(tmp_path / "small").encode(TEXT) == af.tokenizer(tmp_path / "run").encode(TEXT)
    assert f"{kind} weights and float32" in converted(capsys, tmp_path / "small", tmp_path / "copy").out


def test_convert_of_a_quantised_folder_teaches_the_way_and_dequantizes_when_asked(source, tmp_path, capsys):
    small = tmp_path / "small"
    assert converted(capsys, source, small, "--quantize", "int8").status == 0
    for asked in (["--format", "hf"], ["--quantize", "int8"], ["--kv-heads", "1"]):
        refused = converted(capsys, small, tmp_path / "out", *asked)
        assert refused.status == 2
        assert "holds int8 weights; convert the model that it was made from, or add --dequantize" in refused.err
    assert not (tmp_path / "out").exists()
    assert converted(capsys, small, tmp_path / "out", "--dequantize", "--format", "hf").status == 0
    ids = torch.arange(9)[None]
    with torch.no_grad():
        gap = af.load(tmp_path / "out")(ids).logits - af.load(small)(ids).logits
    assert gap.abs().max() < 1e-4
    assert "are not quantised" in converted(capsys, source, tmp_path / "no", "--dequantize").err
    assert (
        "leave out --format hf"
        in converted(capsys, source, tmp_path / "no", "--quantize", "int8", "--format", "hf").err
    )


ENDED = LLAMA | {"ids": {"bos": 0, "eos": [0]}}
"""As every run of `quickstart` is: one token stands between documents, and before the first."""


@pytest.mark.parametrize("ids", [LLAMA, ENDED], ids=["bos", "bos is eos"])
@pytest.mark.parametrize("extra", [[], ["--dtype", "bfloat16"], ["--kv-heads", "2"]], ids=" ".join)
@pytest.mark.parametrize("form", ["anyformer", "hf"])
def test_convert_text_prints_the_perplexity_that_eval_gives_of_both_folders(capsys, text, tmp_path, form, extra, ids):
    small_run(tmp_path / "run", ids)
    argv = ["convert", str(tmp_path / "run"), str(tmp_path / "new"), "--format", form, "--text", text, *extra]
    told = run(capsys, *argv, "--json").json
    source = run(capsys, "eval", str(tmp_path / "run"), text, "--json").json
    made = run(capsys, "eval", str(tmp_path / "new"), text, "--json").json
    for found, wanted in ((told["before"], source), (told["written"] or told["after"] or told["before"], made)):
        assert found["tokens"] == wanted["tokens"]
        assert found["perplexity"] == pytest.approx(wanted["perplexity"], rel=1e-5)
        # Ids that are the same may come from the spec in one folder and from the files in the other.
        assert re.sub(", as its.*;", ";", found["rule"]) == re.sub(", as its.*;", ";", wanted["rule"])
    printed = run(capsys, *argv)
    assert printed.status == 0, printed.err
    if told["written"] is not None:
        assert "as written" in printed.out
        assert " ".join(made["rule"].split()) in " ".join(printed.out.split())


def test_convert_of_a_run_whose_bos_is_eos_tells_that_the_written_folder_reads_a_text_otherwise(capsys, text, tmp_path):
    small_run(tmp_path / "run", ENDED)
    argv = ["convert", str(tmp_path / "run"), str(tmp_path / "new"), "--format", "hf", "--text", text, "--json"]
    told = run(capsys, *argv).json
    assert told["written"]["tokens"] == told["before"]["tokens"] - 1
    assert "no bos, as its tokenizer files say" in told["written"]["rule"]


@pytest.mark.parametrize("settings", [
    {"chat_template": "{{ messages[0].content }}"},
    {"chat_template": "x", "bos_token": "<|endoftext|>", "tokenizer_class": "PreTrainedTokenizerFast", "add_bos_token": False},
])  # fmt: skip
def test_tokenizer_config_in_a_run_of_ours_changes_no_ids(capsys, source, text, settings):
    spec, before = af.spec(source), run(capsys, "eval", str(source), text, "--json").json
    ids = prompt_ids(spec, af.tokenizer(source), "the cat")
    (source / "tokenizer_config.json").write_text(json.dumps(settings))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        after = run(capsys, "eval", str(source), text, "--json").json
        words = af.tokenizer(source)
    assert (after["tokens"], after["perplexity"]) == (before["tokens"], before["perplexity"])
    assert prompt_ids(spec, words, "the cat") == ids
    assert not words.published
    assert any("tokenizer_class" in str(each.message) for each in told) == ("tokenizer_class" in settings)


def test_convert_of_a_published_folder_into_our_format_keeps_its_ids_and_says_so_in_its_settings(
    capsys, source, text, tmp_path
):
    run(capsys, "convert", str(source), str(tmp_path / "hf"), "--format", "hf")
    for name, other in (("hf", "own"), ("own", "again")):
        assert run(capsys, "convert", str(tmp_path / name), str(tmp_path / other)).status == 0
        assert af.tokenizer(tmp_path / other).published
    assert run(capsys, "convert", str(tmp_path / "again"), str(tmp_path / "back"), "--format", "hf").status == 0
    assert "anyformer" not in (tmp_path / "back" / "tokenizer_config.json").read_text()
    figures = {
        run(capsys, "eval", str(tmp_path / name), text, "--json").json["tokens"]
        for name in ("hf", "own", "again", "back")
    }
    assert len(figures) == 1


@pytest.mark.parametrize(("argv", "lines"), [
    (["--pool", "mean"], ["pool: is for kv_heads"]), (["--extend", "repeat"], ["extend: is for positions"]),
    (["--seed", "0"], ["seed: is for random heads"]), (["--kv-heads", "2", "--seed", "3"], ["seed: is for random heads"]),
    (["--pool", "random", "--extend", "interpolate", "--seed", "4"], ["pool: is for", "extend: is for", "seed: is for"]),
    (["--positions", "999", "--extend", "interpolate"], ["extend: this model has no learned table of positions"]),
])  # fmt: skip
def test_convert_with_an_option_that_would_do_nothing_is_refused_in_one_message(capsys, source, tmp_path, argv, lines):
    ran = run(capsys, "convert", str(source), str(tmp_path / "new"), *argv)
    assert ran.status == 2
    for line in lines:
        assert line in ran.err
    assert not (tmp_path / "new").exists()
