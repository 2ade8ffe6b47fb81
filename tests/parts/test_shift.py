"""What a scheme says of itself as `relative`, tried in whole models: adding a constant to all positions."""

import pytest
import torch

from anyformer.parts.positions.rope_scaling import RopeScaling
from anyformer.specs.axes import Position
from tests.parts.samples import small_model
from tests.tolerances import assert_close, difference

IDS = torch.randint(0, 31, (2, 13), generator=torch.Generator().manual_seed(0))
SHIFT = 9

VARIANTS = {
    "sinusoidal halves": {"kind": "sinusoidal", "layout": "halves", "endpoint": True},
    "learned offset": {"kind": "learned", "offset": 2},
    "alibi before scale": {"kind": "alibi", "before_scale": True},
    "t5 in each layer": {"kind": "t5", "shared": False, "buckets": 8, "max_distance": 20},
    "shaw sine": {"kind": "shaw", "vectors": "sine", "clip": 3},
    "shaw keys": {"kind": "shaw", "on_values": False, "shared": True},
    "xl shared": {"kind": "xl", "shared": True},
    "disentangled in each layer": {"kind": "disentangled", "shared": False, "buckets": None, "max_distance": 5},
    "disentangled on keys": {"kind": "disentangled", "on_queries": False, "norm": "layernorm"},
    "rope interleaved": {"kind": "rope", "layout": "interleaved"},
    "rope partial": {"kind": "rope", "fraction": 0.5},
    "rope on values": {"kind": "rope", "on_values": True},
    "rope linear": {"kind": "rope", "scaling": {"kind": "linear", "factor": 4.0}},
    "rope dynamic": {"kind": "rope", "scaling": {"kind": "dynamic", "factor": 4.0, "original": 8}},
    "rope yarn": {"kind": "rope", "scaling": {"kind": "yarn", "factor": 4.0, "original": 8}},
    "rope llama3": {"kind": "rope", "scaling": {"kind": "llama3", "original": 16}},
    "rope longrope": {
        "kind": "rope",
        "scaling": {"kind": "longrope", "factor": 4.0, "original": 8, "short": [1.0, 1.5], "long": [1.0, 3.0]},
    },
}


def logits(model, positions):
    with torch.no_grad():
        return model(IDS, positions=positions).logits


def assert_as_declared(position, topology):
    model = small_model({"topology": topology, "position": position})
    leaf = model.spec.stacks[0].layers[0].position
    here, there = (logits(model, torch.arange(13) + shift) for shift in (0, SHIFT))
    if leaf.relative:
        assert_close("formula", there, here)
    else:
        assert difference(there, here) > 1e-3, "a scheme that is not relative must tell positions apart"
    return leaf


@pytest.mark.parametrize("topology", ["decoder", "encoder"])
@pytest.mark.parametrize("kind", Position.kinds())
def test_position_is_shift_invariant_exactly_if_it_calls_itself_relative(kind, topology):
    assert_as_declared({"kind": kind}, topology)


@pytest.mark.parametrize("topology", ["decoder", "encoder"])
@pytest.mark.parametrize("case", VARIANTS)
def test_position_variant_is_shift_invariant_exactly_if_it_calls_itself_relative(case, topology):
    assert_as_declared(VARIANTS[case], topology)


def test_variants_of_this_file_hold_every_rope_scaling():
    scalings = {v["scaling"]["kind"] for v in VARIANTS.values() if "scaling" in v}
    assert scalings == set(RopeScaling.kinds())


def test_relative_schemes_are_those_that_the_papers_call_so():
    papers = {"none": True, "shaw": True, "xl": True, "t5": True, "alibi": True, "rope": True, "disentangled": True}
    papers |= {"sinusoidal": False, "learned": False, "axial": False}
    assert {kind: Position.named(kind)().relative for kind in papers} == papers


@pytest.mark.parametrize("kind", sorted(set(Position.kinds()) - {"none"}))
def test_position_scheme_tells_the_order_of_tokens(kind):
    """Without a scheme an encoder is blind to order; with any scheme it is not."""
    blind, model = (small_model({"topology": "encoder", "position": name}) for name in ("none", kind))
    # Not simply reversed: ALiBi looks both ways alike.
    order = torch.randperm(13, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert_close("formula", blind(IDS[:, order]).logits, blind(IDS).logits[:, order])
        assert difference(model(IDS[:, order]).logits, model(IDS).logits[:, order]) > 1e-3
