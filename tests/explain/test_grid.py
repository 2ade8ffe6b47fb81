"""Patterns as pictures: the grid is the predicate, and its count is the count of pairs."""

import numpy as np
import pytest

from anyformer.explain.grid import TOKENS, draw_grid, grid, picture
from anyformer.specs.pairs import allowed_pairs
from anyformer.specs.patterns import Pattern
from tests.contract.draw import draw
from tests.specs.small import small


def pattern(text: str) -> Pattern:
    return small({"topology": "encoder", "attention.pattern": text}).attention.pattern


def test_grid_of_a_window_is_a_band():
    assert grid(pattern("window(2)"), 4).astype(int).tolist() == [
        [1, 0, 0, 0],
        [1, 1, 0, 0],
        [0, 1, 1, 0],
        [0, 0, 1, 1],
    ]


def test_grid_of_two_documents_starts_again_in_the_second():
    expected = np.zeros((5, 5), bool)
    expected[:2, :2], expected[2:, 2:] = np.tril(np.ones((2, 2))), np.tril(np.ones((3, 3)))
    assert (grid(pattern("causal"), documents=(2, 3)) == expected).all()


@pytest.mark.parametrize("seed", range(60))
def test_grid_holds_as_many_pairs_as_are_counted(seed):
    for stack in draw(seed).stacks:
        for layer in stack.layers:
            found = layer.attention.pattern
            if found is not None:
                assert grid(found, 23).sum() == allowed_pairs(found, 23)


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("causal", "causal"),
        ("window(16)", "window(16)"),
        ("window(4096)", "window(8)"),
        ("causal & (chunked(64) | window(16))", "causal & (chunked(8) | window(2))"),
        ("causal & (chunked(8192) | window(2))", "causal & (chunked(8) | window(1))"),
        ("symmetric_window(64)", "symmetric_window(8)"),
        ("symmetric_window(0)", "symmetric_window(0)"),
    ],
)
def test_picture_of_large_sizes_is_scaled_down_and_says_so(text, drawn):
    made = picture(pattern(text))
    assert str(made.drawn) == drawn
    assert (made.cells == grid(made.drawn, TOKENS)).all()
    assert made.caption.startswith(text)
    assert ("drawn as" in made.caption) == (text != drawn)


def test_grid_is_drawn_with_two_queries_in_a_line():
    assert draw_grid(grid(pattern("causal"), 3)) == [
        "\u250c\u2500\u2500\u2500\u2510",
        "\u2502\u2588\u2584 \u2502",
        "\u2502\u2580\u2580\u2580\u2502",
        "\u2514\u2500\u2500\u2500\u2518",
    ]
