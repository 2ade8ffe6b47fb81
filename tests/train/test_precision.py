"""In what numbers a step computes."""

import pytest
import torch

from anyformer.errors import InputError
from anyformer.train.train_step import Precision

CPU = torch.device("cpu")


def test_precision_names_the_dtype_of_the_weights():
    for weights in ("float32", "bfloat16", "float64"):
        assert Precision(weights=weights).dtype == getattr(torch, weights)


@pytest.mark.parametrize("autocast", ["none", "bfloat16"])
def test_precision_step_casts_inside_only(autocast):
    with Precision(autocast=autocast).step(CPU):
        assert torch.is_autocast_enabled("cpu") == (autocast == "bfloat16")
        assert torch.get_autocast_dtype("cpu") == torch.bfloat16
    assert not torch.is_autocast_enabled("cpu")


def test_precision_step_restores_products_after_an_error():
    before = torch.get_float32_matmul_precision()
    seen = []

    def fail():
        with Precision(tf32=True).step(torch.device("cuda")):
            seen.append(torch.get_float32_matmul_precision())
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail()
    assert seen == ["high"]
    assert torch.get_float32_matmul_precision() == before


def test_precision_step_without_tf32_leaves_products_exact():
    with Precision().step(CPU):
        assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"weights": "float16"}, "precision.weights: 'float16' is unknown"),
        ({"autocast": "float16"}, "precision.autocast: 'float16' is unknown"),
        ({"weights": "bfloat16", "autocast": "bfloat16"}, "the weights are bfloat16"),
    ],
)
def test_precision_that_makes_no_sense_is_refused(given, words):
    with pytest.raises(InputError, match=words):
        Precision(**given)
