"""Source and target with a vocabulary each, as a person comes to it: tokenize, train, translate, judge."""

import random
import shutil

import pytest
import torch

import anyformer as af
from anyformer.data.shards import open_index
from anyformer.errors import InputError
from tests.cli.command import run

WORDS = dict(zip(["ab", "cd", "ef", "gh", "ij"], ["один", "два", "три", "четыре", "пять"], strict=True))
CONFIG = """
[model.spec]
topology = "encoder-decoder"
width = 32
depth = 1
context = 16
attention = { heads = 2 }
head = { kind = "lm", tied = true }
[objective]
kind = "translate"
[optim]
kind = "adamw"
[data]
folder = "data"
rows = "padded"
[[stages]]
steps = 12
length = 16
batch = 16
[run]
folder = "run"
sample_every = 12
sample_tokens = 6
save_every = 12
"""


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Data of two vocabularies and a short run on them."""
    from anyformer.cli.main import main

    folder = tmp_path_factory.mktemp("two")
    rng = random.Random(0)
    rows = [[rng.choice(list(WORDS)) for _ in range(rng.randint(1, 5))] for _ in range(120)]
    text = "".join(f"{' '.join(row)}\t{' '.join(WORDS[word] for word in row)}\n" for row in rows)
    (folder / "pairs.tsv").write_text(text, encoding="utf-8")
    (folder / "config.toml").write_text(CONFIG)
    patch = pytest.MonkeyPatch()
    with patch.context() as at:
        at.chdir(folder)
        asked = ["tokenize", "pairs.tsv", "--out", "data", "--train", "bpe", "--vocab", "310", "--hold-out", "0.1"]
        assert main([*asked, "--source-vocab", "270", "--special", "<bos>", "--json"]) == 0
        assert main(["train", "config.toml", "--set", "run.prompt=ab cd"]) == 0
    return folder


def test_run_on_two_vocabularies_keeps_both_and_their_tokenizers(place):
    spec, index = af.spec(place / "run"), open_index(place / "data")
    assert (spec.source_vocab, spec.vocab) == (index.source_vocab, index.vocab)
    assert spec.source_vocab != spec.vocab
    assert spec.embed.shared is False
    model = af.load(place / "run")
    assert sum(p.numel() for p in model.parameters()) == spec.count().params
    assert "vocabulary of the source" in (place / "run" / "report.html").read_text(encoding="utf-8")


def test_run_stopped_half_way_goes_on_with_both_vocabularies(place, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(place)
    asked = ["train", "config.toml", "--set", f"run.folder={tmp_path / 'run'}", "--set", "run.save_every=4"]
    assert run(capsys, *asked).status == 0
    whole = (tmp_path / "run" / "model.safetensors").read_bytes()
    shutil.rmtree(next((tmp_path / "run" / "checkpoints").glob("*12")))
    ran = run(capsys, *asked)
    assert (ran.status, "goes on after step 8" in ran.out) == (0, True), ran.out + ran.err
    assert (tmp_path / "run" / "model.safetensors").read_bytes() == whole


def test_source_reads_as_it_was_trained_and_answers_are_of_the_target(place):
    model, index = af.load(place / "run"), open_index(place / "data")
    pipe = af.pipeline("translation", model=place / "run")
    # As in training: the ids of the source's tokenizer, and an eos.
    ids = [*index.source_tokenizer().encode("ab ef cd"), model.spec.ids.eos[0]]
    said = af.generate(model, torch.tensor([ids]), max_new_tokens=8)[0, 1:].tolist()
    assert pipe("ab ef cd", max_new_tokens=8) == [{"translation_text": index.tokenizer().decode(said)}]
    two = (place / "run" / "source_tokenizer.json", place / "run" / "tokenizer.json")
    again = af.pipeline("translation", model=model, tokenizer=two)
    texts = ["ab ef cd", "gh", "ij ij ij"]
    assert again(texts, max_new_tokens=8) == pipe(texts, max_new_tokens=8)
    assert again(texts[:1], max_new_tokens=8, batch_size=1)[0] == pipe("ab ef cd", max_new_tokens=8)[0]


def test_generate_and_explain_read_a_prompt_by_the_tokenizer_of_the_source(place, capsys, tmp_path):
    ran = run(capsys, "generate", str(place / "run"), "ab cd", "--max-new-tokens", "5", "--json", "--greedy")
    assert ran.status == 0, ran.err
    said = af.pipeline("translation", model=place / "run")("ab cd", max_new_tokens=5)[0]["translation_text"]
    assert ran.json["text"].strip() == said.strip()
    page = tmp_path / "page.html"
    ran = run(capsys, "explain", str(place / "run"), "--prompt", "ab cd", "--html", str(page), "--json")
    assert ran.status == 0, ran.err
    source = af.tokenizer(place / "run" / "source_tokenizer.json")
    assert ran.json["source"] == source.encode("ab cd", specials=True)
    assert "".join(ran.json["source_texts"][str(i)] for i in source.encode("ab cd")) == "ab cd"


def test_eval_of_a_run_on_two_vocabularies_shows_sources_in_their_own_words(place, capsys, monkeypatch):
    pytest.importorskip("sacrebleu")
    monkeypatch.chdir(place)
    ran = run(capsys, "eval", "run", "--part", "valid", "--num-beams", "1", "--json")
    assert ran.status == 0, ran.err
    sample = ran.json["translations"][0]["samples"][0]
    assert [WORDS[word] for word in sample["source"].split()] == sample["references"][0].split()


def test_verify_packing_and_generation_of_a_run_on_two_vocabularies_hold(place, capsys):
    for what in ("packing", "generation"):
        ran = run(capsys, "verify", what, str(place / "run"))
        assert ran.status == 0, ran.out + ran.err


def test_convert_takes_both_tokenizers_along(place, capsys, tmp_path):
    ran = run(capsys, "convert", str(place / "run"), str(tmp_path / "new"))
    assert ran.status == 0, ran.err
    for name in ("tokenizer.json", "source_tokenizer.json"):
        assert (tmp_path / "new" / name).read_bytes() == (place / "run" / name).read_bytes()


def test_pipeline_without_the_tokenizers_that_two_vocabularies_need_says_which(place, tmp_path):
    model = af.load(place / "run")
    with pytest.raises(InputError, match=r"give two tokenizers, tokenizer=\(source, target\)"):
        af.pipeline("translation", model=model, tokenizer=place / "run")
    with pytest.raises(InputError, match=r"that of the source has \d+ tokens, and the model \d+"):
        af.pipeline("translation", model=model, tokenizer=(place / "run", place / "run"))
    plain = af.build(model.spec.vary({"source_vocab": None, "ids": {}}))
    with pytest.raises(InputError, match="two are for a model whose source has a vocabulary of its own"):
        af.pipeline("translation", model=plain, tokenizer=(place / "run", place / "run"))
    af.save(model, tmp_path / "fsmt2")
    (tmp_path / "fsmt2" / "vocab-src.json").write_text("{}")
    with pytest.raises(InputError, match="BPE after the Moses tokenizer, which is not served here"):
        af.pipeline("translation", model=tmp_path / "fsmt2")


def test_generate_from_a_folder_without_the_tokenizer_of_the_source_names_the_file(place, capsys, tmp_path):
    model = af.load(place / "run")
    af.save(model, tmp_path / "bare")
    af.tokenizer(place / "run").save(tmp_path / "bare")
    ran = run(capsys, "generate", str(tmp_path / "bare"), "ab cd")
    assert ran.status == 2
    assert "there is no source_tokenizer.json" in ran.err


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (["--source-vocab", "300"], "add --source-train KIND"),
        (["--train", "chars", "--source-tokenizer", "no/such"], "there is no such file"),
        (["--train", "chars", "--source-train", "bpe"], "say how large the vocabulary is to be"),
    ],
)
def test_tokenize_with_half_of_a_source_tokenizer_says_what_is_missing(place, capsys, tmp_path, asked, message):
    ran = run(capsys, "tokenize", str(place / "pairs.tsv"), "--out", str(tmp_path / "out"), *asked)
    assert ran.status == 2
    assert message in ran.err
