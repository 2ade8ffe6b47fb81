"""Counting pairs without asking about each: by terms, by intervals, by distance, within a horizon."""

import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from anyformer.specs.pairs import allowed_pairs, enumerate_pairs
from anyformer.specs.patterns import Pattern, Tokens
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


# A part of "or of everything" looks ahead without end and knows more than distances: that is enumerated.
@pytest.mark.parametrize("name", [name for name in JOINED if name != "or of everything"])
def test_pairs_of_a_long_document_are_counted_at_once(name):
    start = time.perf_counter()
    assert allowed_pairs(JOINED[name], 131072) > 131072
    assert time.perf_counter() - start < 2
