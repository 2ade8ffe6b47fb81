"""Patterns against dense masks written from their definitions, and everything that is derived from the predicate."""

import itertools

import numpy as np
import pytest
import torch

from anyformer.specs.pair_count import allowed_pairs
from anyformer.specs.patterns import Tokens
from tests.parts.pattern_samples import HEADS, enumerate_pairs, mask, one_of_each, parse, samples, tokens

LENGTH = 37
"""Past every window and chunk below, and a multiple of none."""


def steps(gap: int, size: int, step: int) -> bool:
    return gap in range(0, size * step, step)


# Who sees whom, as the papers say it: of query q and key k, and where it matters of the head h and the last token n.
DEFINITIONS = {
    "causal": lambda q, k: k <= q,
    "full": lambda q, k: True,
    "documents": lambda q, k: True,
    "window(1)": lambda q, k: k == q,
    "window(5)": lambda q, k: q - 5 < k <= q,
    "window(100)": lambda q, k: q - 100 < k <= q,
    "symmetric_window(0)": lambda q, k: q == k,
    "symmetric_window(3)": lambda q, k: abs(q - k) <= 3,
    "symmetric_window(100)": lambda q, k: abs(q - k) <= 100,
    "chunked(8)": lambda q, k: q // 8 == k // 8,
    "chunked(1)": lambda q, k: q == k,
    "chunked(100)": lambda q, k: q // 100 == k // 100,
    "chunked(5, 1)": lambda q, k: k // 5 in (q // 5 - 1, q // 5),
    "chunked(4, 2, 1)": lambda q, k: k // 4 in range(q // 4 - 2, q // 4 + 2),
    "chunked(1, 2)": lambda q, k: k in range(q - 2, q + 1),
    "chunked(6, after=1)": lambda q, k: k // 6 in (q // 6, q // 6 + 1),
    "dilated_window(4, 3)": lambda q, k: k in (q, q - 3, q - 6, q - 9),
    "dilated_window(5, 1)": lambda q, k: q - 5 < k <= q,
    "dilated_window(1, 7)": lambda q, k: q == k,
    "symmetric_dilated(2, 3)": lambda q, k: k in (q - 6, q - 3, q, q + 3, q + 6),
    "symmetric_dilated(4, 1)": lambda q, k: abs(q - k) <= 4,
    "symmetric_dilated(0, 2)": lambda q, k: q == k,
    "band(3, 2)": lambda q, k: q - 3 <= k <= q + 2,
    "band(4, 0)": lambda q, k: q - 4 <= k <= q,
    "band(0, 4)": lambda q, k: q <= k <= q + 4,
    "strided(4)": lambda q, k: (q - k) % 4 == 0,
    "strided(1)": lambda q, k: True,
    "fixed(8, 2)": lambda q, k: q // 8 == k // 8 or k % 8 in (6, 7),
    "fixed(3, 3)": lambda q, k: True,
    "axial(6)": lambda q, k: q // 6 == k // 6 or q % 6 == k % 6,
    "axial(6, 'row')": lambda q, k: q // 6 == k // 6,
    "axial(6, 'column')": lambda q, k: q % 6 == k % 6,
    "axial(1)": lambda q, k: True,
    "axial(1, 'row')": lambda q, k: q == k,
    "prefix(5)": lambda q, k: max(q, k) < 5,
    "prefix(1)": lambda q, k: q == k == 0,
    "prefix(100)": lambda q, k: max(q, k) < 100,
    "global_tokens(2)": lambda q, k: min(q, k) < 2,
    "global_tokens(3, False)": lambda q, k: min(q, k) < 3,
    "edge_blocks(4)": lambda q, k, h, n: min(q, k) < 4 or max(q, k) // 4 == n // 4,
    "edge_blocks(4, 2, 0)": lambda q, k: min(q, k) < 8,
    "edge_blocks(5, 0, 2)": lambda q, k, h, n: max(q, k) // 5 >= n // 5 - 1,
    # Phi-3-small: local blocks and vertical stripes, shifted from head to head.
    "block_sparse(4, 2, 3, 1)": lambda q, k, h: k <= q and (q // 4 - k // 4 < 2 or (k // 4 + h + 1) % 3 == 0),
    "block_sparse(3, 1, 5, 2)": lambda q, k, h: k <= q and (q // 3 == k // 3 or (k // 3 + 2 * h + 1) % 5 == 0),
    "block_sparse(4, 2, 3, 0)": lambda q, k: k <= q and (q // 4 - k // 4 < 2 or (k // 4 + 1) % 3 == 0),
    "block_sparse(4, 2, 1, 0)": lambda q, k: k <= q,
    "heads(1, 3)": lambda q, k, h: h in (1, 2),
    "heads(0, 2) & dilated_window(3, 2) | heads(2, 4) & window(4)": (
        lambda q, k, h: steps(q - k, 3, 2) if h < 2 else steps(q - k, 4, 1)
    ),
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
    # Sparse Transformer, both of its patterns; Longformer; a prefix-LM; the band and the edges of BigBird.
    "window(4) | causal & strided(4)": lambda q, k: k <= q and (q - k < 4 or (q - k) % 4 == 0),
    "causal & fixed(8, 2)": lambda q, k: k <= q and (q // 8 == k // 8 or k % 8 >= 6),
    "symmetric_window(2) | global_tokens(1)": lambda q, k: abs(q - k) <= 2 or min(q, k) == 0,
    "causal | prefix(6)": lambda q, k: k <= q or max(q, k) < 6,
    "chunked(4, 1, 1) | edge_blocks(4)": (
        lambda q, k, h, n: abs(q // 4 - k // 4) <= 1 or min(q, k) < 4 or max(q, k) // 4 == n // 4
    ),
}
"""Of kinds that are drawn, test_random_patterns.py says what is asked; bigbird_eval's is in tests/kernels/test_repeats.py."""
EVERY = pytest.mark.parametrize("text", DEFINITIONS)
LEAF = pytest.mark.parametrize("text", [text for text in DEFINITIONS if " & " not in text and " | " not in text])


def by_definition(text: str, length: int = LENGTH, head: int = 0) -> np.ndarray:
    says = DEFINITIONS[text]
    more = (head, length - 1)[: says.__code__.co_argcount - 2]
    allowed = [[bool(says(q, k, *more)) for k in range(length)] for q in range(length)]
    return np.array(allowed)


def of_heads(text: str, length: int = LENGTH) -> np.ndarray:
    return np.stack([by_definition(text, length, head) for head in range(HEADS)])


@EVERY
def test_pattern_equals_the_mask_of_its_definition(text):
    for head in range(HEADS):
        assert np.array_equal(mask(parse(text), LENGTH, head), by_definition(text, LENGTH, head))


@EVERY
def test_pattern_on_tensors_of_heads_and_documents_agrees(text):
    """Rows of documents of different lengths, all heads at once, as kernels ask."""
    lengths = (11, LENGTH)
    pos, length = torch.arange(LENGTH)[None].expand(2, -1), torch.tensor(lengths)[:, None].expand(2, LENGTH)
    head = torch.arange(HEADS)[:, None, None]
    q = tokens(pos[:, None, :, None], length[:, None, :, None], head)
    k = tokens(pos[:, None, None, :], length[:, None, None, :], head)
    found = parse(text).allows(q, k)
    assert found.dtype == torch.bool
    assert found.dim() == 4
    for row, n in enumerate(lengths):
        one = found[min(row, len(found) - 1)].expand(HEADS, -1, -1)[:, :n, :n]
        assert np.array_equal(one.numpy(), of_heads(text, n))


@pytest.mark.parametrize("pattern", samples(), ids=str)
def test_pattern_on_numbers_arrays_and_tensors_agrees(pattern):
    pos = torch.arange(17)
    for head in (0, HEADS - 1):
        dense = mask(pattern, 17, head)
        on_tensors = pattern.allows(tokens(pos[:, None], 17, head), tokens(pos[None, :], 17, head))
        assert on_tensors.dtype == torch.bool
        assert on_tensors.tolist() == dense.tolist()
        some = [(q, k) for q in (0, 3, 8, 16) for k in range(17)]
        one_by_one = [pattern.allows(tokens(q, 17, head), tokens(k, 17, head)) for q, k in some]
        assert {type(found) for found in one_by_one} == {bool}
        assert one_by_one == [dense[q, k] for q, k in some]


@pytest.mark.parametrize("pattern", [p for p in samples() if p.per_head or p.needs_length], ids=str)
def test_pattern_on_short_integers_agrees(pattern):
    """Some kernels count in 32 bits: draws must not depend on it."""
    pos = torch.arange(17, dtype=torch.int32)
    found = pattern.allows(tokens(pos[:, None], 17, 1), tokens(pos[None, :], 17, 1))
    assert found.tolist() == mask(pattern, 17, 1).tolist()


@EVERY
def test_pattern_interval_where_there_is_one_holds_exactly_the_allowed_keys(text):
    pattern = parse(text)
    ends = pattern.interval(np.arange(LENGTH), LENGTH)
    if ends is None:
        gaps = any((np.diff(np.flatnonzero(row)) > 1).any() for row in of_heads(text).reshape(-1, LENGTH))
        assert gaps or pattern.per_head or "|" in text, "keys without gaps have an interval"
        return
    keys = np.arange(LENGTH)[None, :]
    assert np.array_equal((ends[0][:, None] <= keys) & (keys <= ends[1][:, None]), by_definition(text))


@EVERY
@pytest.mark.parametrize("length", [1, 4, LENGTH])
def test_allowed_pairs_equal_those_enumerated_and_those_of_the_definition(text, length):
    pattern = parse(text)
    for head in range(HEADS if pattern.per_head else 1):
        count = int(by_definition(text, length, head).sum())
        assert allowed_pairs(pattern, length, head) == count
        assert enumerate_pairs(pattern, length, head) == count


def test_enumerate_pairs_longer_than_one_piece_counts_every_row():
    pattern = parse("causal & chunked(600) | window(3)")
    assert enumerate_pairs(pattern, 2100) == allowed_pairs(pattern, 2100)
    assert allowed_pairs(parse("causal"), 2100) == enumerate_pairs(parse("causal"), 2100) == 2100 * 2101 // 2


@EVERY
def test_pattern_horizon_is_the_farthest_key_that_any_query_sees(text):
    farthest = {}
    for length in (LENGTH, 2 * LENGTH):
        _, queries, keys = of_heads(text, length).nonzero()
        farthest[length] = int((queries - keys).max()) + 1
    horizon = parse(text).horizon()
    if horizon is None:
        assert farthest[2 * LENGTH] > LENGTH, "no horizon means that early tokens are seen for ever"
    else:
        assert farthest == {n: min(n, horizon) for n in farthest}


@EVERY
def test_pattern_ahead_is_the_farthest_later_key_that_any_query_sees(text):
    farthest = {}
    for length in (LENGTH, 2 * LENGTH):
        _, queries, keys = of_heads(text, length).nonzero()
        farthest[length] = max(0, int((keys - queries).max()))
    ahead = parse(text).ahead()
    if ahead is None:
        assert farthest[2 * LENGTH] > LENGTH
    else:
        assert farthest == {n: min(n - 1, ahead) for n in farthest}


@EVERY
def test_pattern_is_called_causal_exactly_if_it_allows_no_later_key(text):
    assert parse(text).causal == (not np.triu(of_heads(text), 1).any())


@EVERY
def test_pattern_is_called_shift_invariant_exactly_if_only_the_distance_matters(text):
    # Far enough to see the end of the longest chunk.
    moved = True
    for head in range(HEADS):
        long = by_definition(text, 3 * LENGTH, head)
        parts = [long[s : s + LENGTH, s : s + LENGTH] for s in range(0, 2 * LENGTH, 1 if head == 0 else 7)]
        moved &= all(np.array_equal(parts[0], part) for part in parts)
    assert parse(text).shift_invariant == moved


@LEAF
def test_pattern_reads_heads_and_length_exactly_if_it_says_so(text):
    pattern = parse(text)
    assert pattern.per_head == any(not np.array_equal(of_heads(text)[0], one) for one in of_heads(text))
    short, long = of_heads(text, 21), of_heads(text, LENGTH)[:, :21, :21]
    assert pattern.needs_length == (not np.array_equal(short, long))
    assert not pattern.per_layer


def test_global_tokens_see_and_are_seen_where_they_are_marked():
    marked = np.isin(np.arange(9), (2, 7))
    pos = np.arange(9)
    q, k = tokens(pos[:, None], 9, marked=marked[:, None]), tokens(pos[None, :], 9, marked=marked[None, :])
    wanted = marked[:, None] | marked[None, :]
    assert np.array_equal(parse("global_tokens").allows(q, k), wanted)
    first = (pos < 1)[:, None] | (pos < 1)[None, :]
    assert np.array_equal(parse("global_tokens(1)").allows(q, k), wanted | first)
    assert np.array_equal(parse("global_tokens(1, False)").allows(q, k), first)
    flags = {text: parse(text).reads_marks for text in ("global_tokens", "global_tokens(1)", "global_tokens(1, False)")}
    assert flags == {"global_tokens": True, "global_tokens(1)": True, "global_tokens(1, False)": False}


@pytest.mark.parametrize("pattern", samples(), ids=str)
def test_pattern_says_what_it_computes_in_its_own_numbers(pattern):
    assert pattern.equation()
    assert "{" not in pattern.equation().replace("{0, ", "")


@pytest.mark.parametrize("text", [*DEFINITIONS, *map(str, samples())])
def test_pattern_written_and_parsed_again_is_equal(text):
    pattern = parse(text)
    assert parse(str(pattern)) == pattern
    assert hash(parse(str(pattern))) == hash(pattern)


@pytest.mark.parametrize(
    ("written", "short"),
    [
        ("chunked(8, 0, 0)", "chunked(8)"),
        ("chunked(8, 0, 2)", "chunked(8, after=2)"),
        ("chunked(after=2, before=1, size=8)", "chunked(8, 1, 2)"),
        ("global_tokens(0)", "global_tokens"),
        ("global_tokens()", "global_tokens"),
        ("global_tokens(3, marks=False)", "global_tokens(3, False)"),
        ("random_blocks(8, 2, 0, True)", "random_blocks(8, 2, past=True)"),
        ("random_blocks(8, 2, 7, False)", "random_blocks(8, 2, 7)"),
        ("axial(8, 'both')", "axial(8)"),
        ("axial(8, along='row')", "axial(8, 'row')"),
    ],
)
def test_pattern_is_written_without_what_has_its_default(written, short):
    assert str(parse(written)) == short


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


WRONG = [
    ("window(0)", "size"), ("chunked(0)", "size"), ("chunked(4, -1)", "before"), ("chunked(4, 0, -1)", "after"),
    ("symmetric_window(-1)", "radius"), ("symmetric_dilated(-1, 2)", "radius"), ("symmetric_dilated(2, 0)", "dilation"),
    ("dilated_window(0, 2)", "size"), ("dilated_window(2, 0)", "dilation"), ("band(-1, 0)", "before"),
    ("band(0, -1)", "after"), ("strided(0)", "stride"), ("fixed(0, 1)", "block"), ("fixed(4, 0)", "columns"),
    ("fixed(4, 5)", "columns"), ("axial(0)", "columns"), ("prefix(0)", "length"), ("global_tokens(-1)", "first"),
    ("global_tokens(0, False)", "first"), ("heads(-1, 2)", "first"), ("heads(2, 2)", "last"), ("edge_blocks(0)", "block"),
    ("edge_blocks(4, -1)", "first"), ("edge_blocks(4, 1, -1)", "last"), ("edge_blocks(4, 0, 0)", "first"),
    ("block_sparse(0, 1, 2, 1)", "block"), ("block_sparse(4, 0, 2, 1)", "local"), ("block_sparse(4, 1, 0, 1)", "stride"),
    ("block_sparse(4, 1, 2, -1)", "shift"), ("block_sparse(4, 1, 2, 4)", "shift"), ("random_blocks(0, 1)", "block"),
    ("random_blocks(4, 0)", "count"), ("random_blocks(4, 1, -1)", "seed"), ("random_tokens(0)", "count"),
    ("random_tokens(1, 2147483648)", "seed"), ("bigbird_random(0, 1, 2, 64)", "block"),
    ("bigbird_random(4, 0, 2, 64)", "count"), ("bigbird_random(4, 1, 0, 64)", "heads"),
    ("bigbird_random(4, 1, 2, 0)", "most"), ("bigbird_eval(0, 1)", "block"), ("bigbird_eval(4, -1)", "count"),
]  # fmt: skip
MISFITS = [
    ("dilated_window(2, 32)", "dilation"), ("symmetric_dilated(1, 40)", "dilation"), ("strided(32)", "stride"),
    ("global_tokens(33)", "first"), ("heads(2, 5)", "last"), ("bigbird_random(4, 1, 2, 64)", "heads"),
    ("bigbird_random(4, 1, 4, 31)", "most"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "field"), WRONG)
def test_pattern_of_an_impossible_size_is_named_also_inside_a_pair(text, field):
    pattern = parse(text)
    (where, message), *more = pattern.problems()
    assert where == field
    assert not more
    # Inside a pair the field alone would not say whose it is, so the message has to.
    (_, inside), *more = (parse("causal") & (parse("full") | pattern)).problems()
    assert message in inside
    assert not more


@pytest.mark.parametrize(("text", "field"), MISFITS)
def test_pattern_that_does_not_fit_its_layer_is_named(text, field):
    pattern = parse(text)
    assert not [*pattern.problems()]
    ((where, message),) = pattern.check(HEADS, 32)
    assert where == field
    ((_, inside),) = (parse("causal") & pattern).check(HEADS, 32)
    assert message in inside


@pytest.mark.parametrize("pattern", one_of_each(), ids=str)
def test_pattern_of_every_kind_is_right_as_it_is_drawn(pattern):
    assert not [*pattern.problems()]
    assert not [*pattern.shrunk(3.0).problems()]
    assert type(pattern.shrunk(3.0)) is type(pattern)
