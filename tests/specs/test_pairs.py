"""Counting pairs without asking about each: by terms, by intervals, by distance, within a horizon."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from anyformer.specs import pair_count as counting
from anyformer.specs.pair_count import allowed_pairs, allowed_pairs_of_heads
from anyformer.specs.patterns import Pattern, Tokens
from tests.parts.pattern_samples import enumerate_pairs
from tests.parts.pattern_samples import parse as read
from tests.specs.small import small


@dataclass(frozen=True, kw_only=True)
class Comb(Pattern):
    """Every `step`-th distance, with no interval of keys."""

    step: int

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (q.pos - k.pos) % self.step == 0


@dataclass(frozen=True, kw_only=True)
class Even(Pattern):
    """Even keys within 9 tokens back: neither shift-invariant nor an interval, but it forgets."""

    causal = True
    shift_invariant = False

    def allows(self, q: Tokens, k: Tokens) -> Any:
        return (k.pos % 2 == 0) & (k.pos <= q.pos) & (q.pos - k.pos < 9)

    def horizon(self) -> int:
        return 9


def pattern(text: str) -> Pattern:
    return small({"topology": "encoder", "attention.pattern": text}).attention.pattern


JOINED = {
    "distance": Comb(step=3),
    "distance, causal": pattern("causal") & Comb(step=3),
    "horizon": Even(),
    "horizon of both": pattern("causal & chunked(5)") & Comb(step=2),
    "or below and": pattern("causal & (chunked(5) | window(3))"),
    "three terms": pattern("causal & (chunked(5) | window(3) | symmetric_window(1))"),
    "or of everything": Even() | Comb(step=4) | pattern("chunked(7)"),
    "or on both sides": (Even() | Comb(step=4)) & (pattern("window(6)") | pattern("causal & chunked(4)")),
    "many terms": pattern(" | ".join(f"window({n})" for n in range(1, 9))),
}


@pytest.mark.parametrize("length", [1, 2, 13, 300])
@pytest.mark.parametrize("name", JOINED)
def test_counted_pairs_equal_the_enumerated_ones(name, length):
    places = np.arange(length)
    one_by_one = JOINED[name].allows(Tokens(places[:, None], 0, length), Tokens(places[None, :], 0, length)).sum()
    assert allowed_pairs(JOINED[name], length) == one_by_one == enumerate_pairs(JOINED[name], length)


MOST = 131072**2 // 20
"""Of the pairs of a long document, so many are asked about at most."""


@pytest.fixture
def asked(monkeypatch):
    """How many pairs a predicate is asked about, call by call."""
    sizes: list[int] = []
    allowed = counting._Place.allowed

    def noted(place, pattern, queries, keys):
        sizes.append(np.broadcast(queries, keys).size)
        return allowed(place, pattern, queries, keys)

    monkeypatch.setattr(counting._Place, "allowed", noted)
    return sizes


# A part of "or of everything" looks ahead without end and knows more than distances: that is enumerated.
@pytest.mark.parametrize("name", [name for name in JOINED if name != "or of everything"])
def test_pairs_of_a_long_document_are_not_asked_one_by_one(asked, name):
    assert allowed_pairs(JOINED[name], 131072) > 131072
    assert sum(asked) < MOST


PUBLISHED = {
    "Longformer": "symmetric_window(256) | global_tokens(16)",
    "Longformer, dilated": "heads(0, 2) & symmetric_dilated(64, 8) | heads(2, 4) & symmetric_window(256)",
    "Sparse Transformer, strided": "window(128) | causal & strided(128)",
    "Sparse Transformer, fixed": "causal & fixed(128, 8)",
    "BigBird": "chunked(64, 1, 1) | edge_blocks(64) | random_blocks(64, 3)",
    "Phi-3-small": "block_sparse(64, 16, 8, 1)",
    "prefix-LM": "causal | prefix(1000)",
    "axial": "causal & axial(256)",
    "random": "window(512) | random_tokens(8, past=True)",
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_pairs_of_published_patterns_in_a_long_document_are_not_asked_one_by_one(asked, name):
    found = read(PUBLISHED[name])
    assert 131072 < allowed_pairs(found, 131072, 1) < 131072**2
    assert sum(asked) < MOST
    # A length at which blocks, rows and strides are cut, and small enough to ask every pair.
    for head in (0, 3):
        assert allowed_pairs(found, 1037, head, 2) == enumerate_pairs(found, 1037, head, 2)


def test_pairs_of_all_heads_are_those_of_each():
    found = read("heads(0, 1) & window(4) | heads(1, 4) & block_sparse(4, 1, 3, 1)")
    each = [enumerate_pairs(found, 50, head) for head in range(4)]
    assert len(set(each)) > 2
    assert allowed_pairs_of_heads(found, 50, 4) == sum(each)
    assert allowed_pairs_of_heads(pattern("window(3)"), 50, 4) == 4 * allowed_pairs(pattern("window(3)"), 50)


def test_pairs_beyond_the_work_that_is_allowed_are_estimated_closely(monkeypatch):
    found = read("strided(3) & random_blocks(7, 9)")
    exact = enumerate_pairs(found, 640)
    assert allowed_pairs(found, 640) == exact
    counting._allowed.cache_clear()
    counting._term_pairs.cache_clear()
    monkeypatch.setattr(counting, "WORK", 640 * 200)
    try:
        estimate = allowed_pairs(found, 640)
    finally:
        counting._allowed.cache_clear()
        counting._term_pairs.cache_clear()
    assert estimate != exact
    assert abs(estimate - exact) < 0.05 * exact
