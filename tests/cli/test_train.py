"""`anyformer train`: a run as people start it, stop it, go on with it and look ahead at it."""

import argparse
import re
import signal

import pytest
import torch

import anyformer.lab.train_run as training
from anyformer.cli.parser import add_set, change_text
from anyformer.train.checkpoint import newest
from anyformer.train.train_step import TrainStep
from tests.cli.command import run
from tests.train.small_data import CONFIG

TEXT = "".join(f"line {i}: the quick brown fox jumps over {i % 7} lazy dogs\n" for i in range(60))
MODEL = CONFIG.replace("vocab = 32\n", "").replace("ids = { pad = 0, bos = 1, eos = [2] }\n", "")


@pytest.fixture(scope="module")
def shards(tmp_path_factory):
    """Tokens of a small text, made by the command for it."""
    from anyformer.cli.main import main

    folder = tmp_path_factory.mktemp("train")
    (folder / "foxes.txt").write_text(TEXT)
    status = main(["tokenize", str(folder / "foxes.txt"), "--lines", "--train", "chars", "--hold-out", "0.2",
                   "--out", str(folder / "data"), "--json"])  # fmt: skip
    assert status == 0
    return folder / "data"


@pytest.fixture
def config(tmp_path, shards, monkeypatch):
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "small.toml"
    place.write_text(
        MODEL.replace("DATA", str(shards)).replace("RUN", "runs/small").replace("context = 32", "context = 64")
    )
    return "small.toml"


def test_train_runs_to_the_end_and_tells_what_there_is(tmp_path, config, capsys):
    ran = run(capsys, "train", config, "--set", "run.prompt=line 5", "--set", "run.sample_tokens=8")
    assert ran.status == 0, ran.err
    assert re.search(r"step 10/12  loss \d\.\d{3}  \d\.\d{3} bits/B  .* tok/s  lr x 0\.\d\d  grad", ran.out)
    assert re.search(r"step 5  held-out loss \d\.\d{4}  \d\.\d{4} bits per byte", ran.out)
    assert re.search(r"step 12 says:\nline 5", ran.out)
    assert "runs/small/report.html" in ran.out
    assert "MFU" not in ran.out
    left = {file.name for file in (tmp_path / "runs" / "small").iterdir()}
    assert left >= {
        "config.toml",
        "spec.toml",
        "tokenizer.json",
        "metrics.jsonl",
        "model.safetensors",
        "report.html",
        "loss.png",
    }
    report = (tmp_path / "runs" / "small" / "report.html").read_text()
    assert "A decoder of 2 layers" in report
    assert "line 5" in report


def test_train_again_of_a_finished_run_says_so_and_changes_nothing(tmp_path, config, capsys):
    assert run(capsys, "train", config).status == 0
    place = tmp_path / "runs" / "small"
    before = {file: file.read_bytes() for file in place.rglob("*") if file.is_file() and file.name != ".lock"}
    again = run(capsys, "train", config)
    assert again.status == 0
    assert "runs/small is finished: 12 steps, with a held-out loss of" in again.out
    assert {file: file.read_bytes() for file in place.rglob("*") if file.is_file() and file.name != ".lock"} == before


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_train_asked_to_stop_saves_says_how_to_go_on_and_goes_on(tmp_path, config, capsys, monkeypatch, number):
    def speak(setup, step):
        if step == 6:
            signal.raise_signal(number)
        return ""

    monkeypatch.setattr(training, "sample_text", speak)
    argv = ["train", config, "--set", "run.sample_every=6"]
    stopped = run(capsys, *argv)
    assert stopped.status == 128 + number
    assert (
        "stopped after step 7 of 12, and saved. Go on: anyformer train small.toml --set run.sample_every=6"
        in stopped.err
    )
    monkeypatch.setattr(training, "sample_text", lambda *_: "")
    on = run(capsys, *argv)
    assert on.status == 0
    assert "goes on after step 7" in on.out
    assert newest(tmp_path / "runs" / "small").state["step"] == 12


def test_train_makes_its_data_by_the_config_once(tmp_path, config, capsys):
    (tmp_path / "foxes.txt").write_text(TEXT)
    make = "data.make=foxes.txt --lines --train chars --hold-out 0.2"
    argv = ["train", config, "--json", "--set", "data.folder=made", "--set", make]
    ahead = run(capsys, *argv, "--dry-run")
    assert ahead.status == 2
    assert "make it first: anyformer tokenize foxes.txt --lines --train chars --hold-out 0.2 --out made" in ahead.err
    assert not (tmp_path / "made").exists()
    assert run(capsys, *argv).json["status"] == "finished"
    index = (tmp_path / "made" / "index.json").stat().st_mtime_ns
    assert run(capsys, *argv).json["status"] == "was finished"
    assert (tmp_path / "made" / "index.json").stat().st_mtime_ns == index


def test_train_with_data_made_wrongly_names_the_field(config, capsys):
    ran = run(capsys, "train", config, "--set", "data.folder=made", "--set", "data.make=foxes.txt --trian chars")
    assert ran.status == 2
    assert "data.make: --trian" in ran.err


def test_train_as_json_prints_one_document(config, capsys):
    ran = run(capsys, "train", config, "--json")
    assert ran.json["status"] == "finished"
    assert ran.json["step"] == 12
    assert set(ran.json["held_out"]) >= {"loss", "bits_per_byte"}
    again = run(capsys, "train", config, "--json").json
    assert again["status"] == "was finished"
    assert again["held_out"] == ran.json["held_out"]
    assert again["tokens"] == ran.json["tokens"]


def test_train_dry_run_looks_ahead_and_writes_nothing(tmp_path, config, capsys):
    before = sorted(tmp_path.rglob("*"))
    ran = run(capsys, "train", config, "--dry-run")
    assert ran.status == 0, ran.err
    for words in ("A decoder of 2 layers", "length 32, 4 rows", "12 steps", "activations", "optimizer", "at most at once",
                  "padding", "epochs", "About", "FLOP/s"):  # fmt: skip
        assert words in ran.out, words
    assert sorted(tmp_path.rglob("*")) == before
    told = run(capsys, "train", config, "--dry-run", "--json").json
    assert told["steps"] == 12
    assert told["memory"]["total"] > told["memory"]["weights"] == 4 * told["params"]
    assert told["seconds"] > 0
    assert sorted(tmp_path.rglob("*")) == before


def test_train_dry_run_draws_rows_if_asked_and_refuses_to_without_looking_ahead(tmp_path, config, capsys):
    ran = run(capsys, "train", config, "--dry-run", "--rows-png", str(tmp_path / "rows.png"))
    assert ran.status == 0, ran.err
    assert (tmp_path / "rows.png").read_bytes()[:4] == b"\x89PNG"
    ran = run(capsys, "train", config, "--rows-png", "x.png")
    assert (ran.status, "add --dry-run" in ran.err) == (2, True)
    ran = run(capsys, "train", config, "--dry-run", "--rows-png", "x.png", "--set", "data.rows=padded")
    assert (ran.status, "take rows = packed" in ran.err) == (2, True)


def test_train_dry_run_of_what_does_not_fit_says_what_to_change(config, capsys, monkeypatch):
    monkeypatch.setattr("anyformer.kernels.memory.free", lambda device: 1000)
    ran = run(capsys, "train", config, "--dry-run")
    assert "more than the 1.00 kB that are free" in ran.out
    assert "compute.micro = 1" in ran.out


def test_train_out_of_memory_names_the_estimate_and_leaves_the_checkpoint(tmp_path, config, capsys, monkeypatch):
    learn = TrainStep.step

    def fail(self, batch, **more):
        if more["step"] == 9:
            torch.empty(2**60)
        return learn(self, batch, **more)

    monkeypatch.setattr(TrainStep, "step", fail)
    ran = run(capsys, "train", config)
    assert ran.status == 1
    for words in ("not enough memory on cpu", "4 rows of 32 tokens", "activations", "compute.micro", "unharmed"):
        assert words in ran.err, words
    monkeypatch.setattr(TrainStep, "step", learn)
    assert newest(tmp_path / "runs" / "small").state["step"] == 8
    on = run(capsys, "train", config)
    assert on.status == 0
    assert "goes on after step 8" in on.out


@pytest.mark.parametrize(
    ("argv", "status", "words"),
    [
        ([], 2, "the following arguments are required: CONFIG"),
        (["none.toml"], 2, "none.toml: can't be read"),
        (["small.toml", "--set", "run.sed=3"], 2, "run.sed: is unknown; did you mean 'seed'"),
        (["small.toml", "--set", "run.seed"], 2, "is not NAME=VALUE"),
        (["small.toml", "--set", 'run.log=["tensorbord"]'], 2, "did you mean 'tensorboard'"),
        (["small.toml", "--set", "data.folder=none"], 2, "none: there is no such folder"),
        (["small.toml", "--dry-run", "--set", "compute.device=tpu"], 1, "device 'tpu' can't be used here"),
        (["small.toml", "--dry", "--set", "run.seed=1"], 2, "--dry is no option of this command"),
    ],
    ids=["nothing", "no file", "unknown key", "no value", "logger", "no data", "device", "option"],
)
def test_train_given_something_wrong_says_what_and_writes_nothing(tmp_path, config, capsys, argv, status, words):
    ran = run(capsys, "train", *argv)
    assert (ran.status, words in ran.err) == (status, True), ran.err
    assert not (tmp_path / "runs").exists()


def test_train_with_a_wrong_spec_says_so_before_it_makes_data(tmp_path, config, capsys):
    (tmp_path / "text.txt").write_text("some text " * 100)
    more = ("data.folder=later", "data.make=text.txt --train chars", "model.spec.width=7")
    ran = run(capsys, "train", config, *(part for each in more for part in ("--set", each)))
    assert (ran.status, "does not divide width=7" in ran.err) == (2, True), ran.err
    assert not (tmp_path / "later").exists()


def test_train_help_shows_examples(capsys):
    ran = run(capsys, "train", "--help")
    assert ran.status == 0
    assert "anyformer train recipes/" in ran.out
    assert "--dry-run" in ran.out


@pytest.mark.parametrize(
    "value",
    [
        3,
        -0.5,
        True,
        "alibi",
        "8",
        "true",
        "a b",
        "",
        [1, 2],
        [{"steps": 2, "x": "y"}],
        {"a": {"b": "\u00e9\U0001f600"}},
    ],
)
def test_change_is_written_as_it_is_read(value):
    """What is told to go on with a run must mean the same run."""
    parser = argparse.ArgumentParser()
    add_set(parser)
    assert parser.parse_args(["--set", change_text("a.b", value)]).changes == [("a.b", value)]
