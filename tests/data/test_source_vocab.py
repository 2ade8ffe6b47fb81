"""Pairs of which each side has a tokenizer of its own: shards, batches, and what does not fit."""

import json

import numpy as np
import pytest

import anyformer as af
from anyformer.data.corpus import RawFile
from anyformer.data.dataset import Examples
from anyformer.data.scan import Plan
from anyformer.data.shards import INDEX, TWO, VERSION, open_examples, open_index
from anyformer.data.sources.text import Text
from anyformer.data.sources.tsv import Tsv
from anyformer.data.tokenizer import SOURCE, source_tokenizer, train_bpe
from anyformer.data.tokenizer_training import Training
from anyformer.data.tokenizing import tokenize
from anyformer.errors import DataError, InputError
from anyformer.train.config import Config
from anyformer.train.resolve import resolved
from tests.data.feeding import feed_for, make, spec_for, tensors
from tests.data.test_shards import content, lists

PAIRS = [
    (f"the {word} {i}", f"{i} {other}") for i in range(30) for word, other in (("cat", "кошка"), ("dog", "собака"))
]
TWO_VOCABULARIES = {"source_vocab": 90, "embed.shared": False, "ids.source_pad": 70, "ids.source_eos": 80}


def planned(place, name="out", **more) -> Plan:
    file = place / "pairs.tsv"
    file.write_text("".join(f"{a}\t{b}\n" for a, b in PAIRS), encoding="utf-8")
    asked = {
        "training": Training(kind="bpe", vocab=270), "source_training": Training(kind="bpe", vocab=262),
        "format": Tsv(),
    }  # fmt: skip
    return Plan(out=place / name, files={"train": (RawFile(file),)}, **asked | more)


def test_each_side_is_encoded_by_the_tokenizer_of_its_own_column(tmp_path):
    index, _ = tokenize(planned(tmp_path))
    examples = open_examples(tmp_path / "out", "train")
    source, target = index.source_tokenizer(), index.tokenizer()
    assert (index.source_vocab, index.vocab) == (source.vocab, target.vocab) == (262, 270)
    assert [source.decode(ids) for ids in lists(examples, "source")] == [a for a, _ in PAIRS]
    assert [target.decode(ids) for ids in lists(examples, "target")] == [b for _, b in PAIRS]
    # Each learned from its own side: the other's words are spelled out.
    assert len(source.encode(" cat")) < len(target.encode(" cat"))
    assert len(target.encode(" кошка")) < len(source.encode(" кошка"))
    assert json.loads((tmp_path / "out" / INDEX).read_text())["version"] == TWO


def test_one_tokenizer_is_written_as_before(tmp_path):
    index, _ = tokenize(planned(tmp_path, source_training=None))
    found = json.loads((tmp_path / "out" / INDEX).read_text())
    assert (found["version"], "source_tokenizer" in found, index.source_tokenizer()) == (VERSION, False, None)
    assert not (tmp_path / "out" / SOURCE).exists()
    assert source_tokenizer(tmp_path / "out") is None


def test_tokenizers_that_are_given_make_the_same_shards_as_those_that_were_trained(tmp_path):
    tokenize(planned(tmp_path))
    first = tmp_path / "out"
    given = {"training": None, "source_training": None, "tokenizer": first, "source_tokenizer": first / SOURCE}
    tokenize(planned(tmp_path, "again", **given))
    before, after = content(first), content(tmp_path / "again")
    assert {name: text for name, text in before.items() if name != INDEX} == {
        name: text for name, text in after.items() if name != INDEX
    }


def test_tokenize_stopped_after_the_tokenizers_goes_on_to_the_same_bytes(tmp_path, monkeypatch):
    tokenize(planned(tmp_path, "whole"))
    with monkeypatch.context() as patch:
        patch.setattr("anyformer.data.tokenizing._Job.write", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            tokenize(planned(tmp_path))
    assert (tmp_path / "out" / SOURCE).is_file()
    with monkeypatch.context() as patch:
        patch.setattr("anyformer.data.tokenizing.train_tokenizer", lambda *_: 1 / 0)
        tokenize(planned(tmp_path))
    assert content(tmp_path / "out") == content(tmp_path / "whole")


def test_source_tokenizer_that_was_replaced_is_named(tmp_path):
    index, _ = tokenize(planned(tmp_path))
    train_bpe(["something else"], 260).save(tmp_path / "out" / SOURCE)
    with pytest.raises(DataError, match=r"source_tokenizer\.json: is not the one that the ids were made with"):
        index.source_tokenizer()
    assert open_index(tmp_path / "out").tokenizer().vocab == 270


def test_character_without_a_token_is_named_by_the_tokenizer_of_its_column(tmp_path):
    latin = train_bpe(["the cat"], 260)
    latin.save(tmp_path / "latin")
    chars = Training(kind="chars", specials=("<eos>",))
    tokenize(planned(tmp_path, training=chars, source_training=chars))
    given = {"source_tokenizer": tmp_path / "latin", "tokenizer": tmp_path / "out" / SOURCE}
    given |= {"training": None, "source_training": None}
    with pytest.raises(DataError, match=r"pairs\.tsv:1: 'к' .* has no token in this tokenizer"):
        tokenize(planned(tmp_path, "other", **given))


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"training": None}, "the target has none"),
        ({"source_tokenizer": "x"}, "trained or given, not both"),
        ({"format": Text(split="lines")}, "these examples are made of text; leave out --source-train"),
    ],
)
def test_source_tokenizer_without_what_it_needs_is_refused(tmp_path, more, message):
    with pytest.raises(InputError, match=message):
        tokenize(planned(tmp_path, **more))
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("way", ["padded", "packed"])
def test_translation_ends_and_fills_each_side_with_its_own_ids(way):
    examples = Examples.of({"source": [[85, 86], [87]], "target": [[8], [9, 10]]})
    feed = feed_for(
        "translate", way, examples=examples, batch=1 if way == "packed" else 2, length=16, changes=TWO_VOCABULARIES
    )
    batch = feed.batch(0)
    read = batch.inputs["input_ids"].reshape(-1)
    assert set(read.tolist()) == {85, 86, 87, 80, 70}
    labels = batch.inputs["labels"].reshape(-1)
    assert sorted(labels[labels != -100].tolist()) == [2, 2, 8, 9, 10]
    model = af.build(feed.spec)
    assert model(**tensors(batch)).label_count == 5


def test_batch_with_an_id_of_the_other_vocabulary_is_refused():
    wide = Examples.of({"source": [[8]], "target": [[85]]})
    with pytest.raises(DataError, match=r"labels: 85 at .* is not among the 64"):
        feed_for("translate", "padded", examples=wide, batch=1, changes=TWO_VOCABULARIES).batch(0)
    narrow = Examples.of({"source": [[50]], "target": [[50]]})
    changes = {"source_vocab": 40, "embed.shared": False}
    with pytest.raises(DataError, match=r"input_ids: 50 at .* is not among the 40"):
        feed_for("translate", "padded", examples=narrow, batch=1, changes=changes).batch(0)


def test_objective_that_does_not_fit_two_vocabularies_says_so():
    examples = Examples.of({"source": [[8]], "target": [[8]]})
    changes = {"source_vocab": 50, "embed.shared": False, "ids.eos": [60], "ids.pad": 0}
    found = dict(make("translate").problems(spec_for(make("translate"), **changes), examples))
    assert "ids.eos = 60 is not among the 50 tokens of the source" in found["ids.source_eos"]
    text = Examples.of({"tokens": [[8, 9, 10]]})
    found = dict(make("span").problems(spec_for(make("span"), source_vocab=50, **{"embed.shared": False}), text))
    assert "both are of one vocabulary" in found["source_vocab"]


def spec_of(changes=None, base="", **data):
    own = {"topology": "encoder-decoder", "width": 16, "depth": 1, "context": 32, "attention": {"heads": 2}}
    table = {"model": {"spec": ({} if base else own) | (changes or {}), **({"base": base} if base else {})}}
    table |= {"data": {"folder": "x"}, "run": {"folder": "y"}, "stages": [{"steps": 1, "length": 8, "batch": 1}]}
    known = {"vocab": 40, "ids": {"eos": 0, "bos": 1}, "source_vocab": 30, "source_ids": {"eos": 5}}
    return resolved(Config.from_data(table).model, **known | data)


@pytest.mark.parametrize("base", ["", "transformer-base"])
def test_spec_of_a_run_has_the_vocabularies_of_its_data(base):
    spec = spec_of(base=base)
    assert (spec.vocab, spec.source_vocab, spec.embed.shared) == (40, 30, False)
    assert (spec.ids.eos, spec.ids.source_eos, spec.ids.source_pad) == ((0,), 5, None)
    assert spec_of(base=base, source_vocab=0, source_ids={}).source_vocab is None


def test_spec_of_a_run_on_one_vocabulary_from_a_preset_with_two_has_one():
    assert spec_of(base="wmt19-ru-en", source_vocab=0, source_ids={}).source_vocab is None


@pytest.mark.parametrize(
    ("changes", "data", "message"),
    [
        ({"embed": {"kind": "tokens", "shared": True}}, {}, "embed.shared: true is one table for both stacks"),
        ({"source_vocab": 20, "embed": {"kind": "tokens", "shared": False}}, {}, "source_vocab: 20 is less than the 30 tokens"),
        ({"source_vocab": 20, "embed": {"kind": "tokens", "shared": False}}, {"source_vocab": 0}, "20 is less than the 40"),
        ({}, {"source_ids": {}}, "ids.source_eos: is missing, and the source's tokenizer has no token such as </s>"),
    ],
)  # fmt: skip
def test_spec_of_a_run_that_can_not_read_its_data_is_refused(changes, data, message):
    with pytest.raises(af.SpecError) as info:
        spec_of(changes, **data)
    assert message in str(info.value)


def test_tokenizer_ending_with_a_token_adds_it_only_where_asked():
    made = train_bpe(["the cat sat"], 270)
    ended = made.ending_with(0)
    assert ended.encode("the cat", specials=True) == [*made.encode("the cat"), 0]
    assert ended.encode("the cat") == made.encode("the cat")
    assert ended.ending_with(0) is ended
    assert np.array_equal(made.encode("a", specials=True), made.encode("a"))
