"""Every kind of pattern with every other, under & and |: the mask, the promises about it, the count and the cache."""

import numpy as np
import pytest

from anyformer.specs.cache_policy import CachePolicy
from anyformer.specs.pair_count import allowed_pairs, allowed_pairs_of_heads, blind_heads, keys_seen, keys_seen_of_heads
from anyformer.specs.patterns import Pattern
from tests.parts.pattern_samples import HEADS, LAYER, LENGTH, masks, one_of_each, parse, samples

FIRST = pytest.mark.parametrize("first", samples(2), ids=str)
FAR, GAP = 10**6, np.arange(LENGTH)[:, None] - np.arange(LENGTH)[None, :]


def pairs(first: Pattern) -> list[tuple[Pattern, np.ndarray]]:
    """The pattern joined with one of each kind, and what the dense masks of both say."""
    joined = []
    for second in one_of_each():
        joined += [(first & second, masks(first) & masks(second)), (first | second, masks(first) | masks(second))]
    return joined


@FIRST
def test_pairs_of_a_pattern_allow_what_their_masks_allow(first):
    for pattern, dense in pairs(first):
        assert np.array_equal(masks(pattern), dense), pattern


@FIRST
def test_pairs_of_a_pattern_keep_every_promise(first):
    for pattern, dense in pairs(first):
        far, ahead, reach = pattern.horizon(), pattern.ahead(), pattern.reach()
        back = (FAR if far is None else far) > GAP
        forth = (FAR if ahead is None else ahead) >= -GAP
        assert not (dense & ~(back & forth)).any(), pattern
        assert not (pattern.causal and (dense & (GAP < 0)).any()), pattern
        assert pattern.per_head or (dense == dense[:1]).all(), pattern
        apart = np.arange(LENGTH) < reach.first
        near = ((reach.back or FAR) > GAP) & ((FAR if reach.ahead is None else reach.ahead) >= -GAP)
        assert not (dense & ~(near | apart[:, None] | apart[None, :])).any(), pattern
        if not pattern.needs_length:
            assert np.array_equal(masks(pattern, 17), dense[:, :17, :17]), pattern
        if pattern.shift_invariant:
            assert np.array_equal(dense[:, :-1, :-1], dense[:, 1:, 1:]), pattern


@FIRST
def test_pairs_of_a_pattern_are_counted_as_they_are_enumerated(first):
    for pattern, dense in pairs(first):
        each = [allowed_pairs(pattern, LENGTH, head, LAYER) for head in range(HEADS)]
        assert each == dense.sum((1, 2)).tolist(), pattern
        assert allowed_pairs_of_heads(pattern, LENGTH, HEADS, LAYER) == sum(each), pattern


@FIRST
def test_pairs_of_a_pattern_have_one_grain_for_each_block(first):
    for pattern, dense in pairs(first):
        for axis, grain in zip((1, 2), pattern.grains(), strict=True):
            begin = np.arange(LENGTH) // (grain or LENGTH) * (grain or LENGTH)
            assert np.array_equal(np.take(dense, begin, axis), dense), pattern


def kept(pattern: Pattern, chunk: int) -> None:
    """Feed a row in chunks, token by token into the slots of a cache: each query finds every key that it may see."""
    keep, dense = pattern.keeps().fed(chunk), masks(pattern).any(0)
    slots: dict[int, int] = {}
    for begin in range(0, LENGTH, chunk):
        new = range(begin, min(begin + chunk, LENGTH))
        for number in new:
            slots[keep.slot(number)] = number
        assert max(slots) < keep.room(10**4), pattern
        for number in new:
            lost = set(np.flatnonzero(dense[number, : new[-1] + 1])) - set(slots.values())
            assert not lost, f"{pattern}: query {number} misses {lost}"


@FIRST
def test_cache_of_a_causal_pattern_keeps_what_later_queries_see(first):
    joined = [first, *(pattern for pattern, _ in pairs(first))]
    for pattern in {*(one for one in joined if one.causal), *(parse("causal") & one for one in joined)}:
        for chunk in (1, 3):
            kept(pattern, chunk)


@pytest.mark.parametrize(
    ("text", "room"),
    [
        ("causal", 1000),
        ("window(8)", 8),
        ("dilated_window(4, 3)", 10),
        ("causal & chunked(8, 1)", 16),
        ("causal & strided(8)", 1000),
        ("causal & fixed(100, 4)", 140),
        ("window(8) | causal & global_tokens(3, False)", 11),
        ("window(8) | causal & global_tokens(3)", 1000),
        ("window(8) | causal & edge_blocks(4, 1, 0)", 12),
        ("block_sparse(10, 2, 10, 0)", 120),
        ("block_sparse(10, 2, 10, 1)", 1000),
        ("causal & axial(20, 'row')", 20),
        ("heads(0, 2) & window(8) | heads(2, 4) & window(4)", 8),
    ],
)
def test_cache_of_a_pattern_has_no_more_room_than_it_needs(text, room):
    assert parse(text).keeps().room(1000) == room


def test_room_check_catches_a_cache_that_forgets_too_early(monkeypatch):
    pattern = parse("window(5)")
    monkeypatch.setattr(type(pattern), "keeps", lambda self: CachePolicy(recent=4))
    with pytest.raises(AssertionError, match="query 4 misses"):
        kept(pattern, 1)


def test_keys_seen_of_heads_adds_up_what_every_head_sees():
    pattern = parse("heads(0, 1) & window(3) | heads(1, 4) & causal")
    assert [keys_seen(pattern, 10, 11, head) for head in range(HEADS)] == [3, 11, 11, 11]
    assert keys_seen_of_heads(pattern, 10, 11, HEADS) == 36
    assert keys_seen_of_heads(parse("window(3)"), 10, 11, HEADS) == 12


@pytest.mark.parametrize(
    ("text", "blind"),
    [
        ("causal", []),
        ("heads(0, 4) & window(3)", []),
        ("heads(0, 2) & window(3) | heads(3, 4) & causal", [2]),
        ("heads(1, 3) & causal", [0, 3]),
        ("prefix(4)", [0, 1, 2, 3]),
        ("global_tokens", [0, 1, 2, 3]),
        ("causal & edge_blocks(8, 0, 1)", [0, 1, 2, 3]),
        ("causal | prefix(4)", []),
        ("random_blocks(8, 1)", []),
        ("causal & random_tokens(1, past=True)", []),
    ],
)
def test_blind_heads_are_those_with_a_query_that_sees_nothing(text, blind):
    assert blind_heads(parse(text), HEADS, 64) == blind
