"""The largest number of a row in pieces is torch's own argmax."""

import pytest
import torch

from anyformer.kernels.argmax import SHORT, largest


@pytest.mark.parametrize("length", [7, SHORT, SHORT + 1, 8191, 12288, 128256])
def test_largest_of_long_and_short_rows_equals_max(length):
    x = torch.randn(3, length, generator=torch.Generator().manual_seed(length))
    # Of equals the first counts, within a piece and across pieces.
    x[1, [length // 3, length // 3 + 1, length - 1]] = 9.0
    values, places = largest(x)
    assert torch.equal(values, x.amax(-1))
    assert torch.equal(places, x.argmax(-1))
    assert places[1] == length // 3


def test_largest_of_a_row_with_nan_is_nan():
    x = torch.zeros(2, 8192)
    x[1, 5000] = float("nan")
    values, _ = largest(x)
    assert values.isnan().tolist() == [False, True]
