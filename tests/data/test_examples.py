"""Examples: ragged columns by number, over pieces as in one."""

import itertools

import numpy as np
import pytest

from anyformer.data.dataset import Examples, Ragged
from anyformer.errors import DataError

LISTS = [[1, 2, 3], [], [4], [5, 6]]


def pieces(*cuts: int) -> Examples:
    """The same lists in several pieces."""
    edges = [0, *cuts, len(LISTS)]
    made = [Ragged.of(LISTS[a:b]) for a, b in itertools.pairwise(edges)]
    return Examples({"tokens": made}, names={}, fingerprint="f")


@pytest.mark.parametrize(
    "examples", [Examples.of({"tokens": LISTS}), pieces(1), pieces(2, 3)], ids=["one", "two", "three"]
)
def test_examples_read_gives_what_was_put_in(examples):
    assert len(examples) == 4
    assert examples.columns == ("tokens",)
    assert examples.lengths("tokens").tolist() == [3, 0, 1, 2]
    assert examples.lengths("tokens").dtype == np.int64
    for i, numbers in enumerate(LISTS):
        assert examples.read("tokens", i).tolist() == numbers
        for start, stop in [(1, None), (0, 2), (1, 2), (-1, None), (5, 9), (0, -1), (2, 1)]:
            assert examples.read("tokens", i, start, stop).tolist() == numbers[start:stop]


def test_examples_of_fractions_are_float32_and_of_numbers_int64():
    examples = Examples.of({"values": [[0.5, 1], []], "target": [[1], [2]]})
    assert (examples.dtype("values"), examples.dtype("target")) == (np.float32, np.int64)


def test_examples_fingerprint_changes_with_anything():
    base = {"tokens": [[1, 2], [3]], "label": [[0], [1]]}
    made = [
        Examples.of(base), Examples.of(base, names={"label": ["a", "b"]}), Examples.of(base | {"label": [[1], [1]]}),
        Examples.of(base | {"tokens": [[1], [2, 3]]}), Examples.of({"tokens": base["tokens"]}),
    ]  # fmt: skip
    assert len({examples.fingerprint for examples in made}) == len(made)
    assert Examples.of(base).fingerprint == made[0].fingerprint


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda e: e.read("tokens", 4), "there is no example 4; there are 4"),
        (lambda e: e.read("tokens", -1), "there is no example -1"),
        (lambda e: e.lengths("token"), "did you mean 'tokens'?"),
        (lambda e: Examples.of({"a": [[1]], "b": [[1], [2]]}), "a 1, b 2"),
        (lambda e: Examples.of({}), "no column"),
    ],
)
def test_examples_asked_for_what_is_not_there_say_so(ask, words):
    with pytest.raises(DataError, match=words.replace("?", r"\?")):
        ask(Examples.of({"tokens": LISTS}))
