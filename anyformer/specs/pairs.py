"""How many (query, key) pairs a pattern allows in one document, without building a model."""

from __future__ import annotations

import functools
from typing import Any

from anyformer.specs.patterns import Both, Either, Pattern, Tokens

ROWS = 1024
"""Queries enumerated at a time, where a pattern has no closed form."""


@functools.lru_cache(maxsize=1024)
def allowed_pairs(pattern: Pattern, length: int) -> int:
    """Allowed pairs among `length` tokens: by intervals where the pattern gives them, else by enumeration."""
    import numpy as np

    if isinstance(pattern, Either):
        overlap = Both(first=pattern.first, second=pattern.second)
        if overlap.interval(np.arange(1), 1) is not None:
            parts = (pattern.first, pattern.second)
            return sum(allowed_pairs(p, length) for p in parts) - allowed_pairs(overlap, length)
    ends = pattern.interval(np.arange(length, dtype=np.int64), length)
    if ends is not None:
        return int(np.maximum(ends[1] - ends[0] + 1, 0).sum())
    return enumerate_pairs(pattern, length)


def enumerate_pairs(pattern: Pattern, length: int) -> int:
    """The same by asking the predicate about every pair."""
    import numpy as np

    keys: Any = np.arange(length)[None, :]
    total = 0
    for first in range(0, length, ROWS):
        queries: Any = np.arange(first, min(first + ROWS, length))[:, None]
        total += int(np.sum(pattern.allows(Tokens(queries, 0, length), Tokens(keys, 0, length))))
    return total


def keys_seen(pattern: Pattern, pos: int, keys: int) -> int:
    """How many of the first `keys` tokens a query at `pos` sees, at the end of its document."""
    import numpy as np

    allowed = pattern.allows(Tokens(pos, 0, pos + 1), Tokens(np.arange(keys), 0, pos + 1))
    return int(np.sum(np.broadcast_to(allowed, keys)))
