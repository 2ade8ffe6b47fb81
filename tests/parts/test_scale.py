"""Scales written as numbers or formulas."""

import math

import pytest

from anyformer.specs.formulas import ScaleTextError, evaluate
from tests.parts.samples import dims

NAMES = dims(width=96, heads=6, head_dim=20, depth=5).names()


@pytest.mark.parametrize(
    ("scale", "value"),
    [
        ("1/sqrt(head_dim)", 20**-0.5),
        ("1/head_dim", 1 / 20),
        (1, 1.0),
        (0.25, 0.25),
        ("1/sqrt(144)", 1 / 12),
        ("width/heads", 16.0),
        ("sqrt(width)", math.sqrt(96)),
        ("1/sqrt(width/heads)", 0.25),
        ("2*width/3/heads", 2 * 96 / 3 / 6),
        ("1 / (2 * depth)", 0.1),
        (" 0.5 ", 0.5),
    ],
)
def test_scale_formula_follows_the_sizes(scale, value):
    assert evaluate(scale, NAMES) == value


@pytest.mark.parametrize(
    "scale",
    [
        "1/sqrt(head_dims)", "head_dim**-0.5", "1+1", "-1", "exp(1)", "sqrt(1, 2)", "sqrt()", "width/0", "1/", "",
        "head_dim.real", "'1'", "__import__('os')", "[1]",
    ],
)  # fmt: skip
def test_scale_formula_that_cannot_be_read_says_what_is_allowed(scale):
    with pytest.raises(ScaleTextError) as caught:
        evaluate(scale, NAMES)
    message = str(caught.value)
    assert message.startswith(f"{scale!r} is not a scale; give a number or a formula of sqrt, *, / and width, heads, ")
    assert message.endswith("such as '1/sqrt(head_dim)'")
