"""BLEU and free-running translation: the package's own figures, and sentences decoded in batches as one by one."""

import pytest
import torch

import anyformer as af
from anyformer.data.dataset import Examples
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import CapabilityError, DataError, InputError
from anyformer.evals import translation
from anyformer.evals.eval_setup import EvalSetup
from anyformer.evals.translation import bleu, decode, sentences, translate
from tests.data.feeding import make, spec_for


def installed():
    try:
        translation.judge()
    except CapabilityError:
        return False
    return True


needs_sacrebleu = pytest.mark.skipif(not installed(), reason="sacrebleu is not installed (the extra `eval`)")
SOURCES = [[8, 9, 10], [11], [8, 9, 10, 11, 12, 13, 14], [20, 21], [22, 23, 24]]


def model_for(seed=3, **changes):
    model = af.build(spec_for(make("translate"), **changes), seed=seed, dtype=torch.float64).eval()
    with torch.no_grad():
        # Far from uniform, so that rows end at different times.
        model.head.weight.mul_(8)
    return model


@needs_sacrebleu
def test_bleu_of_the_references_themselves_is_a_hundred_and_of_other_words_next_to_nothing():
    known = [["the cat sat on the mat today", "a cat was sitting on the mat"], ["it rains a lot in the north"]]
    found = bleu([known[0][1], known[1][0]], known)
    assert found.bleu == pytest.approx(100)
    assert found.chrf == pytest.approx(100)
    assert "refs:var" in found.signature
    assert bleu(["x y z", "u v w"], known).bleu < 5


@needs_sacrebleu
def test_bleu_of_one_reference_each_is_that_of_the_package():
    import sacrebleu

    said = ["the cat sat on a mat", "it rains a lot there", "nothing like it"]
    known = ["the cat sat on the mat", "it rains very much there", "all is well"]
    assert bleu(said, [[one] for one in known]).bleu == sacrebleu.corpus_bleu(said, [known]).score


def test_bleu_without_references_is_refused():
    with pytest.raises(InputError, match="2 translations and references for 1"):
        bleu(["a", "b"], [["a"], []])


def test_bleu_without_the_package_names_it(monkeypatch):
    def missing(name):
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(translation, "installed", missing)
    with pytest.raises(CapabilityError, match="pip install sacrebleu"):
        bleu(["a"], [["a"]])


def test_sentences_have_each_source_once_with_all_that_is_known_of_it():
    pairs = {"source": [[8], [9, 9], [8], [], [8], [7]], "target": [[1], [2], [3], [4], [1], []]}
    found = sentences(Examples.of(pairs))
    assert [(one.ids, one.references) for one in found] == [((8,), ((1,), (3,))), ((9, 9), ((2,),))]
    with pytest.raises(DataError, match="no pair with a source and a target"):
        sentences(Examples.of({"source": [[], [1]], "target": [[2], []]}))


def test_sentences_up_to_a_limit_are_spread_over_all():
    every = Examples.of({"source": [[i] for i in range(10)], "target": [[1]] * 10})
    assert [one.ids for one in sentences(every, 3)] == [(0,), (3,), (6,)]
    assert len(sentences(every, 99)) == 10


@pytest.mark.parametrize("beams", [1, 3])
def test_decoding_many_sources_gives_what_each_gives_alone(beams, monkeypatch):
    monkeypatch.setattr(translation, "LONGER", 9)
    model = model_for(seed=35)
    alone = []
    for source in SOURCES:
        found = af.generate(model, torch.tensor([[*source, 2]]), max_new_tokens=len(source) + 10, num_beams=beams)
        ids = found[0, 1:].tolist()
        alone.append(ids[: ids.index(2)] if 2 in ids else ids)
    told = []
    together, cut = decode(model, SOURCES, beams=beams, report=lambda done, total: told.append((done, total)))
    assert together == alone
    assert 0 < cut < len(SOURCES), "some end by themselves"
    assert told == [(1, 5), (3, 5), (4, 5), (5, 5)]
    monkeypatch.setitem(translation.CELLS, "cpu", 1)
    assert decode(model, SOURCES, beams=beams)[0] == alone


def test_decoding_stops_where_the_source_says_and_counts_what_did_not_end():
    model = model_for(**{"head.bias": True})
    with torch.no_grad():
        # It never ends.
        model.head.bias[2] = -1e9
    found, unfinished = decode(model, SOURCES[:2])
    assert [len(ids) for ids in found] == [54, 52]
    assert unfinished == 2


@needs_sacrebleu
def test_translate_a_part_compares_texts_with_all_references():
    words = train_bpe(["one two three four five six"], 300)
    model = model_for(vocab=words.vocab)
    texts = {"source": ["one", "two three", "one"], "target": ["un", "deux trois", "une"]}
    examples = Examples.of({name: [words.encode(text) for text in some] for name, some in texts.items()})
    setup = EvalSetup(
        model=model, objective=make("translate"), examples=examples, learned=None, tokenizer=words, data="data",
        part="valid", length=32, batch=2, rows="padded",
    )  # fmt: skip
    found = translate(setup)
    assert found.sources == ("one", "two three")
    assert found.references == (("un", "une"), ("deux trois",))
    assert found.equal == 0
    assert found.data()["sentences"] == 2
    # References that are what it says: all of them are met.
    said = [words.encode(text) for text in found.translations]
    again = Examples.of({"source": [words.encode(text) for text in found.sources], "target": said})
    right = translate(EvalSetup(**vars(setup) | {"examples": again}))
    assert right.equal == 1
    assert right.bleu.chrf == pytest.approx(100)
