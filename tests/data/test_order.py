"""The order of rows: every row once an epoch, and any visit without those before it."""

import numpy as np
import pytest

from anyformer.data.loader import Order
from anyformer.errors import DataError


def test_order_of_an_epoch_visits_every_row_once():
    visits = Order(7, seed=3).visits(0, 21)
    for epoch in range(3):
        some = visits[7 * epoch : 7 * epoch + 7]
        assert sorted(visit.row for visit in some) == list(range(7))
        assert {visit.epoch for visit in some} == {epoch}
        assert {visit.offset for visit in some} == {0}
    assert [v.row for v in visits[:7]] != [v.row for v in visits[7:14]]


def test_order_of_any_visits_is_the_same_without_those_before():
    whole = Order(5, seed=1, offsets=9).visits(0, 40)
    asked = Order(5, seed=1, offsets=9)
    for first in (33, 2, 17, 0):
        assert asked.visits(first, 6) == whole[first : first + 6]
    assert len({visit.offset for visit in whole}) > 1


def test_order_of_a_stream_is_the_documented_draw():
    draw = np.random.default_rng((4, 2))
    offset, rows = int(draw.integers(9)), draw.permutation(5)
    visits = Order(5, seed=4, offsets=9).visits(10, 5)
    assert [(v.epoch, v.row, v.offset) for v in visits] == [(2, int(row), offset) for row in rows]


def test_order_of_another_seed_is_another():
    assert Order(50, seed=0).visits(0, 50) != Order(50, seed=1).visits(0, 50)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Order(0, seed=0), "no row to visit"),
        (lambda: Order(3, seed=-1), "seed: -1 is below 0"),
        (lambda: Order(3, seed=0).visits(-1, 2), "no step before the first"),
    ],
    ids=["rows", "seed", "step"],
)
def test_order_of_nothing_is_refused(call, message):
    with pytest.raises(DataError, match=message):
        call()
