"""The loss of a linear map without its logits, against the loss of the logits."""

import pytest
import torch

from anyformer.errors import InputError
from anyformer.kernels import linear_cross_entropy as chunks
from anyformer.kernels.linear_cross_entropy import default_rows, linear_cross_entropy
from anyformer.kernels.loss import IGNORE, cross_entropy
from tests.kernels.alive import Alive
from tests.parts.samples import random
from tests.tolerances import assert_close

VOCAB, WIDTH = 23, 6
LABELS = torch.randint(0, VOCAB, (3, 11), generator=torch.Generator().manual_seed(1))
LABELS[0, 2] = LABELS[1, 5] = LABELS[2, 10] = IGNORE
CASES = {
    "plain": {},
    "scale": {"scale": 0.3},
    "softcap": {"softcap": 1.5},
    "z": {"z": 0.2},
    "smoothing": {"smoothing": 0.1},
    "all": {"scale": 0.7, "softcap": 2.0, "z": 0.05, "smoothing": 0.2},
}


def inputs(bias, dtype=torch.float64):
    found = [random(3, 11, WIDTH, seed=2), random(VOCAB, WIDTH, seed=3), random(VOCAB, seed=4) if bias else None]
    return [None if t is None else t.to(dtype).requires_grad_() for t in found]


def plain(hidden, weight, bias, labels, *, scale=1.0, softcap=None, smoothing=0.0, z=0.0):
    """The same from logits that are held."""
    logits = hidden @ weight.T * scale if bias is None else (hidden @ weight.T + bias) * scale
    if softcap is not None:
        logits = softcap * (logits / softcap).tanh()
    return cross_entropy(logits, labels, smoothing=smoothing, z=z)


def compare(given, labels, case, row="formula", **how):
    found, wanted = linear_cross_entropy(*given, labels, **case, **how), plain(*given, labels, **case)
    assert_close(row, found.total, wanted.total)
    assert list(found.terms) == list(wanted.terms)
    for name, term in wanted.terms.items():
        assert_close(row, found.terms[name], term)
    assert int(found.label_count) == int(wanted.label_count)
    leaves = [t for t in given if t is not None and t.requires_grad]
    for a, b in zip(
        torch.autograd.grad(3 * found.total, leaves), torch.autograd.grad(3 * wanted.total, leaves), strict=True
    ):
        assert_close(row, a, b)


@pytest.mark.parametrize("rows", [1, 4, 100])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_linear_cross_entropy_value_and_gradients_equal_those_of_the_logits(case, bias, rows):
    compare(inputs(bias), LABELS, CASES[case], rows=rows)


@pytest.mark.parametrize("case", CASES)
def test_linear_cross_entropy_rows_that_do_not_count_are_the_same_dropped_and_kept(case):
    labels = LABELS.clone()
    labels[:, 1:] = IGNORE
    hidden, weight, bias = inputs(True)
    compare((hidden, weight, bias), labels, CASES[case], rows=4)
    # As a graph sees it, with all rows and the labels of some chunks all left out.
    full = {"scale": 1.0, "softcap": None, "smoothing": 0.0, "z": 0.0} | CASES[case]
    flat = hidden.flatten(0, -2), weight, bias, labels.flatten()
    total, *_ = chunks.linear_loss(*flat, *full.values(), 4, True, True, True)
    wanted = plain(hidden, weight, bias, labels, **CASES[case]).total
    assert_close("formula", total / 3, wanted)
    leaves = hidden, weight, bias
    for a, b in zip(torch.autograd.grad(total / 3, leaves), torch.autograd.grad(wanted, leaves), strict=True):
        assert_close("formula", a, b)


def test_linear_cross_entropy_without_counted_labels_is_zero_with_zero_gradient():
    given = inputs(True)
    found = linear_cross_entropy(*given, torch.full_like(LABELS, IGNORE), z=0.1, smoothing=0.1)
    assert found.total.item() == 0.0
    assert int(found.label_count) == 0
    assert all((g == 0).all() for g in torch.autograd.grad(found.total, given))


def test_linear_cross_entropy_tied_weight_collects_the_gradients_of_both_uses():
    _, weight, _ = inputs(False)
    ids = torch.randint(0, VOCAB, (3, 11), generator=torch.Generator().manual_seed(7))
    found = torch.autograd.grad(linear_cross_entropy(weight[ids], weight, None, LABELS, rows=4).total, weight)[0]
    wanted = torch.autograd.grad(plain(weight[ids], weight, None, LABELS).total, weight)[0]
    assert_close("formula", found, wanted)


def test_linear_cross_entropy_second_backward_gives_the_same_gradients():
    given = inputs(True)
    total = linear_cross_entropy(*given, LABELS, rows=5).total
    first = torch.autograd.grad(2 * total, given, retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(first, torch.autograd.grad(2 * total, given), strict=True))


@pytest.mark.parametrize("learns", [(True, False), (False, True), (False, False)])
def test_linear_cross_entropy_gives_gradients_to_those_who_learn(learns):
    hidden, weight, _ = inputs(False)
    hidden.requires_grad_(learns[0])
    weight.requires_grad_(learns[1])
    found = linear_cross_entropy(hidden, weight, None, LABELS)
    assert found.total.requires_grad == any(learns)
    if any(learns):
        compare((hidden, weight, None), LABELS, {})


def test_linear_cross_entropy_single_precision_equals_double_rounded():
    hidden, weight, _ = inputs(False, torch.float32)
    found = linear_cross_entropy(hidden, weight, None, LABELS, z=0.1, rows=4)
    wanted = linear_cross_entropy(hidden.double(), weight.double(), None, LABELS, z=0.1)
    assert found.total.dtype == torch.float32
    assert_close("single", found.total, wanted.total)


def test_linear_cross_entropy_gradient_in_16_bits_is_multiplied_before_it_is_rounded():
    grad, factor = random(50).bfloat16(), torch.tensor(1 / 16376)
    assert_close("bf16", chunks._times(grad, factor), grad.double() * factor.double())


def test_linear_cross_entropy_label_of_no_weight_at_all_is_finite():
    hidden = torch.tensor([[200.0, -200.0]])
    found = linear_cross_entropy(hidden, torch.eye(2), None, torch.tensor([1]))
    assert found.total.item() == 400.0


def test_linear_cross_entropy_is_one_operation_of_a_compiled_graph():
    given = inputs(True)

    def loss(hidden, weight, bias, labels):
        return linear_cross_entropy(hidden, weight, bias, labels, rows=4, z=0.1, smoothing=0.1).total

    found = torch.compile(loss, backend="aot_eager", fullgraph=True)(*given, LABELS)
    wanted = loss(*given, LABELS)
    assert_close("formula", found, wanted)
    for a, b in zip(torch.autograd.grad(found, given), torch.autograd.grad(wanted, given), strict=True):
        assert_close("formula", a, b)


@pytest.mark.parametrize("case", ["plain", "all"])
def test_linear_cross_entropy_never_holds_more_logits_than_a_few_chunks(case):
    rows, vocab, count = 16, 1024, 2048
    hidden, weight = random(count, 8).float(), random(vocab, 8).float()
    full = {"scale": 1.0, "softcap": None, "smoothing": 0.0, "z": 0.0} | CASES[case]
    labels = torch.arange(count) % vocab
    with Alive() as held, torch.no_grad():
        chunks.computed(hidden, weight, None, labels, *full.values(), rows, True, True, False)
    chunk, gradients = 4 * rows * vocab, 4 * 8 * (vocab + count)
    assert chunk < held.peak < 4 * chunk + 2 * gradients < 4 * count * vocab / 8


def test_linear_cross_entropy_default_rows_fill_a_share_of_memory():
    hidden, weight = torch.empty(10, 4), torch.empty(4096, 4)
    assert default_rows(hidden, weight) == 256
    assert default_rows(hidden, torch.empty(1 << 20, 4)) == 64


def test_linear_cross_entropy_wrong_shapes_are_named():
    hidden, weight, _ = inputs(False)
    with pytest.raises(InputError, match=r"hidden \(3, 11, 6\), weight \(23, 6\) and labels \(3, 10\) do not fit"):
        linear_cross_entropy(hidden, weight, None, LABELS[:, 1:])
    with pytest.raises(InputError, match="rows 0 is not at least 1"):
        linear_cross_entropy(hidden, weight, None, LABELS, rows=0)
