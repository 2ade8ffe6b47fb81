"""A pattern as a tuple of constants, and back."""

import pytest

from anyformer.kernels.trace_constants import read, written
from anyformer.parts.patterns.block_sparse import BlockSparse
from anyformer.parts.patterns.causal import Causal
from anyformer.parts.patterns.global_tokens import GlobalTokens
from anyformer.parts.patterns.random_blocks import RandomBlocks
from anyformer.parts.patterns.symmetric_window import SymmetricWindow
from anyformer.parts.patterns.window import Window


@pytest.mark.parametrize(
    "pattern",
    [
        Causal(),
        Window(size=9),
        Causal() & (SymmetricWindow(radius=3) | GlobalTokens(first=2, marks=False)),
        BlockSparse(block=4, local=2, stride=3, shift=1) | RandomBlocks(block=4, count=2, seed=7),
    ],
    ids=str,
)
def test_written_pattern_read_back_is_equal_in_fields_and_flags(pattern):
    found = read(written(pattern))
    assert found == pattern
    for flag in ("causal", "shift_invariant", "needs_length", "per_head", "per_layer", "reads_marks"):
        assert getattr(found, flag) == getattr(pattern, flag)
