"""Few rows, drawn by their shape, and where kernels of Triton can be tested on them."""

import os
from importlib.util import find_spec

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
DTYPES = {
    "fused": torch.float32,
    # The interpreter has no bf16 of its own.
    "bf16-pair": torch.bfloat16 if DEVICE == "cuda" else torch.float16,
}
SHAPES = {
    "one row": (1, 96, 40),
    "rows that are no power of 2": (3, 200, 17),
    "four wide rows": (4, 640, 6),
}
"""Rows, inputs, outputs: blocks that are full, and blocks that are cut in each direction."""

needs_triton = pytest.mark.skipif(
    find_spec("triton") is None or (DEVICE == "cpu" and os.environ.get("TRITON_INTERPRET") != "1"),
    reason="Triton needs a CUDA device, or TRITON_INTERPRET=1 on a CPU",
)


def drawn(*shape, dtype, scale=1.0):
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))) * scale).to(DEVICE, dtype)
