"""Scores against closed forms and against a naive computation, token by token."""

import math

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.train import perplexity
from anyformer.train.perplexity import Score, cut, score, score_ids
from tests.contract.contracts import model_of, prefix_of, randomise
from tests.contract.draw import BASE, draw
from tests.generation.talking import talking
from tests.tolerances import TABLE

SEEDS = [seed for seed in talking(range(120), "decoder")[::2] if not prefix_of(draw(seed))]


def documents(vocab: int) -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, vocab, (n,), generator=generator).tolist() for n in (40, 1, 7, 21, 22, 2)]


def naive(model: Model, docs: list[list[int]], context: int, stride: int) -> float:
    """Each token by itself: the window that predicts it is the first of those that move by stride and reach it."""
    total = 0.0
    for doc in docs:
        for t in range(max(1, model.decoder.prefix), len(doc)):
            start = 0
            while start + context < t:
                start += stride
            end = min(start + context, len(doc) - 1)
            # The declared length of a length-dependent scheme is that of the window.
            more = {"rope_length": end - start} if model.reads_length else {}
            logits = model(torch.tensor([doc[start:t]]), **more).logits[0, -1].detach()
            total -= float(logits.log_softmax(-1)[doc[t]])
    return total


def near(found: float, want: float) -> bool:
    return abs(found - want) <= TABLE["promise"].limit * abs(want)


@pytest.mark.parametrize("seed", SEEDS)
def test_score_of_a_random_spec_is_that_of_token_by_token(seed):
    spec = draw(seed)
    model, docs = model_of(spec), documents(spec.vocab)
    for context, stride in ((12, 5), (12, 12), (7, 1), (21, 10)):
        found = score_ids(model, docs, context=context, stride=stride)
        assert near(found.nats, naive(model, docs, context, stride))
        assert found.tokens == sum(len(doc) - 1 for doc in docs)


@pytest.mark.parametrize(
    "position",
    [{"kind": "learned"}, {"kind": "rope", "scaling": {"kind": "dynamic", "original": 8, "factor": 3.0}}],
    ids=["a limit", "a length"],
)
def test_score_of_positions_that_know_their_length_is_that_of_token_by_token(position):
    model, docs = model_of(af.spec(BASE, {"context": 21, "position": position})), documents(37)
    assert near(score_ids(model, docs).nats, naive(model, docs, 21, 10))


@pytest.mark.parametrize(("context", "stride"), [(12, 5), (12, 8), (5, 1), (21, None)])
def test_score_of_a_prefix_lm_is_that_of_the_tokens_after_the_prefix(context, stride):
    model, docs = model_of(af.spec(BASE, {"attention.pattern": "causal | prefix(5)"})), documents(37)
    found = score_ids(model, docs, context=context, stride=stride)
    assert near(found.nats, naive(model, docs, context, found.stride))
    assert found.tokens == sum(max(len(doc) - 5, 0) for doc in docs)


def test_score_of_a_prefix_lm_counts_only_bytes_after_the_prefix():
    text = "na\u00efve cat, the cat"
    tokenizer = train_bpe([text], 280)
    changes = {"vocab": tokenizer.vocab, "ids": {"bos": 0}, "attention.pattern": "causal | prefix(4)"}
    found = score(model_of(af.spec(BASE, changes)), tokenizer, text)
    ids = tokenizer.encode(text)
    # The prefix is bos and three tokens, of which the third is half of a character.
    assert tokenizer.decode(ids[:3]).endswith("\ufffd")
    assert found.tokens == len(ids) - 3
    assert found.bytes == len(text.encode()) - sum(map(tokenizer.bytes_of, ids[:3]))


def test_score_of_a_prefix_lm_whose_windows_would_leave_tokens_out_is_refused():
    model = model_of(af.spec(BASE, {"attention.pattern": "causal | prefix(5)"}))
    with pytest.raises(InputError, match=r"stride: 9 is not from 1 to the context after its prefix of 5, 8"):
        score_ids(model, documents(37), context=12, stride=9)
    with pytest.raises(InputError, match="context: 4 leaves nothing to predict after a prefix of 5"):
        score_ids(model, documents(37), context=4)


def test_score_does_not_depend_on_how_windows_are_batched(monkeypatch):
    model = model_of(af.spec(BASE))
    docs = documents(37)
    found = score_ids(model, docs, context=16)
    monkeypatch.setitem(perplexity.TOKENS, "cpu", 1)
    monkeypatch.setattr(perplexity, "LOGITS", 1)
    assert near(score_ids(model, docs, context=16).nats, found.nats)


@pytest.mark.parametrize("changes", [{}, {"head.tied": True, "head.bias": False}])
def test_score_of_a_uniform_model_is_the_vocabulary_size(changes):
    model = af.build(af.spec(BASE, changes), dtype=torch.float64)
    with torch.no_grad():
        (model.embed.tokens.weight if changes else model.head.weight).zero_()
    found = score_ids(model, documents(37))
    assert found.perplexity == pytest.approx(37, rel=1e-12)
    assert found.nats == pytest.approx(found.tokens * math.log(37), rel=1e-12)


def test_score_of_a_uniform_model_is_the_vocabulary_size_in_single_precision_too():
    model = af.build(af.spec(BASE))
    with torch.no_grad():
        model.head.weight.zero_()
    assert score_ids(model, documents(37)).perplexity == pytest.approx(37, rel=TABLE["single"].limit)


def test_score_of_a_model_that_knows_is_one():
    """Without attention or feed-forward the last token alone decides: a table of who follows whom."""
    spec = af.spec(BASE, {"vocab": 6, "width": 6, "depth": 1, "norm.placement": "pre", "norm.final": False})
    model = af.build(spec, dtype=torch.float64)
    with torch.no_grad():
        for p in model.parameters():
            p.zero_()
        model.embed.tokens.weight.copy_(torch.eye(6))
        model.head.weight.copy_(100 * torch.eye(6).roll(1, 0))
    found = score_ids(model, [[0, 1, 2, 3, 4, 5, 0, 1], [4, 5, 0]])
    assert found.perplexity == 1.0
    assert score_ids(model, [[0, 2]]).nats == pytest.approx(100.0)


def test_score_of_a_text_counts_bytes_and_begins_with_bos():
    text = "naïve café, naïve café"
    tokens = train_bpe([text * 3], 300)
    spec = af.spec(BASE, {"vocab": 300, "ids": {"bos": 0}})
    model = randomise(af.build(spec, dtype=torch.float64), 0)
    found = score(model, tokens, text)
    ids = [0, *tokens.encode(text)]
    assert found.tokens == len(ids) - 1
    assert found.bytes == len(text.encode()) == 26
    assert near(found.nats, naive(model.eval(), [ids], 64, 32))
    assert found.bits_per_byte == pytest.approx(found.nats / math.log(2) / 26)
    assert found.perplexity == pytest.approx(2 ** (found.nats / math.log(2) / found.tokens))


@pytest.mark.parametrize(("text", "first"), [("abcabc", "a"), ("éa", "half of é")])
def test_score_of_a_text_without_bos_leaves_the_first_token_and_its_bytes_out(text, first):
    tokens = train_bpe(["zzz"], 257)
    model = randomise(af.build(af.spec(BASE, {"vocab": 300}), dtype=torch.float64), 0)
    found = score(model, tokens, text)
    assert found.tokens == found.bytes == len(text.encode()) - 1, first


def test_score_of_several_texts_is_the_sum_of_each():
    tokens = train_bpe(["one two three"], 257)
    model = randomise(af.build(af.spec(BASE, {"vocab": 257, "ids.bos": 0}), dtype=torch.float64), 0)
    texts = ["one two", "three", "two three one two three"]
    whole, parts = score(model, tokens, texts), [score(model, tokens, text) for text in texts]
    together = parts[0] + parts[1] + parts[2]
    assert near(whole.nats, together.nats)
    assert (whole.tokens, whole.bytes, whole.documents) == (together.tokens, together.bytes, 3)


@pytest.mark.parametrize(("tokens", "context", "stride"), [(50, 12, 5), (50, 12, 12), (13, 12, 6), (14, 12, 6), (9, 1, 1), (2, 64, 32)])  # fmt: skip
def test_windows_predict_every_token_once_with_enough_before_it(tokens, context, stride):
    windows = list(cut(tokens, context, stride))
    assert [t for w in windows for t in range(w.first, w.end)] == list(range(1, tokens))
    for w in windows:
        assert w.end - w.start - 1 <= context
        for t in range(w.first, w.end):
            assert t - w.start >= min(t, context - stride)


def test_windows_with_a_stride_of_the_context_do_not_overlap():
    assert [(w.start, w.end - 1) for w in cut(30, 10, 10)] == [(0, 10), (10, 20), (20, 29)]


def test_score_defaults_to_the_context_of_the_spec_and_half_of_it():
    found = score_ids(model_of(af.spec(BASE)), documents(37))
    assert (found.context, found.stride) == (64, 32)
    assert score_ids(model_of(af.spec(BASE)), documents(37), context=1).stride == 1


def test_score_in_training_mode_drops_nothing_and_gives_the_mode_back():
    spec = af.spec(BASE, {"block.dropout": 0.5})
    model = randomise(af.build(spec, dtype=torch.float64), 0).train()
    found = score_ids(model, documents(37))
    assert all(module.training for module in model.modules())
    assert found == score_ids(model.eval(), documents(37))
    assert found != score_ids(model, [[1, 2, 3]])


def test_score_reports_how_far_it_is():
    seen: list[tuple[int, int]] = []
    found = score_ids(model_of(af.spec(BASE)), documents(37), context=8, report=lambda *pair: seen.append(pair))
    assert seen[-1] == (found.tokens, found.tokens)
    assert sorted(seen) == seen


def test_score_of_ids_alone_has_no_bits_per_byte():
    assert score_ids(model_of(af.spec(BASE)), [[1, 2, 3]]).bits_per_byte is None


def test_score_of_a_hopeless_model_stays_a_number():
    assert math.isfinite(Score(tokens=1, bytes=1, nats=1e6, documents=1, context=1, stride=1).perplexity)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"context": 0}, "context: 0 is not at least 1"),
        ({"stride": 0}, "stride: 0 is not from 1 to the context, 64"),
        ({"stride": 65}, "stride: 65 is not from 1 to the context, 64"),
        ({"context": 8, "stride": 9}, "stride: 9 is not from 1 to the context, 8"),
    ],
)
def test_score_refuses_windows_that_leave_tokens_out(given, words):
    with pytest.raises(af.InputError, match=words):
        score_ids(model_of(af.spec(BASE)), [[1, 2, 3]], **given)


def test_score_refuses_a_context_beyond_the_positions():
    model = model_of(af.spec(BASE, {"position": {"kind": "learned"}}))
    with pytest.raises(af.InputError, match="context: 65 is more than the 64 positions that this model has"):
        score_ids(model, [[1, 2, 3]], context=65)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"topology": "encoder"}, "perplexity is for decoders: an encoder sees the token that it predicts"),
        ({"topology": "encoder-decoder"}, "perplexity is for decoders: an encoder-decoder predicts"),
        ({"head": {"kind": "token", "labels": 3}}, "this one has a 'token' head"),
    ],
)
def test_score_refuses_a_model_without_a_next_token(changes, words):
    with pytest.raises(af.InputError, match=words):
        score_ids(model_of(af.spec(BASE, changes)), [[1, 2, 3]])


@pytest.mark.parametrize("ids", [[[1, 37]], [[3], [1, -1]]])
def test_score_refuses_ids_of_another_vocabulary(ids):
    with pytest.raises(af.InputError, match="is not an id below vocab = 37; is this the model's"):
        score_ids(model_of(af.spec(BASE)), ids)


@pytest.mark.parametrize("ids", [[], [[]], [[5], [6]]])
def test_score_refuses_documents_with_nothing_to_predict(ids):
    with pytest.raises(af.DataError, match="nothing to predict"):
        score_ids(model_of(af.spec(BASE)), ids)


def test_score_refuses_a_loss_that_is_no_number():
    model = af.build(af.spec(BASE))
    with torch.no_grad():
        model.head.weight.fill_(float("nan"))
    with pytest.raises(af.InputError, match="a loss of nan"):
        score_ids(model, [[1, 2, 3]])
