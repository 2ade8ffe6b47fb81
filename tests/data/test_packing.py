"""Packings: every item once, no row over its length, and the waste that is said."""

import gzip
import re
import time
from pathlib import Path

import numpy as np
import pytest

from anyformer.data.dataset import cut
from anyformer.data.packing import Packing, draw, save_figure
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import DataError

WIKITEXT = Path(__file__).parents[2].parent / "shared" / "data" / "text" / "wikitext-2.valid.txt.gz"


def lengths_of(name, draw):
    return {
        "uniform": lambda: draw.integers(1, 65, 500),
        "short": lambda: np.minimum(draw.geometric(0.2, 700), 64),
        "all alike": lambda: np.full(100, 10),
        "all full": lambda: np.full(20, 64),
        "one": lambda: np.array([3]),
        "none": lambda: np.zeros(0, np.int64),
    }[name]()


@pytest.mark.parametrize("kind", Packing.kinds())
@pytest.mark.parametrize("name", ["uniform", "short", "all alike", "all full", "one", "none"])
def test_packing_of_any_lengths_holds_each_item_once_within_its_rows(kind, name):
    lengths = lengths_of(name, np.random.default_rng(3))
    packed = Packing.named(kind)().pack(lengths, 64)
    assert sorted(packed.items_P.tolist()) == list(range(len(lengths)))
    used = [int(lengths[packed.row(row)].sum()) for row in range(len(packed))]
    assert all(0 < cells <= 64 for cells in used)
    counted = 1 - sum(used) / (64 * len(packed)) if len(packed) else 0.0
    assert packed.waste == pytest.approx(counted, abs=1e-12)
    again = Packing.named(kind)().pack(lengths, 64)
    assert np.array_equal(again.items_P, packed.items_P)
    assert np.array_equal(again.starts, packed.starts)


@pytest.mark.parametrize("kind", Packing.kinds())
def test_packing_keeps_the_order_of_the_items_of_a_row(kind):
    packed = Packing.named(kind)().pack(np.random.default_rng(0).integers(1, 20, 200), 64)
    assert all((np.diff(packed.row(row)) > 0).all() for row in range(len(packed)))


def test_packing_by_known_lengths_gives_the_rows_of_the_textbook():
    def rows(kind):
        packed = Packing.named(kind)().pack([3, 6, 5], 10)
        return sorted(packed.row(row).tolist() for row in range(len(packed)))

    assert rows("greedy") == [[0, 1], [2]]
    # Both begin with 6 and 5. Then 3 goes where it fits best, or where most is free.
    assert rows("best_fit") == [[0, 1], [2]]
    assert rows("spfhp") == [[0, 2], [1]]


def test_packing_of_equal_lengths_fills_each_row_before_the_next():
    for kind in Packing.kinds():
        assert len(Packing.named(kind)().pack(np.full(100, 10), 64)) == 17


@pytest.mark.parametrize("wrong", [0, 65])
def test_packing_of_an_impossible_length_names_the_item(wrong):
    with pytest.raises(DataError, match=f"item 1 has {wrong} cells, and a row holds 1 to 64"):
        Packing.named("greedy")().pack([3, wrong], 64)


def test_packing_of_a_million_documents_takes_seconds():
    lengths = np.minimum(np.random.default_rng(0).geometric(1 / 300, 1_000_000), 1024)
    begun = time.process_time()
    packed = Packing.named("spfhp")().pack(lengths, 1024)
    assert time.process_time() - begun < 5
    assert packed.waste < 0.001


def test_cut_of_documents_keeps_every_token_once():
    example, start, stop = cut([5, 0, 8, 9], 4)
    assert list(zip(example.tolist(), start.tolist(), stop.tolist(), strict=True)) == [
        (0, 0, 4), (0, 4, 5), (2, 0, 4), (2, 4, 8), (3, 0, 4), (3, 4, 8), (3, 8, 9),
    ]  # fmt: skip


@pytest.mark.skipif(not WIKITEXT.is_file(), reason="WikiText-2 is not beside this repository")
def test_packing_of_wikipedia_articles_wastes_little():
    text = gzip.decompress(WIKITEXT.read_bytes()).decode()
    articles = [a for a in re.split(r"(?m)^(?= = [^=].*[^=] = \n)", text) if a.strip()]
    made = train_bpe(articles, 2048)
    lengths = [len(ids) + 2 for ids in made.encode_many(articles)]
    _, start, stop = cut(lengths, 1024)
    waste = {kind: Packing.named(kind)().pack(stop - start, 1024).waste for kind in Packing.kinds()}
    assert waste["best_fit"] < 0.02
    assert waste["spfhp"] < 0.02 < waste["greedy"]


def test_picture_of_packed_rows_has_a_bar_for_each_piece(tmp_path):
    lengths = np.array([64, 40, 20, 30, 5])
    packed = {kind: Packing.named(kind)().pack(lengths, 64) for kind in Packing.kinds()}
    figure = draw(packed, lengths)
    for axes, each in zip(figure.axes, packed.values(), strict=True):
        # The first piece fills a row, which is not drawn.
        assert sorted(bar.get_width() for bar in axes.patches) == [5, 20, 30, 40]
        assert f"{each.waste:.2%} blank" in axes.get_title()
    save_figure(tmp_path / "rows.png", packed, lengths)
    assert (tmp_path / "rows.png").read_bytes().startswith(b"\x89PNG")
