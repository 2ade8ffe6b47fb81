"""What a cache keeps: every token that must stay is in its slot, and no two of them share one."""

import random
from dataclasses import replace

import numpy as np
import pytest

from anyformer.errors import InputError
from anyformer.specs.cache_policy import CachePolicy, LayerCacheSpec
from anyformer.specs.stacks import cache_specs
from tests.specs.small import small


def drawn(seed: int) -> tuple[CachePolicy, int]:
    """Any policy that forgets, and a length."""
    draw = random.Random(seed)
    block = draw.choice([0, 0, 1, 2, 3, 5, 8])
    return CachePolicy(
        recent=draw.randint(1, 9), first=draw.choice([0, 0, 1, 2, 5]), block=block, columns=draw.randint(0, block)
    ), draw.randint(1, 60)


def stays(keep: CachePolicy, number: int, count: int) -> bool:
    """By the definition: one of the first, of the newest, or of the last columns of its block."""
    newest = keep.recent is None or number >= count - keep.recent
    column = keep.columns > 0 and number % keep.block in range(keep.block - keep.columns, keep.block)
    return number < keep.first or newest or column


@pytest.mark.parametrize("seed", range(60))
def test_keep_fed_token_by_token_holds_what_must_stay_where_it_says(seed):
    keep, length = drawn(seed)
    keep, slots = keep.within(length), dict[int, int]()
    for count in range(1, length + 1):
        slots[keep.slot(count - 1)] = count - 1
        assert max(slots) < keep.room(length)
        assert max(slots) < keep.filled(count)
        needed = {number for number in range(count) if stays(keep, number, count)}
        assert needed <= set(slots.values())
        said = {slot: keep.held(slot, count) for slot in range(keep.filled(count))}
        assert needed <= set(said.values())
        # What it says that a slot holds is there; what it does not name, nobody needs.
        assert all(slots[slot] == number for slot, number in said.items() if number >= 0)


@pytest.mark.parametrize("seed", range(20))
def test_keep_of_arrays_is_that_of_each_number(seed):
    keep, length = drawn(seed)
    numbers, counts = np.arange(length), np.arange(1, length + 1)
    assert keep.slot(numbers).tolist() == [keep.slot(n) for n in range(length)]
    held = keep.held(numbers[:, None], counts[None])
    assert held.tolist() == [[keep.held(s, c) for c in range(1, length + 1)] for s in range(length)]


@pytest.mark.parametrize("seed", range(20))
@pytest.mark.parametrize("chunk", [1, 2, 7])
def test_keep_with_room_for_a_chunk_lets_its_first_token_see_as_far_as_ever(seed, chunk):
    keep, length = drawn(seed)
    fed, slots = keep.fed(chunk), {}
    for start in range(0, length, chunk):
        end = min(start + chunk, length)
        slots |= {fed.slot(number): number for number in range(start, end)}
        needed = {n for query in range(start, end) for n in range(query + 1) if stays(keep, n, query + 1)}
        assert needed <= set(slots.values())


def test_keep_everything_has_a_slot_for_each_token():
    assert CachePolicy().room(50) == 50
    assert CachePolicy().filled(7) == 7
    assert [CachePolicy().slot(n) for n in (0, 7)] == [0, 7]
    assert [CachePolicy().held(s, 5) for s in (0, 4, 5)] == [0, 4, -1]


def test_keep_room_is_that_of_its_parts_and_never_more_than_the_row():
    assert CachePolicy(recent=4).room(100) == 4
    assert CachePolicy(recent=4, first=3).room(100) == 7
    assert CachePolicy(recent=8, block=8, columns=2).room(100) == 8 + 12 * 2
    assert CachePolicy(recent=8, block=8, columns=2).room(103) == 8 + 12 * 2 + 1, "the last block is not whole"
    assert CachePolicy(recent=200, first=3).room(100) == 100
    assert CachePolicy(recent=100).within(100) == CachePolicy()
    assert CachePolicy(recent=99).within(100) == CachePolicy(recent=99)
    assert CachePolicy(recent=4).fed(3).room(100) == 6


@pytest.mark.parametrize("seed", range(40))
def test_keep_joined_holds_what_either_needs_and_met_what_both_see(seed):
    first, second = drawn(seed)[0], drawn(1000 + seed)[0]
    both, common = first.join(second), first.meet(second)
    for count in (1, 17, 40):
        of = {keep: {n for n in range(count) if stays(keep, n, count)} for keep in (first, second, both, common)}
        assert of[first] | of[second] <= of[both]
        assert of[first] & of[second] <= of[common]


def test_keep_joined_forgets_nothing_only_if_it_must():
    grid = CachePolicy(recent=4, block=8, columns=2)
    assert CachePolicy(recent=3, first=2).join(CachePolicy(recent=5)) == CachePolicy(recent=5, first=2)
    assert grid.join(CachePolicy(recent=9, first=1)) == replace(grid, recent=9, first=1)
    assert grid.join(CachePolicy(recent=1, block=8, columns=3)) == replace(grid, columns=3)
    assert grid.join(CachePolicy(recent=1, block=6, columns=3)) == CachePolicy()
    assert CachePolicy().join(grid) == CachePolicy()
    assert CachePolicy().meet(grid) == grid.meet(CachePolicy()) == grid
    assert grid.meet(CachePolicy(recent=100)) == CachePolicy(recent=100), "a grid grows with the row"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"recent": 0}, "recent must be at least 1 .a token sees itself., got 0"),
        ({"recent": -3}, "recent must be at least 1 .a token sees itself., got -3"),
        ({"first": -1}, "first must be at least 0, got -1"),
        ({"columns": -1, "block": 4}, "columns must be between 0 and block=4, got -1"),
        ({"columns": 5, "block": 4}, "columns must be between 0 and block=4, got 5"),
        ({"first": -1, "columns": 1}, "first must be at least 0, got -1; columns must be between 0 and block=0, got 1"),
    ],
)
def test_keep_of_nonsense_is_refused(fields, message):
    with pytest.raises(InputError, match=f"what a cache keeps: {message}"):
        CachePolicy(**fields)


def test_rooms_follow_the_pattern_and_the_heads_of_each_layer():
    spec = small({"depth": 2, "layers": {"0": {"attention": {"pattern": "window(8)", "kv_heads": 1}}}})
    near, far = cache_specs(spec, spec.stack("decoder"))
    assert near == LayerCacheSpec(streams=((1, 4), (1, 4)), keep=CachePolicy(recent=8))
    assert far == LayerCacheSpec(streams=((2, 4), (2, 4)))
    assert (near.per_token, far.per_token) == (8, 16)
    assert (near.tokens(20, 1), near.tokens(20, 4), near.tokens(5, 1), far.tokens(20, 4)) == (8, 11, 5, 20)


def test_room_of_a_state_counts_its_numbers():
    assert LayerCacheSpec(state=((4, 8, 8), (4, 8))).per_row == 4 * 8 * 8 + 4 * 8
    assert LayerCacheSpec(state=((4, 8, 8), (4, 8))).per_token == 0
