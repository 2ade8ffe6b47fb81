"""Pages keep the promise of the cache, over every registered kind and over random specs."""

import pytest

from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.contract.paged import paged


@pytest.mark.parametrize(("axis", "kind"), every_kind())
def test_requests_of_a_kind_in_pages_equal_each_of_them_whole(axis, kind):
    paged(spec_of_kind(axis, kind))


@pytest.mark.parametrize("seed", range(160))
def test_requests_of_a_random_spec_in_pages_equal_each_of_them_whole(seed):
    paged(draw(seed))
