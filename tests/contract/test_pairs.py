"""Every pattern with every position scheme: alone, padded, packed and cached, and packed training."""

import random

import pytest
import torch

from anyformer.errors import SpecError
from anyformer.specs import ModelSpec, Pattern, Position
from tests.contract.contracts import cached, model_of, padded_and_packed
from tests.contract.draw import FIXED, REPEATS, draw_kind
from tests.contract.feed import alone, document, packed
from tests.tolerances import assert_close

LENGTHS = (6, 21, 1, 13)


PAIRS = [
    (pattern, position)
    for pattern in Pattern.kinds()
    for position in Position.kinds()
    # A rule refuses it: vectors on values don't count a key several times.
    if not (pattern in REPEATS and Position.named(position)(**FIXED.get(("position", position), {})).reads_probs())
]


def spec_of(pattern: str, position: str) -> ModelSpec:
    """A small model with both; in a decoder where the rules allow it."""
    node = {"kind": position} | FIXED.get(("position", position), {})
    for seed in range(100):
        try:
            return draw_kind(random.Random(seed), "pattern", pattern).vary({"position": node})
        except SpecError as error:
            refused = error
    raise refused


@pytest.mark.parametrize(("pattern", "position"), PAIRS)
def test_pattern_with_a_position_is_the_same_alone_padded_packed_and_cached(pattern, position):
    spec = spec_of(pattern, position)
    padded_and_packed(spec)
    cached(spec)


@pytest.mark.parametrize(("pattern", "position"), PAIRS)
def test_packed_documents_give_the_summed_loss_and_gradients_of_the_same_alone(pattern, position):
    model = model_of(spec_of(pattern, position))
    parameters = list(model.parameters())
    docs = [document(model.spec, n, n) for n in LENGTHS]
    losses = []
    for doc in docs:
        out = alone(model, doc, labels=doc.source[None])
        losses.append(out.loss * out.label_count)
    row = torch.cat([doc.source for doc in docs])[None]
    together = packed(model, docs, labels=row)[0]
    want, found = sum(losses), together.loss * together.label_count
    assert_close("promise", found, want)
    each = [torch.autograd.grad(loss, parameters, allow_unused=True) for loss in (want, found)]
    for a, b in zip(*each, strict=True):
        if a is not None and float(a.abs().max()) > 1e-12:
            assert_close("promise", b, a)
