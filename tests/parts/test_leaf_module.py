"""The module that keeps a leaf's parameters and constants."""

import math

import pytest
import torch

from anyformer.parts.leaf_module import LeafModule
from anyformer.parts.positions.alibi import Alibi
from anyformer.parts.positions.xl import TransformerXL
from tests.parts.samples import dims


def xl() -> LeafModule:
    leaf = TransformerXL()
    return LeafModule(leaf, leaf.weights(dims()), leaf.constants(dims()))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_held_cast_reaches_parameters_and_not_constants(dtype):
    module = xl().to(dtype)
    exact = torch.tensor(TransformerXL().constants(dims())["frequency"], dtype=torch.float64)
    assert {p.dtype for p in module.parameters()} == {dtype}
    assert torch.equal(module.tensors()["frequency"], exact)


def test_held_emptied_on_a_device_still_has_its_constants():
    with torch.device("meta"):
        module = LeafModule(Alibi(), {}, Alibi().constants(dims(heads=4)))
    assert module.tensors()["slope_H"].is_meta
    module.to_empty(device="cpu")
    assert module.tensors()["slope_H"].tolist() == [math.exp2(-2 * i) for i in (1, 2, 3, 4)]


def test_held_constants_are_no_part_of_a_checkpoint():
    assert list(xl().state_dict()) == ["distance", "u", "v"]
    assert set(xl().tensors()) == {"distance", "u", "v", "frequency"}


def test_held_prints_its_kind_and_sizes():
    assert str(xl()) == "LeafModule(xl, distance 32x12, u 4x8, v 4x8)"
