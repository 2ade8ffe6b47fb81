"""`anyformer tokenize` from the command line: every format, what it prints, and what it refuses."""

import gzip
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.tokenize import FORMATS, KINDS
from anyformer.data import tokenizer_training, tokenizing
from anyformer.data.shards import open_examples, open_index
from anyformer.data.sources import Format
from tests.cli.command import run

ROOT = Path(af.__file__).parents[1]
TEXT = "".join(f"The {i}th line of a little text.\n" for i in range(60))


@pytest.fixture
def book(tmp_path):
    (tmp_path / "book.txt").write_text(TEXT)
    return str(tmp_path / "book.txt")


def test_choices_are_those_of_the_library():
    assert set(FORMATS) <= set(Format.kinds())
    assert set(KINDS) == set(tokenizer_training.KINDS)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenize_with_every_kind_writes_a_folder_that_opens(capsys, book, tmp_path, kind):
    size = [] if kind == "chars" else ["--vocab", "320"]
    asked = ["tokenize", book, "--out", str(tmp_path / "out"), "--train", kind, *size, "--hold-out", "0.1"]
    ran = run(capsys, *asked, "--special", "<mask>", "--sentinels", "2")
    assert ran.status == 0, ran.err
    assert ran.out.startswith(f"{tmp_path / 'out'}: text, vocabulary ")
    index = open_index(tmp_path / "out")
    assert ("mask" in index.ids, len(index.sentinels)) == (True, 2)
    train, valid = (open_examples(tmp_path / "out", part) for part in ("train", "valid"))
    assert train.bytes + valid.bytes == len(TEXT)
    ran = run(capsys, *asked, "--special", "<mask>", "--sentinels", "2")
    assert "it was there already" in ran.out
    ran = run(capsys, *asked)
    assert (ran.status, "was made of something else" in ran.err) == (2, True)


@pytest.mark.parametrize("kind", KINDS)
def test_tokenize_a_text_of_more_than_one_report_trains(capsys, book, tmp_path, monkeypatch, kind):
    monkeypatch.setattr(tokenizing, "STEP", 16)
    size = [] if kind == "chars" else ["--vocab", "320"]
    ran = run(capsys, "tokenize", book, "--out", str(tmp_path / "out"), "--train", kind, *size)
    assert ran.status == 0, ran.err


def test_tokenize_files_of_classes_gives_labels_in_the_order_given(capsys, book, tmp_path):
    (tmp_path / "good.txt").write_text("so good\n\nthe best \n" * 20)
    asked = ["--label", f"pos={tmp_path / 'good.txt'}", "--label", f"neg={book}", "--lines", "--hold-out", "0.2"]
    ran = run(capsys, "tokenize", *asked, "--out", str(tmp_path / "out"), "--train", "chars", "--json")
    assert ran.status == 0, ran.err
    assert ran.json["names"] == {"label": ["pos", "neg"]}
    train = open_examples(tmp_path / "out", "train")
    assert {train.read("label", i).tolist()[0] for i in range(len(train))} == {0, 1}
    assert ran.json["parts"]["train"]["examples"] + ran.json["parts"]["valid"]["examples"] == 100


def test_tokenize_records_with_named_columns_and_parts(capsys, tmp_path):
    for part in ("train", "dev"):
        rows = [{"id": i, "premise": f"p {i}", "claim": "c", "gold": ["no", "yes"][i % 2]} for i in range(9)]
        (tmp_path / f"{part}.jsonl.gz").write_bytes(gzip.compress("\n".join(map(json.dumps, rows)).encode()))
    ran = run(
        capsys, "tokenize", str(tmp_path / "train.jsonl.gz"), "--valid", str(tmp_path / "dev.jsonl.gz"),
        "--test", str(tmp_path / "dev.jsonl.gz"), "--out", str(tmp_path / "out"), "--train", "bpe", "--vocab", "300",
        "--column", "a=premise", "--column", "b=claim", "--column", "label=gold", "--shard-tokens", "20", "--json",
    )  # fmt: skip
    assert ran.status == 0, ran.err
    assert ran.json["columns"] == {"a": "uint16", "b": "uint16", "label": "int32"}
    assert ran.json["parts"]["train"]["shards"] > 1
    assert set(ran.json["parts"]) == {"train", "valid", "test"}
    assert ran.json["names"] == {"label": ["no", "yes"]}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["{book}"], "texts need a tokenizer"),
        ([], "give files to learn from, or one for each class"),
        (["{book}", "--label", "a={book}"], "not both"),
        (["{book}", "--vocab", "300"], "add --train KIND"),
        (["{book}", "--train", "bpe"], "--vocab 8192"),
        (["{book}", "--train", "chars", "--tokenizer", "x"], "trained or given, not both"),
        (["{book}", "--train", "chars", "--header"], "--header: files of the format text have no such option"),
        (["{book}", "--train", "chars", "--format", "tsv", "--lines"], "--lines: files of the format tsv have no such"),
        (["{book}", "--train", "chars", "--format", "josnl"], "did you mean 'jsonl'"),
        (["{book}", "--train", "chars", "--split", "last"], "add --hold-out"),
        (["{book}", "--train", "chars", "--dedupe", "text"], "hold out a share"),
        (["{book}", "--train", "chars", "--hold-out", "0.1", "--valid", "{book}"], "given or held out, not both"),
        (["{book}", "--train", "chars", "--column", "text=a", "--column", "text=b"], "text is given twice"),
        (["{book}", "--train", "chars", "--column", "text=words"], "has no field 'words'"),
        (["{book}", "--train", "chars", "--column", "text"], "is not NAME=VALUE"),
        (["{book}", "--train", "bpee", "--vocab", "300"], "invalid choice: 'bpee'"),
        (["{book}", "--tokenizer", "no/such"], "there is no such file"),
        (["no/such.txt", "--train", "chars"], "there is no such file or folder"),
        (["{folder}", "--train", "chars"], "all files of which are read; pick a folder outside of it"),
    ],
)
def test_tokenize_asked_for_what_can_not_be_says_so_and_makes_nothing(capsys, book, tmp_path, asked, message):
    ran = run(
        capsys, "tokenize", *(word.format(book=book, folder=tmp_path) for word in asked), "--out", str(tmp_path / "out")
    )
    assert (ran.status, message in ran.err) == (2, True), ran.err
    assert os.listdir(tmp_path) == ["book.txt"]


def test_tokenize_with_so_many_workers_starts_so_many_threads(book, tmp_path):
    code = (
        "import os, sys\nimport numpy\n"
        "from anyformer.cli.main import main\n"
        "before = len(os.listdir('/proc/self/task'))\n"
        "assert main(sys.argv[1:]) == 0\n"
        "print(len(os.listdir('/proc/self/task')) - before)\n"
    )
    if not Path("/proc/self/task").is_dir():
        pytest.skip("threads are counted in /proc")
    asked = ["tokenize", book, "--out", str(tmp_path / "out"), "--train", "bpe", "--vocab", "300", "--workers", "3"]
    done = subprocess.run(
        [sys.executable, "-c", code, *asked], capture_output=True, text=True, timeout=900,
        # Pipelines of transformers, in another test, forbid threads to whatever comes after them.
        env={k: v for k, v in os.environ.items() if k != "TOKENIZERS_PARALLELISM"} | {"PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3"
