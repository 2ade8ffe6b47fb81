"""The cache: room, order, ragged rows, and rings against a list of everything that was fed."""

import random as python_random
from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch

from anyformer.errors import InputError
from anyformer.parts.static_cache import StaticKVCache
from anyformer.specs.cache_policy import CachePolicy, LayerCacheSpec
from tests.contract.contracts import model_of, prefix_of
from tests.contract.draw import draw
from tests.generation.talking import talking
from tests.parts.samples import random, small_model
from tests.tolerances import assert_close

STREAMS = (((2, 8), (2, 8)), ((1, 4), (1, 6)))
ALL = tuple(LayerCacheSpec(streams=streams) for streams in STREAMS)
NEAR = LayerCacheSpec(streams=((1, 2),), keep=CachePolicy(recent=4))


def empty(rooms=ALL, batch=3, length=10, **rest) -> StaticKVCache:
    rest = {"dtype": torch.float64} | rest
    return StaticKVCache(rooms, batch=batch, length=length, device=torch.device("cpu"), **rest)


def plain(cache: StaticKVCache, new: int, marked=None):
    cache.begin(torch.arange(cache.used, cache.used + new)[None], None, marked, ragged=False)
    return cache.key_positions(0)[:2]


def fresh(layer: int, new: int, seed: int):
    return [random(3, new, *stream, seed=seed + i) for i, stream in enumerate(STREAMS[layer])]


def test_cache_fed_in_steps_gives_everything_so_far_in_order():
    cache, fed = empty(), [[], []]
    for step, new in enumerate((4, 1, 5)):
        pos, valid = plain(cache, new)
        assert pos.tolist() == [list(range(cache.used + new))]
        assert valid is None
        assert cache.key_positions(0) is cache.key_positions(1), "layers with the same policy share their places"
        for layer in (0, 1):
            pieces = fresh(layer, new, seed=10 * step + layer)
            fed[layer].append(pieces)
            kept = cache.update(layer, *pieces)
            wanted = [torch.cat(tensors, 1) for tensors in zip(*fed[layer], strict=True)]
            assert all(torch.equal(a, b) for a, b in zip(kept, wanted, strict=True))
        cache.advance(new)
    assert cache.used == 10
    assert cache.is_append_only(0)


def test_cache_step_that_is_not_ended_is_overwritten_by_the_next():
    cache = empty()
    plain(cache, 2)
    cache.update(0, *fresh(0, 2, seed=1))
    again = fresh(0, 3, seed=2)
    plain(cache, 3)
    kept = cache.update(0, *again)
    assert torch.equal(kept[0], again[0])
    assert cache.used == 0


@pytest.mark.parametrize("rooms", [ALL, (NEAR,)], ids=["all", "ring"])
def test_cache_too_many_tokens_are_refused_and_change_nothing(rooms):
    cache = empty(rooms, length=5)
    plain(cache, 4)
    cache.advance(4)
    with pytest.raises(InputError, match="room for 5 tokens: 4 are used and 2 were given; make it longer"):
        plain(cache, 2)
    assert cache.used == 4
    pos, _ = plain(cache, 1)
    assert pos.shape == (1, 5 if rooms is ALL else 4)


@pytest.mark.parametrize(("batch", "length"), [(0, 5), (2, 0), (-1, 3)])
def test_cache_without_room_is_refused(batch, length):
    with pytest.raises(InputError, match=f"got batch={batch}, length={length}"):
        empty(batch=batch, length=length)


def test_cache_fed_nothing_at_once_is_refused():
    with pytest.raises(InputError, match="chunk: a cache is fed at least one token at once, got 0"):
        empty(chunk=0)


def test_cache_ragged_rows_remember_positions_and_validity():
    cache = empty(batch=2, length=8)
    valid = torch.tensor([[False, True, True], [True, True, True]])
    cache.begin(torch.tensor([[0, 0, 1], [0, 1, 2]]), valid, ragged=True)
    pos, seen, _ = cache.key_positions(0)
    assert pos.tolist() == [[0, 0, 1], [0, 1, 2]]
    assert seen.tolist() == valid.tolist()
    assert cache.seen_B.tolist() == [0, 0], "nothing counts before the step has ended"
    cache.advance(3)
    assert cache.seen_B.tolist() == [2, 3]
    # One more token in each row, none of them padding: a row that was ragged once stays so.
    cache.begin(torch.tensor([[2], [3]]), None, ragged=False)
    pos, seen, _ = cache.key_positions(0)
    assert pos.tolist() == [[0, 0, 1, 2], [0, 1, 2, 3]]
    assert seen.tolist() == [[False, True, True, True], [True] * 4]
    cache.advance(1)
    assert cache.seen_B.tolist() == [3, 4]


def test_cache_rows_that_become_ragged_keep_what_came_before():
    cache = empty(batch=2, length=8)
    plain(cache, 2)
    cache.advance(2)
    assert not cache.ragged
    cache.begin(torch.tensor([[2, 3], [2, 2]]), torch.tensor([[1, 1], [0, 1]]) != 0, ragged=True)
    pos, seen, _ = cache.key_positions(0)
    assert pos.tolist() == [[0, 1, 2, 3], [0, 1, 2, 2]]
    assert seen.tolist() == [[True] * 4, [True, True, False, True]]
    cache.advance(2)
    assert cache.seen_B.tolist() == [4, 3]


def test_cache_bytes_are_those_of_keys_values_and_memory():
    cache = empty()
    assert cache.nbytes == 3 * 10 * (2 * 8 + 2 * 8 + 4 + 6) * 8
    cache.cross[0] = (torch.zeros(3, 5, 2, 8), torch.zeros(3, 5, 2, 8))
    assert cache.nbytes == 3 * 10 * 42 * 8 + 2 * 3 * 5 * 16 * 4
    assert empty(dtype=torch.bfloat16).nbytes == 3 * 10 * 42 * 2


def test_cache_bytes_of_a_ring_are_its_window_and_chunk_and_those_of_a_state_its_own():
    rooms = (NEAR, LayerCacheSpec(state=((2, 3, 3), (2, 3))))
    assert empty(rooms, length=100, dtype=torch.bfloat16).nbytes == 3 * (4 * 2 * 2 + 24 * 4)
    assert empty(rooms, length=100, chunk=5).nbytes == 3 * ((4 + 4) * 2 * 8 + 24 * 8)
    assert empty(rooms, length=3).nbytes == 3 * (3 * 2 * 8 + 24 * 8)


def test_cache_declares_its_own_length_unless_told():
    assert empty().rope_length == 10
    assert empty(rope_length=77).rope_length == 77


def test_cache_of_another_model_batch_or_dtype_is_refused():
    cache, like = empty(), torch.zeros(1, dtype=torch.float64)
    cache.check(ALL, 3, like)
    cache.check(tuple(LayerCacheSpec(streams=s) for s in STREAMS), 3, like)
    with pytest.raises(InputError, match="made for a model with other layers"):
        cache.check((NEAR,), 3, like)
    with pytest.raises(InputError, match="made for 3 rows, but 2 were given"):
        cache.check(ALL, 2, like)
    with pytest.raises(
        InputError, match=r"holds torch\.float64 on cpu, but the model computes in torch\.float32 on cpu"
    ):
        cache.check(ALL, 3, like.float())


class Policy(NamedTuple):
    """A predicate on positions, and what a cache must keep for it."""

    keep: CachePolicy
    allows: Callable[[int, int], bool]


POLICIES = {
    "causal": Policy(CachePolicy(), lambda q, k: k <= q),
    "window": Policy(CachePolicy(recent=4), lambda q, k: 0 <= q - k < 4),
    "self": Policy(CachePolicy(recent=1), lambda q, k: q == k),
    "both sides": Policy(CachePolicy(recent=3), lambda q, k: abs(q - k) <= 2),
    "chunked": Policy(CachePolicy(recent=6), lambda q, k: k <= q and q // 6 == k // 6),
    "first": Policy(CachePolicy(recent=3, first=2), lambda q, k: k <= q and (k < 2 or q - k < 3)),
    "fixed": Policy(
        CachePolicy(recent=5, block=5, columns=2), lambda q, k: k <= q and (q // 5 == k // 5 or k % 5 >= 3)
    ),
    "all": Policy(
        CachePolicy(recent=2, first=1, block=4, columns=1), lambda q, k: k <= q and (q - k < 2 or k < 1 or k % 4 == 3)
    ),
}
LAYERS = tuple(LayerCacheSpec(streams=((1, 2), (2, 1)), keep=policy.keep) for policy in POLICIES.values())
BATCH, LENGTH = 2, 46


class Fed:
    """A list of everything that was fed to a cache, and the comparison with it."""

    def __init__(self, chunk: int, marks: bool = False) -> None:
        self.cache = empty(LAYERS, batch=BATCH, length=LENGTH, chunk=chunk)
        self.marks = marks
        self.tokens = [[] for _ in range(BATCH)]
        """(position, number that its tensors show, marked) of the real tokens of each row."""

    def step(self, new: int, valid=None, *, run=None, end: bool = True, given: int = 0) -> None:
        """Feed tokens, and compare what every layer answers. Positions are `given` further on, if they are."""
        cache = self.cache
        ragged = valid is not None or given > 0 or cache.ragged
        real = torch.ones(BATCH, new, dtype=torch.bool) if valid is None else valid
        seen = torch.tensor([len(row) for row in self.tokens])[:, None]
        pos = (real.cumsum(1) - 1 + seen).clamp(min=0) + given
        shown = torch.rand(BATCH, new, dtype=torch.float64)
        marked = torch.rand(BATCH, new) < 0.3 if self.marks and cache.used != 7 else None
        found = (run or feed)(cache, pos if ragged else pos[:1], valid, marked, shown, ragged)
        before = self.tokens
        self.tokens = [list(row) for row in before]
        for b, t in ((b, t) for b in range(BATCH) for t in range(new) if real[b, t]):
            self.tokens[b].append((int(pos[b, t]), float(shown[b, t]), marked is not None and bool(marked[b, t])))
        for (name, policy), answer in zip(POLICIES.items(), found, strict=True):
            for b in range(BATCH):
                answered = rows(b, *answer)
                for q in pos[b][real[b]].tolist():
                    wanted = sorted(t for t in self.tokens[b] if policy.allows(q, t[0]))
                    assert sorted(t for t in answered if policy.allows(q, t[0])) == wanted, (name, b, q)
        if end:
            cache.advance(new)
        else:
            self.tokens = before


def feed(cache, pos, valid, marked, shown, ragged):
    cache.begin(pos, valid, marked, ragged=ragged)
    kinds = shown[:, :, None, None].expand(-1, -1, 1, 2), -shown[:, :, None, None].expand(-1, -1, 2, 1)
    return [(*cache.key_positions(layer), *cache.update(layer, *kinds)) for layer in range(len(LAYERS))]


def rows(b, pos, valid, marked, first, second):
    """The tokens of a row that a cache answered."""
    shown = first[b, :, 0, 0]
    assert (first[b] == shown[:, None, None]).all()
    assert (second[b] == -shown[:, None, None]).all()
    real = torch.ones_like(shown, dtype=torch.bool) if valid is None else valid.expand(BATCH, -1)[b]
    marks = torch.zeros_like(real) if marked is None else marked[b]
    columns = pos.expand(BATCH, -1)[b], shown, marks
    return list(zip(*(column[real].tolist() for column in columns), strict=True))


def sizes(seed: int) -> list[int]:
    """Feeds that fill a cache: single tokens, chunks, and some that are longer than any ring."""
    draw, left, found = python_random.Random(seed), LENGTH, []
    while left:
        found.append(min(left, draw.choice([1, 1, 1, 2, 3, 5, 9, 25])))
        left -= found[-1]
    return found


@pytest.mark.parametrize("chunk", [1, 3, 9])
@pytest.mark.parametrize("rows_are", ["plain", "padded", "later padded", "marked", "marked and padded"])
@pytest.mark.parametrize("seed", range(3))
def test_cache_fed_at_random_answers_all_that_a_query_may_see(rows_are, chunk, seed):
    fed = Fed(chunk, marks="marked" in rows_are)
    torch.manual_seed(seed)
    for new in sizes(seed):
        pads = "padded" in rows_are and (fed.cache.used > 12 or "later" not in rows_are)
        fed.step(new, torch.rand(BATCH, new) < (0.7, 0.2)[new == 9] if pads else None)


@pytest.mark.parametrize("chunk", [1, 3])
def test_cache_rows_with_positions_of_their_own_keep_as_many_tokens(chunk):
    torch.manual_seed(0)
    # Two grids further on than where the row begins, so that its columns are where they would be.
    fed = Fed(chunk)
    for new in (1, 4, 2, 30, 1, 1):
        fed.step(new, given=0 if fed.cache.used < 5 else 60)


def test_cache_that_counts_blocks_refuses_positions_of_their_own():
    model = small_model({"attention.pattern": "causal & fixed(8, 2)"})
    ids, pos = torch.zeros(1, 3, dtype=torch.long), torch.tensor([[5, 6, 7]])
    with pytest.raises(InputError, match="positions: what this cache keeps is counted from the row's first token"):
        model(ids, positions=pos, cache=model.new_cache(1, 60))
    # A row that is no longer than what is kept anyway is kept as it is.
    cache = model.new_cache(1, 9)
    model(ids, positions=pos, cache=cache)
    assert cache.key_positions(0)[0].tolist() == [[5, 6, 7]]


def test_cache_ring_of_single_steps_is_seen_in_place():
    cache = empty((NEAR,), batch=1, length=20)
    for t in range(9):
        pos, valid = plain(cache, 1)
        (kept,) = cache.update(0, torch.full((1, 1, 1, 2), float(t), dtype=torch.float64))
        assert valid is None
        assert kept[0, :, 0, 0].tolist() == pos[0].tolist()
        assert sorted(pos[0].tolist()) == list(range(max(0, t - 3), t + 1)), "no more than the window"
        assert kept.data_ptr() == cache.layers[0][0].data_ptr()
        cache.advance(1)
    assert not cache.is_append_only(0)


def test_cache_first_feed_of_a_ring_is_seen_as_it_is():
    cache = empty((NEAR,), batch=1, length=20)
    pos, valid = plain(cache, 15)
    new = random(1, 15, 1, 2)
    (seen,) = cache.update(0, new)
    assert pos.tolist() == [list(range(15))]
    assert valid is None
    assert seen is new
    cache.advance(15)
    assert sorted(cache.layers[0][0][:, 0, 0, 0].tolist()) == sorted(new[0, -4:, 0, 0].tolist())


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize(("chunk", "tried", "made"), [(1, 1, 1), (3, 3, 1), (3, 2, 3), (3, 3, 9)])
def test_cache_step_that_failed_can_be_made_again_where_a_ring_was_written_in_place(chunk, tried, made, padded):
    torch.manual_seed(1)
    fed = Fed(chunk)
    for new, end in ((8, True), (1, True), (tried, False), (made, True), (1, True), (2, True)):
        fed.step(new, torch.rand(BATCH, new) < 0.6 if padded else None, end=end)


def test_cache_whose_ring_was_overwritten_by_a_step_that_failed_is_refused():
    cache = empty((NEAR,), batch=1, length=20)
    plain(cache, 9)
    cache.update(0, random(1, 9, 1, 2))
    plain(cache, 2)  # The first feed can be made again: there was nothing to lose.
    cache.update(0, random(1, 2, 1, 2))
    cache.advance(2)
    plain(cache, 2)
    cache.update(0, random(1, 2, 1, 2))
    with pytest.raises(InputError, match=r"a step after 2 tokens failed and had overwritten .* make a new cache"):
        plain(cache, 2)


def test_cache_state_is_kept_from_step_to_step_and_lost_with_a_step_that_failed():
    cache = empty((LayerCacheSpec(state=((2, 3), (4,))), NEAR), batch=2, length=9, dtype=torch.bfloat16)
    plain(cache, 1)
    first, second = cache.state(0)
    assert (first.shape, second.shape, first.dtype) == ((2, 2, 3), (2, 4), torch.float32)
    first += 5
    pos, _ = plain(cache, 3)  # A first step that failed leaves nothing.
    assert pos.tolist() == [[0, 1, 2]], "a layer with a state works on the new tokens"
    assert float(cache.state(0)[0].sum()) == 0
    cache.state(0)[1].fill_(2)
    cache.advance(3)
    assert plain(cache, 1)[0].tolist() == [[3]]
    assert float(cache.state(0)[1].sum()) == 16
    with pytest.raises(InputError, match="a step after 3 tokens failed"):
        plain(cache, 1)


@pytest.mark.parametrize(("padded", "chunk", "new"), [(False, 1, 1), (True, 3, 3), (True, 1, 2)])
def test_cache_compiles_as_one_graph_and_rarely_anew(padded, chunk, new):
    compilations = 0

    def backend(graph, inputs):
        nonlocal compilations
        compilations += 1
        return graph.forward

    torch.compiler.reset()
    torch.manual_seed(0)
    fast, fed = torch.compile(feed, fullgraph=True, backend=backend), Fed(chunk)
    fed.step(6, torch.tensor([[True] * 6, [False] * 4 + [True] * 2]) if padded else None)
    while fed.cache.used + new <= LENGTH:
        fed.step(new, run=fast)
    assert 1 <= compilations <= 2


ORDERS = ((2, 0, 1), (1, 1, 0), (2, 2, 0, 1, 1), (1,))


@torch.no_grad()
@pytest.mark.parametrize("seed", [*talking(range(60), "decoder")[:16], *talking(range(120), "encoder-decoder")[:6]])
@pytest.mark.parametrize("padded", [False, True], ids=["plain", "padded"])
def test_cache_with_rows_in_another_order_goes_on_as_if_they_had_been_read_so(seed, padded):
    spec = draw(seed)
    model, generator = model_of(spec), torch.Generator().manual_seed(seed)
    first = max(7, prefix_of(spec))
    source = torch.randint(0, spec.input_vocab, (3, 9), generator=generator)
    ids = torch.randint(0, spec.vocab, (3, first + 6), generator=generator)
    mask = torch.ones(3, 9 if spec.topology == "encoder-decoder" else first, dtype=torch.long)
    if padded:
        mask[0, :2], mask[2, -1:] = 0, 0
        mask[:, : prefix_of(spec)] = 1
    two, length = spec.topology == "encoder-decoder", first + 6
    name = "decoder_input_ids" if two else "input_ids"

    def begin(rows):
        given = {"input_ids": source[rows]} if two else {}
        given |= {"attention_mask": mask[rows]} if padded else {}
        cache = model.new_cache(len(rows), length, **({"rope_length": 20} if model.reads_length else {}))
        model(**given, **{name: ids[rows, :first]}, cache=cache)
        return cache

    def go_on(cache, rows):
        """One token, then three, then two: a ring takes them in both of its ways."""
        parts = ids[rows, first:].split((1, 3, 2), 1)
        return torch.cat([model(**{name: part}, cache=cache).logits for part in parts], 1)

    for order in ORDERS:
        rows = torch.tensor(order)
        moved = begin(torch.arange(3))
        with torch.inference_mode():
            moved.reorder(rows)
        assert_close("promise", go_on(moved, rows), go_on(begin(rows), rows))
        assert moved.batch == len(order)
        assert moved.nbytes == begin(rows).nbytes


def test_cache_with_as_many_rows_in_another_order_keeps_its_storage():
    rooms = (*ALL, NEAR, LayerCacheSpec(state=((2, 3),)))
    cache = empty(rooms, batch=2, length=9)
    places = [t.data_ptr() for layer in (*cache.layers, *cache.states) for t in layer]
    cache.reorder(torch.tensor([1, 1]))
    assert [t.data_ptr() for layer in (*cache.layers, *cache.states) for t in layer] == places


@pytest.mark.parametrize("rows", [torch.tensor([]), torch.tensor([[0]]), torch.tensor([0.0]), torch.tensor(1)])
def test_cache_row_numbers_that_are_none_are_refused(rows):
    with pytest.raises(InputError, match="rows_B: expected at least one row number, as int64 in one dimension, got"):
        empty().reorder(rows)
