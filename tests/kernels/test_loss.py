"""Cross-entropy with smoothing and z-loss, and the squared error."""

import math

import pytest
import torch
from torch.nn import functional as F

from anyformer.kernels.loss import IGNORE, cross_entropy, squared_error
from tests.parts.samples import random
from tests.tolerances import assert_close

LOGITS = 3 * random(2, 7, 11)
LABELS = torch.randint(0, 11, (2, 7), generator=torch.Generator().manual_seed(1))
LABELS[0, 2] = LABELS[1, 5] = LABELS[1, 6] = IGNORE


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_cross_entropy_equals_torch_over_counted_labels(smoothing):
    found = cross_entropy(LOGITS, LABELS, smoothing=smoothing)
    wanted = F.cross_entropy(LOGITS.flatten(0, 1), LABELS.flatten(), label_smoothing=smoothing)
    assert_close("formula", found.total, wanted)
    assert int(found.label_count) == 11
    assert list(found.terms) == ["cross_entropy"]


@pytest.mark.parametrize("z", [0.0, 1e-4, 0.5])
@pytest.mark.parametrize("smoothing", [0.0, 0.2])
def test_cross_entropy_smoothing_and_z_equal_the_formula(smoothing, z):
    counted = LABELS != IGNORE
    rows, target = LOGITS[counted], LABELS[counted]
    log_p = rows - rows.exp().sum(-1, keepdim=True).log()
    nll = -log_p[torch.arange(len(target)), target]
    entropy = ((1 - smoothing) * nll + smoothing * -log_p.mean(-1)).mean()
    squares = rows.exp().sum(-1).log().square().mean()
    found = cross_entropy(LOGITS, LABELS, smoothing=smoothing, z=z)
    assert_close("formula", found.total, entropy + z * squares)
    assert_close("formula", found.terms["cross_entropy"], entropy)
    assert ("z" in found.terms) == (z > 0)
    if z:
        assert_close("formula", found.terms["z"], squares)


def test_cross_entropy_gradient_reaches_counted_rows_only():
    logits = LOGITS.clone().requires_grad_()
    cross_entropy(logits, LABELS, smoothing=0.1, z=0.1).total.backward()
    counted = LABELS != IGNORE
    assert (logits.grad[~counted] == 0).all()
    assert (logits.grad[counted] != 0).all()


def test_cross_entropy_without_counted_labels_is_zero_with_zero_gradient():
    logits = LOGITS.clone().requires_grad_()
    found = cross_entropy(logits, torch.full_like(LABELS, IGNORE), smoothing=0.1, z=0.1)
    found.total.backward()
    assert found.total.item() == 0.0
    assert int(found.label_count) == 0
    assert (logits.grad == 0).all()


def test_cross_entropy_uniform_logits_give_the_log_of_the_vocabulary():
    found = cross_entropy(torch.zeros(3, 4, 50, dtype=torch.float64), torch.zeros(3, 4, dtype=torch.long))
    assert_close("formula", found.total, torch.tensor(math.log(50), dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_cross_entropy_half_precision_logits_are_computed_in_fp32(dtype):
    half = LOGITS.to(dtype)
    found = cross_entropy(half, LABELS, smoothing=0.1, z=0.1)
    assert found.total.dtype == torch.float32
    assert_close("single", found.total, cross_entropy(half.double(), LABELS, smoothing=0.1, z=0.1).total)


def test_cross_entropy_double_logits_stay_double():
    assert cross_entropy(LOGITS, LABELS, z=0.1).total.dtype == torch.float64


def test_cross_entropy_one_label_a_row_equals_torch():
    rows, labels = random(5, 3), torch.tensor([0, 2, 1, IGNORE, 2])
    assert_close("formula", cross_entropy(rows, labels).total, F.cross_entropy(rows, labels))


def test_squared_error_equals_the_mean_of_squares_in_fp32_or_better():
    answers, labels = random(4, 3), random(4, 3, seed=1)
    found = squared_error(answers, labels)
    assert_close("formula", found.total, ((answers - labels) ** 2).sum() / 12)
    assert int(found.label_count) == 12
    half = squared_error(answers.bfloat16(), labels)
    assert half.total.dtype == torch.float32
    assert_close("single", half.total, ((answers.bfloat16().double() - labels) ** 2).mean())
