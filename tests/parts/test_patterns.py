"""Patterns against dense masks written from their definitions, and everything that is derived from the predicate."""

import itertools

import numpy as np
import pytest
import torch

from anyformer.parts.patterns.chunked import Chunked
from anyformer.parts.patterns.symmetric_window import SymmetricWindow
from anyformer.parts.patterns.window import Window
from anyformer.specs.codec import Problems, read
from anyformer.specs.pairs import allowed_pairs, enumerate_pairs
from anyformer.specs.patterns import Pattern, Tokens

LENGTH = 37
"""Past every window and chunk below, and a multiple of none."""

DEFINITIONS = {
    "causal": lambda q, k: k <= q,
    "full": lambda q, k: True,
    "documents": lambda q, k: True,
    "window(1)": lambda q, k: k == q,
    "window(5)": lambda q, k: q - 5 < k <= q,
    "window(100)": lambda q, k: q - 100 < k <= q,
    "symmetric_window(3)": lambda q, k: abs(q - k) <= 3,
    "symmetric_window(100)": lambda q, k: abs(q - k) <= 100,
    "chunked(8)": lambda q, k: q // 8 == k // 8,
    "chunked(100)": lambda q, k: q // 100 == k // 100,
    "causal & chunked(8)": lambda q, k: k <= q and q // 8 == k // 8,
    "chunked(8) & causal": lambda q, k: k <= q and q // 8 == k // 8,
    "causal & symmetric_window(4)": lambda q, k: q - 4 <= k <= q,
    "window(6) & chunked(4)": lambda q, k: q - 6 < k <= q and q // 4 == k // 4,
    "symmetric_window(3) & chunked(5)": lambda q, k: abs(q - k) <= 3 and q // 5 == k // 5,
    "window(3) | chunked(4)": lambda q, k: q - 3 < k <= q or q // 4 == k // 4,
    "causal & (window(3) | chunked(4))": lambda q, k: k <= q and (q - 3 < k or q // 4 == k // 4),
    "causal & window(3) | chunked(4)": lambda q, k: q - 3 < k <= q or q // 4 == k // 4,
    "window(2) | window(5) & chunked(3)": lambda q, k: q - 2 < k <= q or (q - 5 < k <= q and q // 3 == k // 3),
    "window(2) | symmetric_window(1) | chunked(6)": lambda q, k: abs(q - k) <= 1 or q // 6 == k // 6,
    "window(2) | (window(4) | chunked(6))": lambda q, k: q - 4 < k <= q or q // 6 == k // 6,
    "causal | window(7)": lambda q, k: k <= q,
    "documents & window(4)": lambda q, k: q - 4 < k <= q,
    "full & causal": lambda q, k: k <= q,
}
EVERY = pytest.mark.parametrize("text", DEFINITIONS)


def parse(text: str) -> Pattern:
    problems = Problems()
    pattern = read(Pattern, text, "pattern", problems)
    assert not problems.found
    return pattern


def by_definition(text: str, length: int = LENGTH) -> np.ndarray:
    allowed = [[bool(DEFINITIONS[text](q, k)) for k in range(length)] for q in range(length)]
    return np.array(allowed)


def by_pattern(pattern: Pattern, length: int = LENGTH) -> np.ndarray:
    places = np.arange(length)
    return np.asarray(pattern.allows(Tokens(places[:, None], 0, length), Tokens(places[None, :], 0, length)))


def test_table_of_this_file_holds_every_kind():
    named = {text.split("(")[0] for text in DEFINITIONS if " " not in text}
    assert named == set(Pattern.kinds())


@EVERY
def test_pattern_equals_the_mask_of_its_definition(text):
    assert np.array_equal(by_pattern(parse(text)), by_definition(text))


@EVERY
def test_pattern_on_numbers_arrays_and_tensors_agrees(text):
    pattern, mask = parse(text), by_definition(text, 11)
    places = torch.arange(11)
    on_tensors = pattern.allows(Tokens(places[:, None], 0, 11), Tokens(places[None, :], 0, 11))
    assert on_tensors.dtype == torch.bool
    assert on_tensors.tolist() == mask.tolist()
    assert [[bool(pattern.allows(Tokens(q), Tokens(k))) for k in range(11)] for q in range(11)] == mask.tolist()


@EVERY
def test_pattern_interval_where_there_is_one_holds_exactly_the_allowed_keys(text):
    pattern, mask = parse(text), by_definition(text)
    ends = pattern.interval(np.arange(LENGTH), LENGTH)
    if ends is None:
        assert "|" in text, "only a union may have gaps"
        return
    keys = np.arange(LENGTH)[None, :]
    assert np.array_equal((ends[0][:, None] <= keys) & (keys <= ends[1][:, None]), mask)


@EVERY
@pytest.mark.parametrize("length", [1, 4, LENGTH])
def test_allowed_pairs_equal_those_enumerated_and_those_of_the_definition(text, length):
    pattern, count = parse(text), int(by_definition(text, length).sum())
    assert allowed_pairs(pattern, length) == count
    assert enumerate_pairs(pattern, length) == count


def test_enumerate_pairs_longer_than_one_piece_counts_every_row():
    pattern = parse("causal & chunked(600) | window(3)")
    assert enumerate_pairs(pattern, 2100) == allowed_pairs(pattern, 2100)
    assert allowed_pairs(parse("causal"), 2100) == enumerate_pairs(parse("causal"), 2100) == 2100 * 2101 // 2


@EVERY
def test_pattern_horizon_is_the_farthest_key_that_any_query_sees(text):
    pattern, farthest = parse(text), {}
    for length in (LENGTH, 2 * LENGTH):
        queries, keys = by_definition(text, length).nonzero()
        farthest[length] = int((queries - keys).max()) + 1
    horizon = pattern.horizon()
    if horizon is None:
        assert farthest == {n: n for n in farthest}, "no horizon means that the first token is seen for ever"
    else:
        assert farthest == {n: min(n, horizon) for n in farthest}


@EVERY
def test_pattern_is_called_causal_exactly_if_it_allows_no_later_key(text):
    assert parse(text).causal == (not np.triu(by_definition(text), 1).any())


@EVERY
def test_pattern_is_called_shift_invariant_exactly_if_only_the_distance_matters(text):
    # Far enough to see the end of the longest chunk.
    long = by_definition(text, 3 * LENGTH)
    moved = all(np.array_equal(long[:LENGTH, :LENGTH], long[s : s + LENGTH, s : s + LENGTH]) for s in range(2 * LENGTH))
    assert parse(text).shift_invariant == moved


@EVERY
def test_pattern_written_and_parsed_again_is_equal(text):
    pattern = parse(text)
    assert parse(str(pattern)) == pattern
    assert hash(parse(str(pattern))) == hash(pattern)


@pytest.mark.parametrize(
    ("first", "second", "third"),
    list(itertools.product(["causal", "window(3)", "chunked(size=4)"], ["full", "symmetric_window(2)"], ["window(9)"])),
)
def test_pattern_of_any_grouping_survives_the_round_trip(first, second, third):
    a, b, c = parse(first), parse(second), parse(third)
    for pattern in (a & b | c, a & (b | c), a | b & c, (a | b) & c, a & (b & c), a & b & c, a | (b | c), a | b | c):
        assert parse(str(pattern)) == pattern


def test_documents_pattern_sees_its_own_document_only():
    ids, places = np.array([3, 3, 3, 5, 5, 8]), np.array([0, 1, 2, 0, 1, 0])
    pattern = parse("causal & documents")
    found = pattern.allows(Tokens(places[:, None], ids[:, None]), Tokens(places[None], ids[None]))
    wanted = [[ids[q] == ids[k] and places[k] <= places[q] for k in range(6)] for q in range(6)]
    assert found.tolist() == wanted


@pytest.mark.parametrize(
    ("pattern", "field"),
    [(Window(size=0), "size"), (Chunked(size=0), "size"), (SymmetricWindow(radius=-1), "radius")],
)
def test_pattern_of_an_impossible_size_is_named_also_inside_a_pair(pattern, field):
    (where, message), *more = pattern.problems()
    assert where == field
    assert not more
    # Inside a pair the field alone would not say whose it is, so the message has to.
    (_, inside), *more = (parse("causal") & (parse("full") | pattern)).problems()
    assert message in inside
    assert not more
