"""The quick tier: `pytest -m quick` tells in a minute whether the house stands.

A module is of it with `pytestmark = pytest.mark.quick`; of a long list of cases the first few are.
"""

from collections.abc import Iterable
from typing import Any

import pytest

quick = pytest.mark.quick


def few(values: Iterable[Any], count: int) -> list[Any]:
    """The same values, the first `count` of them in the quick tier."""
    return [pytest.param(value, marks=quick) if i < count else value for i, value in enumerate(values)]
