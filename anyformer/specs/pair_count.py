"""How many (query, key) pairs a pattern allows in one document, without building a model.

Every pair is asked only where nothing better is known: an `|` is counted term by term. A term whose keys are intervals
is counted by their ends, one that knows distances only by distance, one that is made of blocks by block, one that
lists its keys by that list, and one that forgets within its horizon.
"""

import functools
import itertools
import math
from typing import Any, NamedTuple

import numpy as np

from anyformer.specs.patterns import Both, Either, Pattern, Tokens

PAIRS = 1 << 21
"""Pairs enumerated at a time, where a pattern has no closed form."""
WORK = 1 << 26
"""Pairs asked in all, which takes a second or two. Of longer documents, evenly spaced blocks are asked and scaled up."""
TERMS = 6
"""Patterns joined by `|` of which every combination is counted."""
ASKED = 12
"""Queries of a long document of which `blind_heads` asks."""
SHORT = 512
"""Of shorter ones it asks all."""

Term = tuple[Pattern, ...]
"""Patterns that are all to hold."""


def allowed_pairs(pattern: Pattern, length: int, head: int = 0, layer: int = 0) -> int:
    """Allowed pairs among `length` tokens, in one head."""
    found = pattern.in_head(head)
    if isinstance(found, bool):
        return length * length if found else 0
    return _allowed(found, length, head if found.per_head else 0, layer if found.per_layer else 0)


def allowed_pairs_of_heads(pattern: Pattern, length: int, heads: int, layer: int = 0) -> int:
    """Allowed pairs in all heads of a layer together."""
    if not pattern.per_head:
        return heads * allowed_pairs(pattern, length, 0, layer)
    return sum(allowed_pairs(pattern, length, head, layer) for head in range(heads))


@functools.lru_cache(maxsize=4096)
def _allowed(pattern: Pattern, length: int, head: int, layer: int) -> int:
    place = _Place(length, head, layer)
    terms = _terms(pattern)
    if len(terms) > TERMS:
        return _term_pairs((pattern,), place)
    # Inclusion and exclusion: those of each term, less those of two at once, and so on.
    total = 0
    for n in range(1, len(terms) + 1):
        for some in itertools.combinations(terms, n):
            total += (-1) ** (n + 1) * _term_pairs(tuple(dict.fromkeys(itertools.chain(*some))), place)
    return total


def _terms(pattern: Pattern) -> list[Term]:
    """A pattern as the `|` of terms that hold none."""
    if isinstance(pattern, Either):
        return _terms(pattern.first) + _terms(pattern.second)
    if isinstance(pattern, Both):
        return [a + b for a, b in itertools.product(_terms(pattern.first), _terms(pattern.second))]
    spelled = pattern.spelled()
    return [(pattern,)] if spelled is pattern else _terms(spelled)


class _Place(NamedTuple):
    """Where pairs are counted."""

    length: int
    head: int
    layer: int

    def tokens(self, pos: Any) -> Tokens:
        return Tokens(pos, 0, self.length, self.head, self.layer)

    def allowed(self, pattern: Pattern, q_pos: Any, k_pos: Any) -> Any:
        """Whether queries see keys, as an array of the shape of both."""
        allowed = pattern.allows(self.tokens(q_pos), self.tokens(k_pos))
        return np.broadcast_to(allowed, np.broadcast_shapes(np.shape(q_pos), np.shape(k_pos)))


@functools.lru_cache(maxsize=4096)
def _term_pairs(term: Term, place: _Place) -> int:
    pos: Any = np.arange(place.length, dtype=np.int64)
    first, last = pos * 0, pos * 0 + place.length - 1
    rest: list[Pattern] = []
    for leaf in term:
        ends = leaf.interval(pos, place.length)
        if ends is None:
            rest.append(leaf)
        else:
            first, last = np.maximum(first, ends[0]), np.minimum(last, ends[1])
    # Queries that see no key have an interval of none.
    first = np.minimum(first, last + 1)
    if not rest:
        return int((last - first + 1).sum())
    if all(leaf.shift_invariant and not leaf.needs_length for leaf in rest):
        return _by_distance(functools.reduce(Pattern.__and__, rest), place, first, last)
    for leaf in rest:
        # One that lists its keys, if no other one divides what it lists.
        grain = leaf.grains()[1] if leaf.chosen(Tokens(0, 0, 1)) is not None else 0
        if grain and all(other.grains()[1] % grain == 0 for other in rest):
            return _by_list(leaf, [other for other in rest if other is not leaf], place, first, last)
    return _by_asking(functools.reduce(Pattern.__and__, rest), place, first, last)


def _by_distance(pattern: Pattern, place: _Place, first: Any, last: Any) -> int:
    """By asking about each distance once, and then how many allowed ones lie between two."""
    distance: Any = np.arange(1 - place.length, place.length)
    allowed = place.allowed(pattern, np.maximum(distance, 0), np.maximum(-distance, 0))
    below = np.concatenate([[0], np.cumsum(allowed, dtype=np.int64)])
    pos: Any = np.arange(place.length)
    return int((below[pos - first + place.length] - below[pos - last + place.length - 1]).sum())


def _by_list(leaf: Pattern, others: list[Pattern], place: _Place, first: Any, last: Any) -> int:
    """By the keys that every query lists."""
    pos: Any = np.arange(place.length)
    grain, total = leaf.grains()[1], 0
    for number in leaf.chosen(place.tokens(pos)) or []:
        begin = number * grain
        keys = np.minimum(last, begin + grain - 1) - np.maximum(first, begin) + 1
        allowed = keys > 0
        for other in others:
            allowed = allowed & place.allowed(other, pos, np.minimum(begin, place.length - 1))
        total += int((keys * allowed).sum())
    return total


def _by_asking(pattern: Pattern, place: _Place, first: Any, last: Any) -> int:
    """By asking about pairs: of blocks, within the horizon, or all, whichever are the fewest."""
    length = place.length
    pos: Any = np.arange(length)
    seen = last >= first
    if not seen.any():
        return 0
    lowest, highest = int((pos - last)[seen].min()), int((pos - first)[seen].max())
    horizon, ahead = pattern.horizon(), pattern.ahead()
    highest = highest if horizon is None else min(highest, horizon - 1)
    lowest = lowest if ahead is None else max(lowest, -ahead)
    near = length * (highest - lowest + 1)
    if near > WORK or near >= math.prod(-(-length // (grain or length)) for grain in pattern.grains()):
        return _by_block(pattern, place, first, last)
    total = 0
    for distance in range(lowest, highest + 1):
        queries = pos[max(distance, 0) : length + min(distance, 0)]
        keys = queries - distance
        allowed = place.allowed(pattern, queries, keys)
        total += int((allowed & (keys >= first[queries]) & (keys <= last[queries])).sum())
    return total


def _by_block(pattern: Pattern, place: _Place, first: Any, last: Any) -> int:
    """By asking about one pair of each pair of blocks, and how many keys of each query's interval lie in which. If there
    are too many, as many evenly spaced blocks of queries are asked as there is time for, and the sum is scaled up.
    """
    length = place.length
    rows, columns = (grain or length for grain in pattern.grains())
    every, keys = (np.arange(0, length, grain) for grain in (rows, columns))
    some = min(len(every), max(1, WORK // len(keys)))
    starts: Any = every[np.arange(some) * len(every) // some]
    at_once, total, asked = max(1, PAIRS // len(keys)), 0, 0
    for i in range(0, some, at_once):
        blocks = starts[i : i + at_once, None]
        allowed = np.pad(place.allowed(pattern, blocks, keys[None, :]), ((0, 0), (0, 1))).astype(np.int64)
        before = np.cumsum(allowed, axis=1) - allowed
        row, pos = np.nonzero(blocks + np.arange(rows) < length)
        pos = pos + blocks[row, 0]
        for sign, ends in ((1, last[pos] + 1), (-1, first[pos])):
            block, rest = ends // columns, ends % columns
            total += sign * int((before[row, block] * columns + allowed[row, block] * rest).sum())
        asked += len(pos)
    return total if asked == length else round(total * length / asked)


@functools.lru_cache(maxsize=4096)
def keys_seen(pattern: Pattern, pos: int, keys: int, head: int = 0, layer: int = 0) -> int:
    """How many of the first `keys` tokens a query at `pos` sees in one head, at the end of its document."""
    return int(np.sum(_Place(pos + 1, head, layer).allowed(pattern, pos, np.arange(keys))))


def keys_seen_of_heads(pattern: Pattern, pos: int, keys: int, heads: int, layer: int = 0) -> int:
    """The same in all heads of a layer together."""
    if not pattern.per_head:
        return heads * keys_seen(pattern, pos, keys, 0, layer if pattern.per_layer else 0)
    return sum(keys_seen(pattern, pos, keys, head, layer) for head in range(heads))


def blind_heads(pattern: Pattern, heads: int, context: int, layer: int = 0) -> list[int]:
    """Heads in which some query sees no key at all, found by asking a few queries of a short and a long document.

    Marks of `global_mask` don't count, as a row need not have any.
    """
    asked = range(heads) if pattern.per_head else range(min(heads, 1))
    more = (2, 3, 5, 23, context // 3) if pattern.needs_length else ()
    lengths = {max(1, min(n, context)) for n in (1, context, *more)}
    blind = [head for head in asked if any(_is_blind(pattern, _Place(n, head, layer)) for n in lengths)]
    return blind if pattern.per_head else list(range(heads)) if blind else []


def _is_blind(pattern: Pattern, place: _Place) -> bool:
    length = place.length
    spread = {i * (length - 1) // ASKED for i in range(ASKED + 1)}
    pos: Any = np.arange(length) if length <= SHORT else np.array(sorted({0, 1, *spread}))
    # Most patterns let a token see itself, which is asked first.
    lost = pos[~place.allowed(pattern, pos, pos)]
    return any(not place.allowed(pattern, one, np.arange(length)).any() for one in lost.tolist())
