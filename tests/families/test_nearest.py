"""Presets without a public class, against the class that is nearest: made small, they give its logits in fp64."""

import pytest
import torch

import anyformer as af
from anyformer.families.family import Family
from anyformer.families.hf_bridge import to_hf
from tests.families.cases import gathered
from tests.families.oracle import answer, lifted
from tests.tolerances import assert_close

NEAREST = gathered("NEAREST")

SMALL = {
    "width": 36,
    "depth": 3,
    "attention.heads": 6,
    "attention.head_dim": 8,
    "ffn.width": 40,
    "vocab": 61,
    "context": 64,
    "norm.eps": 1e-3,
}
"""Heads that don't add up to the width, where a preset has such heads."""


@pytest.mark.parametrize("name", list(NEAREST))
def test_preset_without_a_class_can_be_written_for_the_nearest(name):
    kind, changes = NEAREST[name]
    family = Family.named(kind)
    assert family is not None
    spec = af.spec(name, changes)
    config = family.hf_from(spec)
    assert family.spec_from(config).count().params == spec.count().params == af.spec(name).count().params


@torch.no_grad()
@pytest.mark.parametrize("name", list(NEAREST))
def test_small_preset_without_a_class_gives_the_logits_of_the_nearest(name):
    kind, changes = NEAREST[name]
    ours = af.build(af.spec(name, SMALL | changes), dtype=torch.float64, seed=2).eval()
    generator = torch.Generator().manual_seed(3)
    for tensor in ours.parameters():
        tensor.copy_(torch.randn(tensor.shape, generator=generator, dtype=torch.float64) * 0.3)
    ids = torch.randint(3, 61, (2, 21), generator=generator)
    with lifted():
        theirs = to_hf(ours, kind)
    assert_close("oracle", ours(ids).logits, answer(theirs, input_ids=ids))
