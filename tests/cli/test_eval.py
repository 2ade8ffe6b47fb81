"""anyformer eval: the figures, as a table and as JSON, and how it ends."""

import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

import anyformer as af
from anyformer.cli import model as shared
from anyformer.cli.main import main
from anyformer.data.dataset import Examples
from anyformer.evals.eval_setup import open_setup
from anyformer.evals.tasks import measure
from anyformer.train.config import ModelPart
from anyformer.train.perplexity import score
from anyformer.train.trainer import Trainer
from tests.cli.small_run import TEXT, small_run
from tests.data.feeding import examples_for, make, spec_for
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.evals.test_translation import needs_sacrebleu
from tests.train.small_data import text_config, text_data, write_data

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
        (["RUN"], 2, "nothing to measure on: a file (TEXT), or a part of the data such as --part valid"),
        (["RUN", "TEXT", "--part", "valid"], 2, "give one of TEXT and --part, not both"),
        (["RUN", "TEXT", "--length", "8", "--limit", "2"], 2, "--length, --limit: of use only with --part"),
        (["RUN", "--part", "valid", "--stride", "8"], 2, "--stride: of use only with a TEXT"),
        (["RUN", "--part", "valid"], 2, "has no config.toml that says where its data are"),
        (["RUN", "TEXT", "--device", "nowhere"], 2, "--device: 'nowhere' is neither cpu nor cuda"),
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
        input=TEXT.encode(), capture_output=True, cwd=ROOT, check=False, timeout=900,
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


def test_eval_in_another_dtype_gives_the_figures_of_that_dtype(run, texts, capsys):
    assert main(["eval", str(run), texts[0], "--dtype", "float64", "--device", "cpu", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    exact = score(af.load(run, dtype=torch.float64), af.tokenizer(run), TEXT)
    assert found["nats"] == exact.nats
    assert found["nats"] != score(af.load(run), af.tokenizer(run), TEXT).nats


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A run of anyformer train, and its data."""
    place = tmp_path_factory.mktemp("trained")
    with Trainer(text_config(text_data(place / "data"), place / "run")) as made:
        list(made.events())
    return place


def test_eval_of_a_part_has_the_figures_of_the_run_by_length(trained, capsys):
    asked = ["eval", str(trained / "run"), "--part", "valid"]
    assert main([*asked, "--length", "32", "--length", "8", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    setup = open_setup(trained / "run", "valid")
    want = [measure(setup), measure(setup, length=8)]
    assert (found["part"], found["objective"], found["examples"]) == ("valid", "causal", 20)
    for each, known in zip(found["measured"], want, strict=True):
        assert (each["length"], each["loss"], each["accuracy"]) == (known.length, known.loss, known.figures["accuracy"])
        assert each["perplexity"] == pytest.approx(math.exp(known.loss))
        assert each["bits_per_byte"] == known.bits_per_byte
    assert main(asked) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split() == ["length", "labels", "loss", "perplexity", "bits", "per", "byte", "accuracy"]
    assert lines[2].split()[:3] == ["32", str(want[0].labels), f"{want[0].loss:.4f}"]


def test_eval_of_a_converted_run_pools_heads_and_its_weights_begin_another_run(trained, tmp_path, capsys):
    pooled = tmp_path / "pooled"
    assert main(["convert", str(trained / "run"), str(pooled), "--kv-heads", "1", "--pool", "mean"]) == 0
    asked = ["--part", "valid", "--data", str(trained / "data"), "--json"]
    capsys.readouterr()
    assert main(["eval", str(pooled), *asked]) == 0
    (before,) = json.loads(capsys.readouterr().out)["measured"]
    config = text_config(trained / "data", tmp_path / "more", {"stages.steps": 40})
    with Trainer(replace(config, model=ModelPart(weights=str(pooled)))) as more:
        list(more.events())
    assert main(["eval", str(tmp_path / "more"), *asked]) == 0
    (after,) = json.loads(capsys.readouterr().out)["measured"]
    assert af.load(tmp_path / "more").spec.attention.kv_heads == 1
    assert after["labels"] == before["labels"]
    assert after["loss"] < before["loss"]


def classified(place: Path, kind: str, names) -> tuple[Path, Path]:
    """A model with a head for classes, and data for it."""
    objective = make(kind)
    parts = {}
    for seed, part in enumerate(("train", "valid")):
        some = examples_for(objective, 12, seed=seed)
        columns = {c: [some.read(c, i) for i in range(len(some))] for c in some.columns}
        parts[part] = Examples.of(columns, names={objective.classes: names})
    af.save(af.build(spec_for(objective)), place / "model")
    return place / "model", write_data(place / "data", parts)


def test_eval_of_tags_says_majority_margin_and_confusion_by_class(tmp_path, capsys):
    model, data = classified(tmp_path, "tag", ("NOUN", "VERB", "X"))
    asked = ["eval", str(model), "--part", "valid", "--data", str(data)]
    assert main([*asked, "--json"]) == 0
    (found,) = json.loads(capsys.readouterr().out)["measured"]
    assert [row["class"] for row in found["classes"]] == ["NOUN", "VERB", "X"]
    assert sum(map(sum, found["confusion"])) == found["labels"]
    right = sum(row["right"] for row in found["classes"])
    assert found["accuracy"] == pytest.approx(right / found["labels"])
    assert found["majority"]["margin"] == pytest.approx(found["accuracy"] - found["majority"]["accuracy"])
    assert main(asked) == 0
    out = capsys.readouterr().out
    assert f"{100 * found['majority']['accuracy']:.2f}%" in out
    assert f"{100 * found['majority']['margin']:+.2f}" in out
    assert f"the majority always says {found['majority']['class']!r}" in out


@pytest.mark.parametrize("option", ["--num-beams", "--limit"])
def test_eval_of_a_part_that_is_no_translation_has_no_beams(trained, capsys, option):
    assert main(["eval", str(trained / "run"), "--part", "valid", option, "2"]) == 2
    assert f"{option}: only for translations, and the objective is 'causal'" in capsys.readouterr().err


def pairs(place: Path) -> tuple[Path, Path]:
    """A model that translates badly, its tokenizer and its data."""
    _, tokenizer = small_run(place / "words")
    texts = {"source": ["the cat", "the dog", "the cat"], "target": ["sat on", "the mat", "sat"]}
    examples = Examples.of({c: [tokenizer.encode(text) for text in some] for c, some in texts.items()})
    model = af.build(spec_for(make("translate"), vocab=tokenizer.vocab), seed=2)
    af.save(model, place / "model")
    tokenizer.save(place / "model")
    return place / "model", write_data(place / "data", {"valid": examples}, tokenizer)


@needs_sacrebleu
def test_eval_of_pairs_translates_greedily_and_with_beams(tmp_path, capsys):
    model, data = pairs(tmp_path)
    asked = ["eval", str(model), "--part", "valid", "--data", str(data), "--num-beams", "1", "--num-beams", "2"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["num_beams"] for each in found["translations"]] == [1, 2]
    for each in found["translations"]:
        assert (each["sentences"], each["references"]) == (2, 3)
        assert [sample["source"] for sample in each["samples"]] == ["the cat", "the dog"]
        assert each["samples"][0]["references"] == ["sat on", "sat"]
        assert "version" in each["signature"]
    assert main([*asked, "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "greedy: BLEU" in out
    assert "2 beams: BLEU" in out
    assert "1 sentences" in out


def test_eval_of_pairs_without_decoding_has_the_teacher_forced_figures(tmp_path, capsys):
    model, data = pairs(tmp_path)
    asked = ["eval", str(model), "--part", "valid", "--data", str(data), "--num-beams", "0"]
    assert main([*asked, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert "translations" not in found
    assert found["measured"][0]["perplexity"] == pytest.approx(math.exp(found["measured"][0]["loss"]))
    assert main([*asked, "--limit", "2"]) == 2
    assert "--limit: with --num-beams 0 nothing is translated" in capsys.readouterr().err


def test_eval_of_pairs_without_sacrebleu_names_the_package_before_anything_is_measured(tmp_path, capsys, monkeypatch):
    from anyformer.evals import translation as bleu

    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(bleu, "installed", missing)
    model, data = pairs(tmp_path)
    assert main(["eval", str(model), "--part", "valid", "--data", str(data)]) == 1
    out, err = capsys.readouterr()
    assert out == ""
    assert "pip install sacrebleu" in err
