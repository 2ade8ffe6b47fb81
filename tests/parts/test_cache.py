"""The cache: room, order, ragged rows."""

import pytest
import torch

from anyformer.errors import InputError
from anyformer.parts.cache import Cache
from tests.parts.samples import random

STREAMS = [((2, 8), (2, 8)), ((1, 4), (1, 6))]


def empty(batch=3, length=10, **rest) -> Cache:
    return Cache(STREAMS, batch=batch, length=length, device=torch.device("cpu"), dtype=torch.float64, **rest)


def plain(cache: Cache, new: int):
    return cache.begin(torch.arange(cache.used, cache.used + new)[None], None, ragged=False)


def fresh(layer: int, new: int, seed: int):
    return [random(3, new, *stream, seed=seed + i) for i, stream in enumerate(STREAMS[layer])]


def test_cache_fed_in_steps_gives_everything_so_far_in_order():
    cache, fed = empty(), [[], []]
    for step, new in enumerate((4, 1, 5)):
        pos, valid = plain(cache, new)
        assert pos.tolist() == [list(range(cache.used + new))]
        assert valid is None
        for layer in (0, 1):
            pieces = fresh(layer, new, seed=10 * step + layer)
            fed[layer].append(pieces)
            *kept, where, real = cache.extend(layer, *pieces)
            assert where is pos
            assert real is None
            wanted = [torch.cat(tensors, 1) for tensors in zip(*fed[layer], strict=True)]
            assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))
        cache.advance(new)
    assert cache.used == 10


def test_cache_extend_before_advance_is_overwritten_by_the_next_step():
    cache = empty()
    cache.extend(0, *fresh(0, 2, seed=1))
    again = fresh(0, 3, seed=2)
    kept = cache.extend(0, *again)
    assert torch.equal(kept[0], again[0])
    assert cache.used == 0


def test_cache_too_many_tokens_are_refused_and_change_nothing():
    cache = empty(length=5)
    plain(cache, 4)
    cache.advance(4)
    with pytest.raises(InputError, match="room for 5 tokens: 4 are used and 2 were given; make it longer"):
        plain(cache, 2)
    assert cache.used == 4
    pos, _ = plain(cache, 1)
    assert pos.shape == (1, 5)


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0), (-1, 3)])
def test_cache_without_room_is_refused(batch, length):
    with pytest.raises(InputError, match=f"got batch={batch}, length={length}"):
        empty(batch, length)


def test_cache_ragged_rows_remember_positions_and_validity():
    cache = empty(batch=2, length=8)
    valid = torch.tensor([[False, True, True], [True, True, True]])
    pos, seen = cache.begin(torch.tensor([[0, 0, 1], [0, 1, 2]]), valid, ragged=True)
    assert pos.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert seen.tolist() == valid.tolist()
    assert cache.seen_B.tolist() == [0, 0], "nothing counts before the step has ended"
    cache.advance(3)
    assert cache.seen_B.tolist() == [2, 3]
    # One more token in each row, none of them padding: a row that was ragged once stays so.
    pos, seen = cache.begin(torch.tensor([[2], [3]]), None, ragged=False)
    assert pos.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert seen.tolist() == [[False, True, True, True], [True] * 4]
    cache.advance(1)
    assert cache.seen_B.tolist() == [3, 4]


def test_cache_rows_that_become_ragged_keep_what_came_before():
    cache = empty(batch=2, length=8)
    plain(cache, 2)
    cache.advance(2)
    assert not cache.ragged
    pos, seen = cache.begin(torch.tensor([[2, 3], [2, 2]]), torch.tensor([[1, 1], [0, 1]]) != 0, ragged=True)
    assert pos.tolist() == [[0, 1, 2, 3], [0, 1, 2, 2]]
    assert seen.tolist() == [[True] * 4, [True, True, False, True]]
    cache.advance(2)
    assert cache.seen_B.tolist() == [4, 3]


def test_cache_bytes_are_those_of_keys_values_and_memory():
    cache = empty()
    assert cache.nbytes == 3 * 10 * (2 * 8 + 2 * 8 + 4 + 6) * 8
    cache.cross[0] = (torch.zeros(3, 5, 2, 8), torch.zeros(3, 5, 2, 8))
    assert cache.nbytes == 3 * 10 * 42 * 8 + 2 * 3 * 5 * 16 * 4
    half = Cache(STREAMS, batch=3, length=10, device=torch.device("cpu"), dtype=torch.bfloat16)
    assert half.nbytes == 3 * 10 * 42 * 2


def test_cache_declares_its_own_length_unless_told():
    assert empty().declared_length == 10
    assert empty(declared=77).declared_length == 77
