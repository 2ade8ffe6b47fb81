"""anyformer eval: the figures, as a table and as JSON, and how it ends."""

import gzip
import json
import math
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli import model as shared
from anyformer.cli.main import main
from anyformer.train.evaluate import score
from tests.cli.small_run import TEXT, small_run
from tests.data.test_tokenizer import STORIES, needs_stories

ROOT = Path(af.__file__).parents[1]


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("run")
    small_run(folder)
    return folder


@pytest.fixture
def texts(tmp_path, monkeypatch) -> list[str]:
    # Short names, as a long one is folded in the table.
    monkeypatch.chdir(tmp_path)
    first, second = Path("a.txt"), Path("b.txt.gz")
    first.write_bytes(TEXT.encode())
    second.write_bytes(gzip.compress("the dog, naïve\r\n".encode()))
    return [str(first), str(second)]


def test_eval_as_json_tells_each_text_and_all(run, texts, capsys):
    assert main(["eval", str(run), *texts, "--json"]) == 0
    out, err = capsys.readouterr()
    found = json.loads(out)
    model, tokenizer = af.load(run), af.tokenizer(run)
    wanted = [score(model, tokenizer, text) for text in (TEXT, "the dog, naïve\r\n")]
    total = wanted[0] + wanted[1]
    assert [each["text"] for each in found["texts"]] == texts
    for each, want in zip([*found["texts"], found], [*wanted, total], strict=True):
        assert (each["tokens"], each["bytes"], each["nats"]) == (want.tokens, want.bytes, want.nats)
        assert each["perplexity"] == pytest.approx(math.exp(each["nats"] / each["tokens"]))
        assert each["bits_per_byte"] == pytest.approx(each["nats"] / math.log(2) / each["bytes"])
    assert (found["context"], found["stride"]) == (64, 32)
    assert found["bytes"] == len(TEXT) + 17
    assert err == ""


def test_eval_as_a_table_has_the_same_figures(run, texts, capsys):
    assert main(["eval", str(run), *texts, "--stride", "8", "--context", "16"]) == 0
    lines = capsys.readouterr().out.splitlines()
    model, tokenizer = af.load(run), af.tokenizer(run)
    want = score(model, tokenizer, TEXT, stride=8, context=16)
    row = next(line for line in lines if line.startswith(texts[0])).split()
    assert row[1:] == [f"{want.tokens:,}", f"{want.bytes:,}", f"{want.perplexity:,.3f}", f"{want.bits_per_byte:.4f}"]
    assert any(line.startswith("all ") for line in lines)
    assert lines[-1] == "windows of 16 tokens, moved by 8"


def test_eval_of_one_text_has_no_row_for_all(run, texts, capsys):
    assert main(["eval", str(run), texts[0]]) == 0
    assert not any(line.startswith("all ") for line in capsys.readouterr().out.splitlines())


def test_eval_of_a_uniform_model_is_the_size_of_the_vocabulary(tmp_path, texts, capsys):
    model, tokenizer = small_run(tmp_path / "run")
    with torch.no_grad():
        model.head.weight.zero_()
    af.save(model, tmp_path / "run")
    assert main(["eval", str(tmp_path / "run"), *texts, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["perplexity"] == pytest.approx(tokenizer.vocab, rel=1e-6)


def test_eval_that_takes_long_shows_a_bar_on_a_terminal_only(run, texts, capsys, monkeypatch):
    monkeypatch.setattr(shared, "PATIENCE", 0.0)
    assert main(["eval", str(run), texts[0]]) == 0
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert main(["eval", str(run), texts[0]]) == 0
    out, err = capsys.readouterr()
    assert "%" in err
    assert "%" not in out


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (["nowhere", "TEXT"], 2, "nowhere: there is no such folder"),
        (["RUN", "nowhere.txt"], 2, "nowhere.txt: there is no such file"),
        (["RUN", "EMPTY"], 2, "is empty"),
        (["RUN", "TEXT", "--stride", "65"], 2, "stride: 65 is not from 1 to the context, 64"),
        (["RUN", "TEXT", "--stride", "0"], 2, "--stride"),
        (["RUN", "TEXT", "--context", "x"], 2, "'x' is not a whole number"),
        (["RUN"], 2, "TEXT"),
        (["ENCODER", "TEXT"], 2, "perplexity is for decoders"),
        (["DAMAGED", "TEXT"], 1, "is damaged"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_eval_says_what_is_wrong(run, texts, tmp_path, capsys, arguments, status, words):
    (tmp_path / "empty.txt").write_text("")
    places = {"RUN": str(run), "TEXT": texts[0], "EMPTY": str(tmp_path / "empty.txt")}
    if "ENCODER" in arguments:
        small_run(tmp_path / "encoder", {"topology": "encoder"})
        places["ENCODER"] = str(tmp_path / "encoder")
    if "DAMAGED" in arguments:
        small_run(tmp_path / "damaged")
        weights = tmp_path / "damaged" / "model.safetensors"
        weights.write_bytes(weights.read_bytes()[:-50])
        places["DAMAGED"] = str(tmp_path / "damaged")
    try:
        found = main(["eval", *(places.get(word, word) for word in arguments)])
    except SystemExit as stop:
        found = stop.code
    out, err = capsys.readouterr()
    assert (found, out) == (status, "")
    assert words in err


def test_eval_as_a_process_reads_standard_input_and_prints_plain_text(run):
    done = subprocess.run(
        [sys.executable, "-m", "anyformer", "eval", str(run), "-"],
        input=TEXT.encode(), capture_output=True, cwd=ROOT, check=False, timeout=120,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"bits per byte" in done.stdout
    assert b"\x1b" not in done.stdout


@needs_stories
def test_eval_of_a_published_model_knows_a_story_from_noise(tmp_path, capsys):
    known = json.loads((STORIES / "greedy.json").read_text(encoding="utf-8"))["text"]
    figures = []
    for i, text in enumerate((known, "".join(reversed(known)))):
        file = tmp_path / f"{i}.txt"
        file.write_text(text, encoding="utf-8")
        assert main(["eval", str(STORIES), str(file), "--json"]) == 0
        figures.append(json.loads(capsys.readouterr().out)["bits_per_byte"])
    assert figures[0] < 1 < 4 < figures[1]


def test_eval_quantised_says_what_it_loses_in_a_line_and_as_json(run, texts, capsys):
    assert main(["eval", str(run), *texts, "--quantize", "int8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    loss = found["quantized"]
    small, tokenizer = af.load(run, quantize="int8"), af.tokenizer(run)
    total = score(small, tokenizer, TEXT) + score(small, tokenizer, "the dog, na\u00efve\r\n")
    assert (loss["kind"], loss["tokens"]) == ("int8", found["tokens"])
    assert loss["perplexity"]["before"] == pytest.approx(found["perplexity"], rel=1e-6)
    assert loss["perplexity"]["after"] == pytest.approx(total.perplexity, rel=1e-5)
    assert loss["bits_per_byte"]["after"] == pytest.approx(total.bits_per_byte, rel=1e-5)
    assert 0 < loss["mean_kl"] < 0.05
    assert main(["eval", str(run), *texts, "--quantize", "int8"]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert f"int8: perplexity {loss['perplexity']['before']:.3f} -> {loss['perplexity']['after']:.3f}" in out
