"""How many (query, key) pairs a pattern allows in one document, without building a model.

Every pair is asked only where nothing better is known: an `|` is counted term by term, a term whose keys are intervals
by their ends, one that knows distances only by distance, and one that forgets by its horizon.
"""

from __future__ import annotations

import functools
import itertools
from typing import Any

from anyformer.specs.patterns import Both, Either, Pattern, Tokens

PAIRS = 1 << 21
"""Pairs enumerated at a time, where a pattern has no closed form."""
TERMS = 6
"""Patterns joined by `|` of which every combination is counted."""


@functools.lru_cache(maxsize=1024)
def allowed_pairs(pattern: Pattern, length: int) -> int:
    """Allowed pairs among `length` tokens."""
    terms = _terms(pattern)
    if len(terms) == 1 or len(terms) > TERMS:
        return _term_pairs(pattern, length)
    # Inclusion and exclusion: those of each term, less those of two at once, and so on.
    total = 0
    for n in range(1, len(terms) + 1):
        for some in itertools.combinations(terms, n):
            total += (-1) ** (n + 1) * _term_pairs(functools.reduce(_both, some), length)
    return total


def _both(first: Pattern, second: Pattern) -> Pattern:
    return Both(first=first, second=second)


def _terms(pattern: Pattern) -> list[Pattern]:
    """A pattern as the `|` of terms that hold none."""
    if isinstance(pattern, Either):
        return _terms(pattern.first) + _terms(pattern.second)
    if isinstance(pattern, Both):
        return list(itertools.starmap(_both, itertools.product(_terms(pattern.first), _terms(pattern.second))))
    return [pattern]


@functools.lru_cache(maxsize=1024)
def _term_pairs(pattern: Pattern, length: int) -> int:
    import numpy as np

    ends = pattern.interval(np.arange(length, dtype=np.int64), length)
    if ends is not None:
        return int(np.maximum(ends[1] - ends[0] + 1, 0).sum())
    if pattern.shift_invariant and not pattern.needs_length:
        return _by_distance(pattern, length)
    if pattern.causal:
        horizon = pattern.horizon()
        return _looking_back(pattern, length, length if horizon is None else min(horizon, length))
    return enumerate_pairs(pattern, length)


def _by_distance(pattern: Pattern, length: int) -> int:
    """By asking about each distance once; `length - d` pairs are d apart."""
    import numpy as np

    distance: Any = np.arange(length)
    first: Any = distance * 0
    back = pattern.allows(Tokens(distance, 0, length), Tokens(first, 0, length))
    ahead = pattern.allows(Tokens(first, 0, length), Tokens(distance, 0, length)) & (distance > 0)
    return int(((length - distance) * (np.asarray(back, np.int64) + np.asarray(ahead, np.int64))).sum())


def _looking_back(pattern: Pattern, length: int, far: int) -> int:
    """By asking every query about the `far` keys that end with itself, one distance after the other."""
    import numpy as np

    total = 0
    for distance in range(far):
        queries: Any = np.arange(distance, length)
        allowed = pattern.allows(Tokens(queries, 0, length), Tokens(queries - distance, 0, length))
        total += int(np.sum(np.broadcast_to(allowed, queries.shape)))
    return total


def enumerate_pairs(pattern: Pattern, length: int) -> int:
    """By asking the predicate about every pair."""
    import numpy as np

    keys: Any = np.arange(length)[None, :]
    rows = max(1, PAIRS // length)
    total = 0
    for first in range(0, length, rows):
        queries: Any = np.arange(first, min(first + rows, length))[:, None]
        allowed = pattern.allows(Tokens(queries, 0, length), Tokens(keys, 0, length))
        total += int(np.sum(np.broadcast_to(allowed, (queries.shape[0], length))))
    return total


@functools.lru_cache(maxsize=1024)
def keys_seen(pattern: Pattern, pos: int, keys: int) -> int:
    """How many of the first `keys` tokens a query at `pos` sees, at the end of its document."""
    import numpy as np

    allowed = pattern.allows(Tokens(pos, 0, pos + 1), Tokens(np.arange(keys), 0, pos + 1))
    return int(np.sum(np.broadcast_to(allowed, keys)))
