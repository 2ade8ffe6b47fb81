"""One perplexity for one text, whoever asks: the same documents, the same ids, the same windows, and words that say so."""

import gzip
import json
import math

import pytest
import torch
import transformers

import anyformer as af
from anyformer.cli.main import main
from anyformer.evals.quality import compare
from anyformer.train.perplexity import perplexity, score
from tests.cli.small_run import TEXT, small_run
from tests.data.test_tokenizer import STORIES, needs_stories
from tests.evals.lm_eval_peer import kinds, write_model

DOCUMENTS = ["the cat sat on the mat", "the dog sat\non the cat.", TEXT]
WHOLE = "\n<|endoftext|>\n".join(DOCUMENTS) + "\n"


def asked(*arguments, capsys):
    assert main([*map(str, arguments), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def everyone(folder, file, place, capsys):
    """The figures of all that measure a text, by who it was."""
    text = file.read_text(encoding="utf-8")
    model, tokenizer = af.load(folder), af.tokenizer(folder)
    told = score(model, tokenizer, text)
    evaluated = asked("eval", folder, file, "--quantize", "int8", capsys=capsys)
    converted = asked("convert", folder, place, "--text", file, "--kv-heads", "1", capsys=capsys)
    return {
        "score": (told.tokens, told.perplexity, told.rule),
        "eval": (evaluated["tokens"], evaluated["perplexity"], evaluated["rule"]),
        "convert": (converted["before"]["tokens"], converted["before"]["perplexity"], converted["before"]["rule"]),
        "quality": (told.tokens, compare(model, model, tokenizer, text).perplexity[0], told.rule),
        "quantize": (evaluated["quantized"]["tokens"], evaluated["quantized"]["perplexity"]["before"], told.rule),
    }


def check_alike(figures):
    tokens, figure, rule = figures["score"]
    for who, found in figures.items():
        assert (found[0], found[2]) == (tokens, rule), who
        assert found[1] == pytest.approx(figure, rel=1e-5), who


def test_perplexity_of_a_run_is_the_same_for_eval_convert_and_in_python(tmp_path, capsys):
    small_run(tmp_path / "run", {"attention.kv_heads": 2})
    (tmp_path / "text.txt").write_text(WHOLE)
    figures = everyone(tmp_path / "run", tmp_path / "text.txt", tmp_path / "new", capsys)
    check_alike(figures)
    words = (
        "3 documents (split at lines of <|endoftext|>), begun with <|endoftext|>, as its training says; windows of 64"
    )
    assert figures["eval"][2].startswith(words)


@needs_stories
def test_perplexity_of_a_real_checkpoint_is_the_same_for_eval_convert_and_in_python(tmp_path, capsys):
    stories = STORIES.parent / "text" / "tinystories-2MiB.txt.gz"
    with gzip.open(stories, "rt", encoding="utf-8") as packed:
        (tmp_path / "text.txt").write_text(packed.read(12_000), encoding="utf-8")
    figures = everyone(STORIES, tmp_path / "text.txt", tmp_path / "new", capsys)
    check_alike(figures)
    assert "no bos, as its tokenizer files say; windows of 512 tokens, moved by 256" in figures["eval"][2]


def test_perplexity_says_its_rule_on_every_page(tmp_path, capsys):
    small_run(tmp_path / "run")
    (tmp_path / "text.txt").write_text(WHOLE)
    for arguments in (["eval", tmp_path / "run", tmp_path / "text.txt"], ["convert", tmp_path / "run", tmp_path / "new", "--text", tmp_path / "text.txt"]):  # fmt: skip
        assert main([*map(str, arguments)]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert "3 documents (split at lines of <|endoftext|>), begun with <|endoftext|>" in out
        assert "windows of 64 tokens, moved by 32" in out


def test_perplexity_of_a_list_takes_each_text_as_a_document(tmp_path):
    model, tokenizer = small_run(tmp_path)
    whole, listed = score(model, tokenizer, WHOLE), score(model, tokenizer, [d.strip("\n") for d in DOCUMENTS])
    assert (whole.tokens, whole.nats, whole.documents) == (listed.tokens, listed.nats, 3)
    assert "each text is one" in listed.rule
    both = whole + listed
    assert both.documents == 6
    assert "split at lines of <|endoftext|>; each text is one" in both.rule


def test_perplexity_of_nats_is_their_exponential():
    assert perplexity(3 * math.log(37), 3) == pytest.approx(37)
    assert perplexity(1e9) < math.inf


@torch.no_grad()
@pytest.mark.parametrize("name", list(kinds()))
def test_perplexity_of_a_published_folder_is_that_of_its_own_ids_in_transformers(tmp_path, name):
    folder = write_model(tmp_path / "model", *kinds()[name])
    words, public = (
        transformers.AutoTokenizer.from_pretrained(folder),
        transformers.AutoModelForCausalLM.from_pretrained(folder),
    )
    total, count = 0.0, 0
    for document in ("The cat sat on the mat.", "Once upon a time, 1984"):
        ids = torch.tensor([words(document).input_ids])
        loss = public(ids, labels=ids).loss
        total, count = total + float(loss) * (ids.shape[1] - 1), count + ids.shape[1] - 1
    found = score(
        af.load(folder), af.tokenizer(folder), "The cat sat on the mat.\n<|endoftext|>\nOnce upon a time, 1984"
    )
    assert found.tokens == count
    assert found.perplexity == pytest.approx(math.exp(total / count), rel=1e-5)
    first = words("The").input_ids[0]
    begun = (
        first in (words.bos_token_id, words.cls_token_id)
        and words("The", add_special_tokens=False).input_ids[0] != first
    )
    assert ("begun with" in found.rule) == begun
    # The bytes of a first token that is text are only read; that of SentencePiece may be a blank that is none of it.
    size = 0
    for document in ("The cat sat on the mat.", "Once upon a time, 1984"):
        first = words(document).input_ids[0]
        read = "" if begun else words.decode([first]).replace("##", "")
        assert document.lower().startswith(read.lower())
        assert begun or read or words.convert_ids_to_tokens(first) == "\u2581"
        size += len(document) - len(read)
    assert found.bytes == size
