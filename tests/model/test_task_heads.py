"""Heads of tasks: what they read, what they are asked for, and their losses by the formula."""

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError, SpecError
from anyformer.parts.heads import pooled
from tests.contract.draw import BASE
from tests.tolerances import assert_close

SPEC = {
    "topology": "encoder", "vocab": 37, "width": 16, "depth": 2, "context": 16, "attention": {"heads": 2},
    "ids": {"pad": 0, "eos": [2]},
}  # fmt: skip
IDS = torch.arange(3, 27).view(2, 2, 6)
MASK = torch.tensor([[[1, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], [[1, 1, 1, 0, 0, 0], [0, 1, 1, 1, 1, 1]]])


def built(head, **more):
    return af.build(af.ModelSpec.from_data(SPEC | {"head": head} | more), dtype=torch.float64, seed=3).eval()


def test_several_classes_at_once_and_numbers_have_losses_of_their_own():
    ids = IDS.flatten(0, 1)
    wanted = torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])
    for problem, loss in (("multi", F.binary_cross_entropy_with_logits), ("regression", F.mse_loss)):
        model = built({"kind": "sequence", "labels": 3, "problem": problem})
        out = model(ids, labels=wanted)
        assert_close("formula", out.loss, loss(out.logits, wanted.double()))
    # Unset: what the labels are.
    model = built({"kind": "sequence", "labels": 3})
    assert_close(
        "formula",
        model(ids, labels=wanted).loss,
        F.binary_cross_entropy_with_logits(model(ids).logits, wanted.double()),
    )
    classes = torch.tensor([0, 2, 1, 1])
    assert_close("formula", model(ids, labels=classes).loss, F.cross_entropy(model(ids).logits, classes))
    one = built({"kind": "sequence", "labels": 1})
    assert_close(
        "formula", one(ids, labels=wanted[:, 0]).loss, F.mse_loss(one(ids).logits[:, 0], wanted[:, 0].double())
    )
    with pytest.raises(
        InputError, match=r"labels: expected \(4, 3\), got \(4,\)|labels: expected \(4, 3\), got \(4, 1\)"
    ):
        built({"kind": "sequence", "labels": 3, "problem": "multi"})(ids, labels=wanted[:, 0])


def test_choices_are_rows_of_their_own_and_compared_with_each_other():
    model = built({"kind": "choice", "dense": True})
    out = model(IDS, attention_mask=MASK, labels=torch.tensor([1, 0]))
    rows = model(IDS.flatten(0, 1)[:, None], attention_mask=MASK.flatten(0, 1)[:, None])
    assert_close("formula", out.logits, rows.logits.view(2, 2))
    assert out.hidden.shape == (2, 2, 16)
    assert_close("formula", out.loss, F.cross_entropy(out.logits, torch.tensor([1, 0])))
    with pytest.raises(
        InputError, match=r"input_ids: a 'choice' head compares several rows, so \(batch, choices, ...\)"
    ):
        model(IDS[0])
    with pytest.raises(InputError, match=r"labels: expected \(2,\), got \(2, 2\)"):
        model(IDS, labels=torch.zeros(2, 2, dtype=torch.long))


def test_ends_of_an_answer_are_classes_of_a_rows_real_tokens():
    model, ids, mask = built({"kind": "qa"}), IDS[:, 0], MASK[:, 1]
    labels = torch.tensor([[1, 3], [2, -100]])
    out = model(ids, attention_mask=mask, labels=labels)
    assert out.logits.shape == (2, 6, 2)
    logits = out.logits.masked_fill(mask[..., None] == 0, -torch.inf)
    each = [F.cross_entropy(logits[b, :, i], labels[b, i]) for b, i in ((0, 0), (0, 1), (1, 0))]
    assert_close("formula", out.loss, torch.stack(each).mean())
    assert int(out.label_count) == 3
    with pytest.raises(InputError, match=r"labels: expected \(2, 2\), got \(2, 6\)"):
        model(ids, labels=torch.zeros(2, 6, dtype=torch.long))


def test_state_at_the_last_eos_is_read_or_the_last_one_without_any():
    states = torch.randn(3, 5, 4, dtype=torch.float64)
    ends = torch.tensor([[0, 1, 0, 1, 0], [0, 0, 0, 0, 1], [0, 0, 0, 0, 0]]) != 0
    valid = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0], [1, 1, 1, 0, 0]]) != 0
    found = pooled(states, valid, "eos", ends)
    assert_close("same", found, torch.stack((states[0, 3], states[1, 3], states[2, 2])))
    assert_close("same", pooled(states, None, "eos", ends), torch.stack((states[0, 3], states[1, 4], states[2, 4])))
    model = built({"kind": "sequence", "labels": 2, "pool": "eos"})
    ids = torch.tensor([[5, 2, 6, 2, 9]])
    assert_close("formula", model(ids).logits, built({"kind": "token", "labels": 2})(ids).logits[:, 3])


def test_encoder_decoder_without_a_start_is_fed_the_rows_last_token_first():
    spec = {"topology": "encoder-decoder", "head": {"kind": "token", "labels": 3}}
    model, ids, mask = built(**spec), IDS[:, 0], MASK[:, 0]
    first = torch.stack((ids[0, 5], ids[1, 2]))[:, None]
    shifted = torch.cat((first, ids[:, :-1]), 1)
    want = model(ids, attention_mask=mask, decoder_input_ids=shifted, decoder_attention_mask=mask).logits
    real = mask.bool()
    assert_close("same", model(ids, attention_mask=mask).logits[real], want[real])


def test_names_and_problem_are_part_of_the_spec_and_stay_in_every_form(tmp_path):
    head = {
        "kind": "sequence",
        "labels": 2,
        "names": ["bad", "good"],
        "problem": "multi",
        "dense": True,
        "activation": "relu",
    }
    model = built(head)
    assert model.spec.head.names == ("bad", "good")
    assert af.ModelSpec.from_toml(model.spec.to_toml()) == model.spec
    af.save(model, tmp_path)
    assert af.load(tmp_path).spec == model.spec
    with pytest.raises(SpecError, match=r"head\.names: there are 1 for 2 labels"):
        model.spec.vary({"head.names": ["bad"]})


def test_one_label_is_a_number_whatever_its_dtype():
    model = af.build(
        af.spec(BASE, {"topology": "encoder", "head": {"kind": "sequence", "labels": 1}}), dtype=torch.float64, seed=0
    )
    ids = torch.arange(12).view(2, 6)
    whole, real = (model(ids, labels=torch.tensor([3, 4], dtype=dtype)).loss for dtype in (torch.long, torch.float64))
    assert whole == real > 0


def test_answer_beyond_its_row_does_not_count():
    model = af.build(af.spec(BASE, {"topology": "encoder", "head": {"kind": "qa"}}), dtype=torch.float64, seed=0)
    ids = torch.arange(12).view(2, 6)
    cut, alone = model(ids, labels=torch.tensor([[1, 3], [6, 9]])), model(ids[:1], labels=torch.tensor([[1, 3]]))
    assert torch.isclose(cut.loss, alone.loss)
