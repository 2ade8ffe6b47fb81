"""Shards: what is read is what was encoded, a kill loses nothing, and damage is named."""

import errno
import gzip
import json
import os
import subprocess
import sys
from fractions import Fraction
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

import anyformer as af
from anyformer import files
from anyformer.data import encoding, tokenizing
from anyformer.data.corpus import RawFile, text_corpus
from anyformer.data.scan import Plan
from anyformer.data.shards import INDEX, JOURNAL, npy_header, open_examples, open_index
from anyformer.data.sources import text as text_module
from anyformer.data.sources.conllu import Conllu
from anyformer.data.sources.jsonl import JsonLines
from anyformer.data.sources.text import Text
from anyformer.data.sources.tsv import Tsv
from anyformer.data.tokenizer import train_bpe
from anyformer.data.tokenizer_training import KINDS, Training
from anyformer.data.tokenizing import tokenize
from anyformer.errors import DataError, InputError

ROOT = Path(af.__file__).parents[1]
SHARED = ROOT.parent / "shared" / "data"
CODE = Path(encoding.__file__).read_text(encoding="utf-8")
SIZES = {"bpe": 400, "wordpiece": 400, "unigram": 450, "chars": None}


def planned(place: Path, text: str, name: str = "a.txt", format=None, **more) -> Plan:
    file = place / name
    file.write_text(text, encoding="utf-8", newline="")
    asked = {"training": Training(kind="bpe", vocab=300), "format": format or Text(), **more}
    return Plan(out=place / "out", files={"train": (RawFile(file),)}, **asked)


def lists(examples, column: str) -> list[list[float]]:
    return [examples.read(column, i).tolist() for i in range(len(examples))]


def decoded(place: Path, part: str, column: str = "tokens") -> list[str]:
    made = open_index(place).tokenizer()
    return [made.decode(ids) for ids in lists(open_examples(place, part), column)]


def content(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def stories(count: int) -> str:
    return "<|endoftext|>\n".join(f"Story {i}.\nOnce {'upon ' * (i % 7)}a time.\n" for i in range(count))


def test_header_is_what_numpy_reads(tmp_path):
    for dtype in ("uint16", "uint32", "int32", "int64", "float32"):
        array = np.arange(5).astype(dtype)
        (tmp_path / "a.npy").write_bytes(npy_header(dtype, 5) + array.tobytes())
        read = np.load(tmp_path / "a.npy", mmap_mode="r", allow_pickle=False)
        assert (read.dtype, read.tolist()) == (array.dtype, [0, 1, 2, 3, 4])


@pytest.mark.parametrize("kind", KINDS)
def test_long_text_in_pieces_has_the_tokens_of_the_whole(tmp_path, monkeypatch, kind):
    monkeypatch.setattr(text_module, "PIECE", 300)
    monkeypatch.setattr(encoding, "BATCH", 1000)
    plan = planned(tmp_path, CODE, training=Training(kind=kind, vocab=SIZES[kind]), shard=100)
    index, _ = tokenize(plan)
    assert (index.parts["train"].examples, len(index.parts["train"].shards)) == (1, 1), "one document, one shard"
    assert index.parts["train"].bytes == len(CODE.encode())
    assert lists(open_examples(plan.out, "train"), "tokens") == [index.tokenizer().encode(CODE)]


def test_long_text_whose_tokens_cross_every_cut_is_encoded_whole(tmp_path, monkeypatch):
    import tokenizers

    # A tokenizer that reads from the end to the beginning of a text: no piece has the tokens that it has in the whole.
    inner = tokenizers.Tokenizer(tokenizers.models.BPE({"a": 0, "\n": 1, "\na": 2, "x": 3}, [("\n", "a")]))
    inner.save(str(tmp_path / "tokenizer.json"))
    monkeypatch.setattr(text_module, "PIECE", 4)
    text = "ax\na\naa\nax\nxx\na\n"
    plan = planned(tmp_path, text, training=None, tokenizer=tmp_path / "tokenizer.json")
    tokenize(plan)
    assert lists(open_examples(plan.out, "train"), "tokens") == [inner.encode(text).ids]


def test_one_text_is_cut_by_characters_as_a_corpus_is(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 500)
    plan = planned(tmp_path, CODE, hold_out=Fraction("0.1"))
    tokenize(plan)
    corpus = text_corpus(tmp_path / "a.txt")
    assert decoded(plan.out, "train") == [corpus.train[0].text]
    assert decoded(plan.out, "valid") == [corpus.held_out[0].text]


@pytest.mark.parametrize("count", [2, 3, 40])
def test_documents_are_held_out_as_in_a_corpus(tmp_path, count):
    plan = planned(tmp_path, stories(count), hold_out=Fraction("0.1"), shard=50)
    tokenize(plan)
    corpus = text_corpus(tmp_path / "a.txt")
    assert decoded(plan.out, "train") == [document.text for document in corpus.train]
    assert decoded(plan.out, "valid") == [document.text for document in corpus.held_out]


def test_last_of_series_and_of_one_text_in_another_field_are_the_share(tmp_path):
    rows = [json.dumps({"values": [i], "target": i}) for i in range(20)]
    asked = {"format": JsonLines(), "hold_out": Fraction("0.1"), "way": "last"}
    for name in ("series", "text"):
        (tmp_path / name).mkdir()
    tokenize(planned(tmp_path / "series", "\n".join(rows), "a.jsonl", training=None, **asked))
    tokenize(planned(tmp_path / "text", json.dumps({"body": CODE}), "a.jsonl", columns={"text": "body"}, **asked))
    assert lists(open_examples(tmp_path / "series/out", "valid"), "target") == [[18.0], [19.0]]
    assert decoded(tmp_path / "text/out", "valid") == [CODE[int(len(CODE) * Fraction("0.9")) :]]


def test_pairs_never_have_one_source_on_both_sides(tmp_path):
    text = "".join(f"source {i % 60}\ttarget {i}\n" for i in range(300))
    for key in ("source", None):
        folder = tmp_path / str(key)
        folder.mkdir()
        plan = planned(folder, text, "a.tsv", Tsv(), hold_out=Fraction("0.2"), key=key)
        tokenize(plan)
        both = [set(decoded(plan.out, part, "source")) for part in ("train", "valid")]
        assert bool(both[0] & both[1]) == (key is None), "and without the option it happens"
        assert len(open_examples(plan.out, "train")) + len(open_examples(plan.out, "valid")) == 300
        assert 20 < len(open_examples(plan.out, "valid")) < 120


@pytest.mark.parametrize("kind", KINDS)
def test_tags_are_on_the_first_token_of_each_word(tmp_path, kind):
    words, tags = ["Walking", "in", "New York", ",", "naively"], ["VERB", "ADP", "PROPN", "PUNCT", "ADV"]
    rows = [
        "\t".join([f"{i}", word, "_", tag, *"______"]) for i, (word, tag) in enumerate(zip(words, tags, strict=True))
    ]
    text = "\n".join([*rows, ""] * 3)
    plan = planned(
        tmp_path, text, "a.conllu", Conllu(), training=Training(kind=kind, vocab=None if kind == "chars" else 320)
    )
    index, _ = tokenize(plan)
    examples, made = open_examples(plan.out, "train"), index.tokenizer()
    assert index.names["tags"] == ("ADP", "ADV", "PROPN", "PUNCT", "VERB")
    tokens, marks = examples.read("tokens", 0).tolist(), examples.read("tags", 0).tolist()
    assert tokens == made.encode("Walking in New York , naively")
    assert [index.names["tags"][tag] for tag in marks if tag >= 0] == tags
    assert set(marks) - set(range(5)) == {-100}
    # What follows a tag up to the next is the word, or begins with it and ends with a piece of the space.
    starts = [*(i for i, tag in enumerate(marks) if tag >= 0), len(tokens)]
    assert [made.decode(tokens[a:b]).strip() for a, b in pairwise(starts)] == words
    # The sign that Unigram puts before a text belongs to the first word.
    assert all(made.decode([tokens[i]]).strip() for i in starts[1:-1]), "a space alone has no tag"


def test_series_and_triplets_have_columns_of_their_own(tmp_path):
    rows = [{"values": [[i, 0.5], [2, 3]], "target": i} for i in range(3)]
    plan = planned(tmp_path, "\n".join(map(json.dumps, rows)), "a.jsonl", JsonLines(), training=None)
    index, _ = tokenize(plan)
    examples = open_examples(plan.out, "train")
    assert (index.vocab, index.tokenizer_sha256, sorted(content(plan.out))[0]) == (0, None, INDEX)
    assert lists(examples, "values")[2] == [2.0, 0.5, 2.0, 3.0]
    assert (lists(examples, "target"), examples.dtype("target")) == ([[0.0], [1.0], [2.0]], np.float32)
    folder = tmp_path / "b"
    folder.mkdir()
    plan = planned(folder, '{"a": "x", "b": "y", "c": "z"}\n', "a.jsonl", JsonLines())
    tokenize(plan)
    examples = open_examples(plan.out, "train")
    assert (examples.columns, examples.names["label"], lists(examples, "label")) == (
        ("a", "b", "c", "label"), ("b", "c"), [[0]],
    )  # fmt: skip


class Killed(BaseException):
    """The process is gone."""


class Deadly(files.Disk):
    """A disk at whose n-th call the process dies, or the call fails: afterwards nothing is written any more."""

    def __init__(self, at: int, error: BaseException) -> None:
        self.calls, self.at, self.error = 0, at, error

    def _count(self) -> None:
        self.calls += 1
        if self.calls == self.at or (self.calls > self.at and isinstance(self.error, Killed)):
            raise self.error

    def create(self, path):
        self._count()
        return super().create(path)

    def write(self, handle, piece):
        self._count()
        super().write(handle, piece)

    def sync(self, path):
        # Nothing is waited for: what is tested is the order of calls.
        self._count()

    def rename(self, source, target):
        self._count()
        super().rename(source, target)

    def remove(self, path):
        if self.calls < self.at or not isinstance(self.error, Killed):
            super().remove(path)


@pytest.fixture
def small_plan(tmp_path, monkeypatch):
    """A plan of four shards, and what an uninterrupted run makes of it."""
    monkeypatch.setattr(encoding, "BATCH", 200)
    # Documents come in pieces, and a shard goes on after the last of one.
    monkeypatch.setattr(text_module, "PIECE", 8)
    train_bpe([stories(24)], 300).save(tmp_path / "made")
    given = {"training": None, "tokenizer": tmp_path / "made"}
    plan = planned(tmp_path, stories(24), hold_out=Fraction("0.2"), shard=80, **given)
    disk = Deadly(10**9, Killed())
    monkeypatch.setattr(files, "DISK", disk)
    tokenize(plan)
    assert len(open_index(plan.out).parts["train"].shards) >= 3
    return plan, content(plan.out), disk.calls


def forget(folder: Path) -> None:
    for file in folder.iterdir():
        file.unlink()


@pytest.mark.parametrize("how", ["killed", "full"])
def test_tokenize_stopped_at_every_call_goes_on_to_the_same_bytes(small_plan, monkeypatch, how):
    plan, wanted, calls = small_plan
    assert calls > 40
    kept = set()
    for at in range(1, calls + 1, 1 if how == "killed" else 3):
        forget(plan.out)
        error = Killed() if how == "killed" else OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        monkeypatch.setattr(files, "DISK", Deadly(at, error))
        with pytest.raises(Killed if how == "killed" else OSError) as caught:
            tokenize(plan)
        if how == "full":
            assert "No space left on device" in str(caught.value)
            assert "the same command goes on" in str(caught.value)
            named = Path(caught.value.filename)
            assert named == plan.out or named.parent == plan.out
            assert ".tmp-" not in named.name
            assert not [name for name in content(plan.out) if ".tmp-" in name], "nothing half written stays"
        monkeypatch.setattr(files, "DISK", Deadly(10**9, Killed()))
        _, done = tokenize(plan)
        kept.add(done)
        assert content(plan.out) == wanted
    assert len(kept) >= 4, "kills fell between different shards, and whole ones were not made again"


def test_tokenize_of_a_finished_folder_does_nothing(small_plan):
    plan, wanted, _ = small_plan
    before = {file.name: file.stat().st_mtime_ns for file in plan.out.iterdir()}
    index, done = tokenize(plan)
    assert done == sum(len(part.shards) for part in index.parts.values())
    assert {file.name: file.stat().st_mtime_ns for file in plan.out.iterdir()} == before
    assert content(plan.out) == wanted


@pytest.mark.parametrize("finished", [True, False])
def test_tokenize_with_other_options_or_inputs_names_them_and_changes_nothing(small_plan, monkeypatch, finished):
    plan, wanted, calls = small_plan
    if not finished:
        forget(plan.out)
        monkeypatch.setattr(files, "DISK", Deadly(calls // 2, Killed()))
        with pytest.raises(Killed):
            tokenize(plan)
        monkeypatch.setattr(files, "DISK", Deadly(10**9, Killed()))
        wanted = content(plan.out)
        assert JOURNAL in wanted
        with pytest.raises(DataError, match="is unfinished; run its command again"):
            open_index(plan.out)
    (RawFile(plan.files["train"][0].path).path).write_text(stories(25))
    others = Plan(
        out=plan.out, files=plan.files, format=plan.format, training=Training(kind="bpe", vocab=333),
        hold_out=Fraction("0.3"), shard=80,
    )  # fmt: skip
    with pytest.raises(InputError) as caught:
        tokenize(others)
    for word in (
        "train was None and is {",
        "'vocab': 333",
        "tokenizer was",
        "hold_out was '1/5' and is '3/10'",
        "the train file a.txt is another",
    ):
        assert word in str(caught.value)
    assert "shard_tokens" not in str(caught.value)
    assert content(plan.out) == wanted


def test_tokenize_into_a_folder_of_somebody_else_leaves_it_alone(tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.txt").write_text("ten years")
    with pytest.raises(InputError, match=r"holds thesis.txt, which is not ours"):
        tokenize(planned(tmp_path, CODE))
    assert content(tmp_path / "out") == {"thesis.txt": b"ten years"}


def test_tokenize_of_a_folder_that_another_process_finished_meanwhile_keeps_it(small_plan, monkeypatch):
    plan, wanted, _ = small_plan
    index = (plan.out / INDEX).read_bytes()
    (plan.out / INDEX).unlink()
    survey = tokenizing.take_survey

    def slow(*given):
        (plan.out / INDEX).write_bytes(index)
        return survey(*given)

    monkeypatch.setattr(tokenizing, "take_survey", slow)
    with pytest.raises(InputError, match="another process wrote to it meanwhile; run the command again"):
        tokenize(plan)
    assert content(plan.out) == wanted


def test_tokenize_into_a_folder_with_a_file_like_ours_leaves_it_there(tmp_path):
    plan = planned(tmp_path, stories(3))
    plan.out.mkdir()
    (plan.out / "notes.tmp-1.txt").write_text("mine")
    with pytest.raises(InputError, match=r"holds notes.tmp-1.txt, which is not ours"):
        tokenize(plan)
    assert os.listdir(plan.out) == ["notes.tmp-1.txt"]


def test_tokenize_while_another_process_writes_is_refused(small_plan):
    import fcntl

    plan, wanted, _ = small_plan
    (plan.out / INDEX).unlink()
    handle = os.open(plan.out, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another process writes to it"):
            tokenize(plan)
    finally:
        os.close(handle)
    tokenize(plan)
    assert content(plan.out) == wanted


@pytest.mark.parametrize(
    ("text", "name", "format", "more", "message"),
    [
        ("", "a.txt", Text(), {}, "a.txt: there is no example in it"),
        (" \n\n", "a.txt", Text(), {}, "there is no example in it"),
        ("one\n", "a.jsonl", JsonLines(), {}, "a.jsonl:1: is not JSON"),
        ('{"text": "a"}\n{"txt": "b"}\n', "a.jsonl", JsonLines(), {}, "a.jsonl:2: has no field 'text'"),
        ("one\n", "a.txt", Text(), {"training": None}, "texts need a tokenizer"),
        ("one\n", "a.txt", Text(), {"training": None, "tokenizer": Path("no/where")}, "no such file"),
        ("one\n", "a.txt", Text(split="lines"), {"hold_out": Fraction("0.1"), "way": "drawn"}, "has no example"),
        ("a\tb\n", "a.tsv", Tsv(), {"hold_out": Fraction("0.1"), "key": "text"}, "no column 'text' to keep"),
        ("one\n", "a.txt", Text(), {"training": Training(kind="bpe", vocab=99)}, "vocab: 99 is less than 257"),
        ('{"values": [1], "target": 1}', "a.jsonl", JsonLines(), {}, "series of numbers have no tokenizer"),
    ],
)  # fmt: skip
def test_tokenize_of_bad_input_says_so_and_makes_no_folder(tmp_path, text, name, format, more, message):
    with pytest.raises((DataError, InputError), match=message):
        tokenize(planned(tmp_path, text, name, format, **more))
    assert os.listdir(tmp_path) == [name]


def test_character_without_a_token_is_named_with_its_place(tmp_path):
    plan = planned(tmp_path, "abc\n" * 20 + "abz\n", format=Text(split="lines"), training=Training(kind="chars"))
    files = {"train": plan.files["train"], "valid": plan.files["train"]}
    (tmp_path / "b.txt").write_text("abc\n" * 20)
    files["train"] = (RawFile(tmp_path / "b.txt"),)

    def asked(**more) -> Plan:
        return Plan(out=plan.out, files=files, format=plan.format, training=Training(kind="chars", **more))

    with pytest.raises(DataError, match=r"a.txt:21: 'z' \(U\+007A\) has no token.*--special '<unk>'"):
        tokenize(asked())
    # A whole shard is there, which is not thrown away without being asked.
    with pytest.raises(InputError, match=r"train was .*; pick another folder, or remove it"):
        tokenize(asked(specials=("<unk>",)))


def test_character_without_a_token_is_named_with_its_line_in_a_long_text(tmp_path, monkeypatch):
    monkeypatch.setattr(text_module, "PIECE", 40)
    (tmp_path / "b.txt").write_text("abc def\n" * 20)
    # The 25th line, whether it is beside a cut or not, in a part that is given or held out.
    text = "abc def\n" * 24 + "abz def\n" + "abc def\n" * 5
    plan = planned(tmp_path, text, training=Training(kind="chars"), hold_out=Fraction("0.3"))
    given = {"train": (RawFile(tmp_path / "b.txt"),), "valid": plan.files["train"]}
    asked = Plan(out=tmp_path / "given", files=given, format=plan.format, training=plan.training)
    for one in (plan, asked):
        with pytest.raises(DataError, match=r"^a.txt:25: 'z' \(U\+007A\) has no token"):
            tokenize(one)


def damage(folder: Path, name: str, change) -> str:
    file = next(file for file in sorted(folder.iterdir()) if name in file.name)
    file.write_bytes(change(file.read_bytes()))
    return file.name


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("tokens.npy", lambda b: b[:-2], "should have"),
        ("tokens.npy", lambda b: b[:-1] + bytes([b[-1] ^ 1]), "SHA-256"),
        ("bounds.npy", lambda b: b[:-8] + bytes(8), "SHA-256"),
        (INDEX, lambda b: b[:99], "is damaged"),
        (INDEX, lambda b: b.replace(b'"version": 1', b'"version": 9'), "is of version 9"),
        (INDEX, lambda b: b.replace(b"train-00000.tokens.npy", b"../../../etc/passwd.npy"), "is no name of a shard"),
        (INDEX, lambda b: b.replace(b'"uint16"', b'"object"'), "a column of 'object'"),
        (INDEX, lambda b: b.replace(b'"fingerprint"', b'"fingerprin"'), "'fingerprint' is missing"),
        (INDEX, lambda b: b"[]", "is damaged"),
        ("tokenizer.json", lambda b: b + b" ", "is not the one that the ids were made with"),
    ],
)  # fmt: skip
def test_damaged_file_is_named(tmp_path, name, change, message):
    plan = planned(tmp_path, CODE)
    tokenize(plan)
    hit = damage(plan.out, name, change)
    with pytest.raises(DataError, match=message) as caught:
        open_index(plan.out).tokenizer() if name == "tokenizer.json" else open_examples(plan.out, "train", verify=True)
    assert hit in str(caught.value)


def test_missing_part_folder_or_file_is_named(tmp_path):
    plan = planned(tmp_path, CODE)
    tokenize(plan)
    with pytest.raises(DataError, match="has no part 'vaild'"):
        open_examples(plan.out, "vaild")
    with pytest.raises(DataError, match="make one with anyformer tokenize"):
        open_examples(tmp_path, "train")
    (plan.out / "train-00000.tokens.npy").unlink()
    with pytest.raises(DataError, match=r"train-00000.tokens.npy: is missing"):
        open_examples(plan.out, "train")


MEMORY = """
import sys
from pathlib import Path
from anyformer.data import encoding
from anyformer.data.corpus import RawFile
from anyformer.data.sources.text import Text
from anyformer.data.scan import Plan
from anyformer.data.tokenizing import tokenize
from anyformer.data.tokenizer_training import Training

encoding.BATCH = 2**17
def peak():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmHWM"))
for copies in (1, 12):
    place = Path(sys.argv[1]) / str(copies)
    place.mkdir()
    (place / "a.txt").write_text(Path(encoding.__file__).read_text() * 20 * copies)
    tokenize(Plan(out=place / "out", files={"train": (RawFile(place / "a.txt"),)}, format=Text(),
                  training=Training(kind="bpe", vocab=500)))
    print(peak())
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the peak of memory is read from /proc")
def test_memory_does_not_grow_with_the_text(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", MEMORY, str(tmp_path)], capture_output=True, text=True, timeout=900,
        env={"PYTHONPATH": str(ROOT), "RAYON_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    small, large = map(float, done.stdout.split())
    size = (tmp_path / "12" / "a.txt").stat().st_size / 2**20
    # Whole, the tokens of the text alone would take some thirty times its size.
    assert size > 1.5
    assert large - small < 6 * size, f"{small:.0f} MiB for little and {large:.0f} MiB for {size:.1f} MiB of text"


@pytest.mark.skipif(not SHARED.is_dir(), reason="the folder shared/data is not beside the repository")
def test_pieces_of_a_real_text_have_the_tokens_of_the_whole(tmp_path):
    with gzip.open(SHARED / "text" / "wikitext-2.test.txt.gz", "rt", encoding="utf-8", newline="") as file:
        text = file.read(300_000)
    plan = planned(tmp_path, text, training=None, tokenizer=SHARED / "stories260K")
    index, _ = tokenize(plan)
    assert lists(open_examples(plan.out, "train"), "tokens") == [index.tokenizer().encode(text)]
