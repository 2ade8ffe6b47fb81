"""An encoder-decoder with two vocabularies: built, trained for a step, asked, saved, explained."""

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from anyformer.explain.costs import machine
from anyformer.explain.difference import difference
from anyformer.explain.report import report
from tests.specs.test_source_vocab import TWO

SOURCE = torch.tensor([[52, 40, 3, 7], [51, 38, 0, 0]])
MASK = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
LABELS = torch.tensor([[5, 36, 2], [7, 2, -100]])


@pytest.fixture
def model():
    return af.build(af.spec(TWO), dtype=torch.float64)


def test_model_with_two_vocabularies_has_the_counted_parameters(model):
    assert sum(p.numel() for p in model.parameters()) == model.spec.count().params
    assert model.embed.tokens.weight.shape == (53, 24)
    assert model.decoder_embed.tokens.weight.shape == (37, 24)
    assert model.head.table is model.decoder_embed.tokens
    assert "vocab 53 -> 37" in repr(model)


def test_model_with_two_vocabularies_learns_in_a_step(model):
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    before = model(SOURCE, attention_mask=MASK, labels=LABELS)
    assert before.logits.shape == (2, 3, 37)
    before.loss.backward()
    rows = model.embed.tokens.weight.grad.abs().sum(1)
    # Those that were read, padding not among them.
    assert rows.nonzero().flatten().tolist() == [3, 7, 38, 40, 51, 52]
    optimizer.step()
    assert model(SOURCE, attention_mask=MASK, labels=LABELS).loss < before.loss


def test_generate_reads_ids_of_the_source_and_says_those_of_the_target(model):
    said = af.generate(model, SOURCE, attention_mask=MASK, max_new_tokens=9, stop=())
    alone = af.generate(model, SOURCE[1:, :2], max_new_tokens=9, stop=())
    assert said.shape == (2, 10)
    assert int(said.max()) < 37
    assert torch.equal(said[1:], alone)
    with pytest.raises(InputError, match=r"input_ids: 53 in row 0, column 1 is not an id below source_vocab = 53"):
        af.generate(model, torch.tensor([[1, 53]]), max_new_tokens=2)
    with pytest.raises(InputError, match="stop: "):
        af.generate(model, SOURCE, max_new_tokens=2, stop=[40])


def test_generate_with_a_smaller_source_refuses_an_id_that_only_the_target_has():
    model = af.build(af.spec(TWO, {"source_vocab": 20}))
    with pytest.raises(InputError, match="30 in row 0, column 0 is not an id below source_vocab = 20"):
        af.generate(model, torch.tensor([[30]]), max_new_tokens=2)


def test_model_with_two_vocabularies_is_saved_and_loaded_equal(model, tmp_path):
    af.save(model, tmp_path / "m")
    again = af.load(tmp_path / "m", dtype=torch.float64)
    assert again.spec == model.spec
    assert all(torch.equal(a, b) for a, b in zip(again.parameters(), model.parameters(), strict=True))


def test_report_names_both_vocabularies_and_a_difference_between_them():
    spec = af.spec(TWO)
    found = report(spec, machine("h200"), name="two")
    assert "source 53 tokens, target 37 tokens" in str(found.data())
    shown = difference(spec, spec.vary({"source_vocab": 54}), ("a", "b"))
    assert "source 54 tokens" in repr(shown)
