"""Patterns as pictures: the grid is the predicate, and its count is the count of pairs."""

import numpy as np
import pytest

from anyformer.explain.drawing import TOKENS, draw_grid, draw_picture, grid, picture
from anyformer.specs.pair_count import allowed_pairs
from anyformer.specs.patterns import Pattern
from tests.contract.draw import draw
from tests.parts.pattern_samples import one_of_each, parse
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


def test_picture_of_heads_that_differ_has_two_panels():
    made = picture(parse("heads(0, 2) & window(3) | heads(2, 4) & causal"), heads=4)
    assert list(made.panels) == ["head 0", "head 2"]
    assert (made.panels["head 0"] == grid(parse("window(3)"))).all()
    assert (made.panels["head 2"] == grid(parse("causal"))).all()
    lines = draw_picture(made)
    assert [line for line in lines if "head" in line] == ["head 0", "head 2"]
    assert len(lines) == 2 * (1 + len(draw_grid(made.cells)))


def test_picture_of_heads_that_are_alike_has_one_panel():
    made = picture(parse("heads(0, 4) & window(3)"), heads=4)
    assert list(made.panels) == [""]
    assert draw_picture(made) == draw_grid(made.cells)


def test_picture_of_marks_shows_some_and_says_which():
    made = picture(parse("symmetric_window(2) | global_tokens"))
    assert made.marked == (0, 20)
    assert made.cells[[0, 20]].all()
    assert made.cells[:, [0, 20]].all()
    assert made.caption == "symmetric_window(2) | global_tokens, tokens 0 and 20 marked"
    assert not picture(parse("window(2) | global_tokens(1, False)")).marked


@pytest.mark.parametrize("text", ["global_tokens({})", "symmetric_window(2) | global_tokens({})"])
@pytest.mark.parametrize("first", [1, 2, 5])
def test_picture_of_first_global_tokens_draws_as_many_as_the_pattern_says(text, first):
    made = picture(parse(text.format(first)))
    whole = made.cells.all(1) & made.cells.all(0)
    assert whole.sum() == first
    assert whole[:first].all()
    assert made.caption == f"{text.format(first)}, no token marked"


def test_picture_of_a_random_pattern_is_that_of_its_layer():
    first, second = (picture(parse("random_blocks(2, 2)"), layer=layer) for layer in (0, 1))
    assert (first.cells != second.cells).any()


@pytest.mark.parametrize("found", one_of_each(), ids=str)
def test_picture_of_every_kind_has_allowed_pairs_and_valid_sizes(found):
    made = picture(found, heads=4)
    # A token of no marked one, and a head that sees nothing, may be blind; the pattern as a whole is not.
    assert any(cells.any() for cells in made.panels.values())
    assert not [*made.drawn.problems()]
    assert len(draw_grid(made.cells)[0]) == TOKENS + 2


@pytest.mark.parametrize(
    ("text", "drawn"),
    [
        ("block_sparse(64, 16, 8, 1)", "block_sparse(2, 4, 2, 1)"),
        ("chunked(64, 1, 1) | edge_blocks(64)", "chunked(2, 1, 1) | edge_blocks(2)"),
        ("bigbird_random(64, 3, 12, 4096)", "bigbird_random(2, 3, 12, 128)"),
        ("random_blocks(64, 3, 5)", "random_blocks(2, 3, 5)"),
        ("window(128) | causal & strided(128)", "window(8) | causal & strided(8)"),
        ("causal & fixed(128, 8)", "causal & fixed(8, 1)"),
        ("dilated_window(512, 4)", "dilated_window(5, 2)"),
        ("symmetric_dilated(256, 4)", "symmetric_dilated(4, 2)"),
        ("axial(64, 'row')", "axial(4, 'row')"),
        ("window(1024) | causal & global_tokens(4, False)", "window(8) | causal & global_tokens(1, False)"),
        ("heads(0, 4) & window(2048)", "heads(0, 4) & window(8)"),
        ("causal | prefix(1000)", "causal | prefix(8)"),
    ],
)
def test_picture_of_a_published_pattern_keeps_its_looks(text, drawn):
    assert str(picture(parse(text)).drawn) == drawn
