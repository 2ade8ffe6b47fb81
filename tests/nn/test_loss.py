"""Cross-entropy alone: torch's own, label smoothing, z-loss, and the same without logits."""

import pytest
import torch
from torch.nn import functional as F

import anyformer as af
from anyformer.errors import InputError
from tests.parts.samples import random
from tests.tolerances import assert_close


def sample():
    logits, labels = (
        random(3, 5, 11).requires_grad_(),
        torch.randint(0, 11, (3, 5), generator=torch.Generator().manual_seed(0)),
    )
    labels[0, 2] = -100
    return logits, labels


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_torchs(smoothing):
    logits, labels = sample()
    want = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    found = af.nn.cross_entropy(logits, labels, label_smoothing=smoothing)
    assert_close("formula", found, want)
    assert_close("formula", *(torch.autograd.grad(loss, logits)[0] for loss in (found, want)))


def test_cross_entropy_z_loss_adds_squares_of_logsumexp():
    logits, labels = sample()
    counted = labels != -100
    more = af.nn.cross_entropy(logits, labels, z_loss=0.01) - af.nn.cross_entropy(logits, labels)
    assert_close("formula", more, 0.01 * logits.logsumexp(-1)[counted].square().mean())


def test_cross_entropy_of_no_labels_is_zero():
    logits, labels = sample()
    loss = af.nn.cross_entropy(logits, torch.full_like(labels, -100))
    assert float(loss.detach()) == 0
    assert not torch.autograd.grad(loss, logits)[0].any()


def test_linear_cross_entropy_equals_that_of_its_logits():
    hidden, weight, bias = (
        random(3, 5, 8).requires_grad_(),
        random(11, 8, seed=1).requires_grad_(),
        random(11, seed=2).requires_grad_(),
    )
    _, labels = sample()
    how = {"label_smoothing": 0.1, "z_loss": 1e-3}
    found = af.nn.linear_cross_entropy(hidden, weight, labels, bias=bias, softcap=5.0, **how)
    want = af.nn.cross_entropy(5.0 * torch.tanh((hidden @ weight.T + bias) / 5.0), labels, **how)
    assert_close("kernel", found, want)
    for a, b in zip(*(torch.autograd.grad(loss, [hidden, weight, bias]) for loss in (found, want)), strict=True):
        assert_close("kernel", a, b)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda x, y: af.nn.cross_entropy(x, y[:, :4]), r"got \(3, 5, 11\) and \(3, 4\)"),
        (lambda x, y: af.nn.cross_entropy(x, y.double()), "labels: expected whole numbers"),
        (lambda x, y: af.nn.cross_entropy(x, y, label_smoothing=2.0), "label_smoothing: 2.0 is not from 0 to 1"),
        (lambda x, y: af.nn.cross_entropy(x, y, z_loss=-1.0), "z_loss: -1.0 is not at least 0"),
        (lambda x, y: af.nn.linear_cross_entropy(x, random(4, 7), y), "do not fit"),
        (lambda x, y: af.nn.linear_cross_entropy(x, random(4, 11), y, softcap=0.0), "softcap: 0.0 is not above 0"),
    ],
)  # fmt: skip
def test_loss_misuse_says_what_to_do(call, text):
    with pytest.raises(InputError, match=text):
        call(*sample())
