"""A pass that answers its loss and holds no logits."""

import pytest
import torch

import anyformer as af
from anyformer.errors import InputError
from tests.tolerances import assert_close

HEADS = {
    "own": {"kind": "lm"},
    "tied": {"kind": "lm", "tied": True},
    "bias": {"kind": "lm", "bias": True},
    "softcap": {"kind": "lm", "softcap": 2.0, "scale": 0.5},
    "transform": {"kind": "lm", "tied": True, "transform": True, "bias": True},
}
IDS = torch.randint(0, 40, (2, 12), generator=torch.Generator().manual_seed(5))
MASK = torch.tensor([[1] * 12, [1] * 7 + [0] * 5])


def build(head, **changes):
    torch.manual_seed(0)
    spec = {
        "vocab": 40, "width": 16, "depth": 2, "context": 32, "attention": {"heads": 2}, "position": {"kind": "rope"},
        "ffn": {"kind": "swiglu"}, "head": head, "loss": {"z": 0.01, "label_smoothing": 0.1},
    }  # fmt: skip
    return af.build(af.spec(spec | changes)).double().train()


def both(model, **inputs):
    """The pass with logits and the one without, and the gradients of both."""
    found = []
    for keeps in (True, False):
        out = model(**inputs, return_logits=keeps)
        found.append((out, torch.autograd.grad(out.loss, list(model.parameters()))))
    (kept, wanted), (bare, grads) = found
    assert kept.logits is not None
    assert bare.logits is None
    assert torch.equal(kept.hidden, bare.hidden)
    assert_close("formula", bare.loss, kept.loss)
    assert list(bare.losses) == list(kept.losses)
    assert int(bare.label_count) == int(kept.label_count)
    for a, b in zip(grads, wanted, strict=True):
        assert_close("kernel", a, b)


@pytest.mark.parametrize("head", HEADS)
def test_model_without_logits_learns_the_same_with_every_head(head):
    both(build(HEADS[head]), input_ids=IDS, labels=IDS, attention_mask=MASK)


def test_masked_lm_without_logits_learns_the_same_from_its_few_labels():
    model = build(HEADS["transform"], topology="encoder")
    labels = torch.full_like(IDS, -100)
    labels[0, 3] = labels[1, 2] = 7
    both(model, input_ids=IDS, labels=labels)


def test_encoder_decoder_without_logits_learns_the_same():
    model = build(
        HEADS["tied"], topology="encoder-decoder", ids={"start": 1, "pad": 0}, position={"kind": "sinusoidal"}
    )
    labels = IDS.masked_fill(MASK == 0, -100)
    both(model, input_ids=IDS, labels=labels)


def test_model_without_logits_still_answers_them_where_no_loss_is_asked():
    model = build(HEADS["own"])
    wanted = model(IDS).logits
    assert torch.equal(model(IDS, return_logits=False).logits, wanted)


def test_model_without_logits_keeps_the_few_of_a_head_that_is_no_vocabulary():
    model = build({"kind": "sequence", "labels": 3}, topology="encoder", loss={})
    assert model(IDS, labels=torch.tensor([0, 2]), return_logits=False).logits.shape == (2, 3)


def test_model_without_logits_names_labels_of_another_shape():
    model = build(HEADS["own"])
    with pytest.raises(InputError, match=r"labels: expected \(2, 12\), got \(2, 11\)"):
        model(IDS, labels=IDS[:, 1:], return_logits=False)
