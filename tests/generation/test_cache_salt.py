"""Prefix caching: blocks are shared among requests with equal salts, and with nobody else."""

import itertools

import pytest

from anyformer.generation.engine import Engine
from tests.generation.test_engine import alone, small

IDS = [(5 * i) % 36 + 1 for i in range(23)]
ASKED = {"input_ids": IDS, "max_new_tokens": 6, "stop": ()}


def engine_of(model, **sizes) -> Engine:
    return Engine(model, **{"max_num_seqs": 2, "max_model_len": 40, "block_size": 4} | sizes)


def test_equal_prompts_share_blocks_only_with_equal_salts_and_get_the_same_tokens():
    model = small()
    engine, want = engine_of(model), alone(model, IDS, max_new_tokens=6, stop=())
    found = []
    for salt in ("a", "a", "b", None, "b", None, ""):
        (request,) = engine.run([ASKED | {"cache_salt": salt}])
        assert request.sequences[0].new == want
        found.append(request.num_cached_tokens)
        engine.check()
    assert found == [0, 20, 0, 0, 20, 20, 0]
    assert engine.stats.cached_tokens == 60


def test_requests_side_by_side_with_other_salts_share_nothing():
    model = small()
    engine = engine_of(model, max_num_seqs=4)
    first = engine.add_request(**ASKED, cache_salt="a")
    engine.step()
    others = [engine.add_request(**ASKED, cache_salt=salt) for salt in ("a", "b", None)]
    for _ in engine:
        engine.check()
    assert [each.num_cached_tokens for each in (first, *others)] == [0, 20, 0, 0]
    assert len({tuple(each.sequences[0].new) for each in (first, *others)}) == 1


def test_answers_that_are_forked_keep_the_salt_for_what_they_write():
    model = small()
    engine = engine_of(model, max_num_seqs=4)
    given = {"max_new_tokens": 12, "temperature": 1.0, "seed": 1, "stop": ()}
    (several,) = engine.run([{"input_ids": IDS, "n": 2, "cache_salt": "a"} | given])
    longer = several.sequences[1].tokens
    for salt, cached in (("a", 32), ("b", 0), (None, 0)):
        (request,) = engine.run([{"input_ids": longer, "max_new_tokens": 2, "cache_salt": salt}])
        assert request.num_cached_tokens == cached
        assert request.sequences[0].new == alone(model, longer, max_new_tokens=2)


def test_prompts_that_are_read_alone_leave_no_block_to_those_without_a_salt():
    model = small()
    engine = engine_of(model)
    # Log-probabilities of a prompt are computed without cached blocks, but its own are kept.
    (request,) = engine.run([ASKED | {"cache_salt": "a", "prompt_logprobs": 0}])
    assert request.num_cached_tokens == 0
    for salt, cached in ((None, 0), ("a", 20)):
        (request,) = engine.run([ASKED | {"cache_salt": salt}])
        assert request.num_cached_tokens == cached


@pytest.mark.parametrize("num_blocks", [8, 16])
def test_preempted_requests_keep_salt_and_first_schedule(num_blocks):
    model = small()
    engine = engine_of(model, max_num_seqs=3, num_blocks=num_blocks)
    asked = [{"input_ids": IDS[:9], "max_new_tokens": 14, "stop": (), "cache_salt": salt} for salt in ("a", "b", "c")]
    want = alone(model, IDS[:9], max_new_tokens=14, stop=())
    added = [engine.add_request(**each) for each in asked]
    assert [each.scheduled for each in added] == [None] * 3
    seen: dict[int, float] = {}
    while not engine.idle:
        engine.step()
        engine.check()
        for i, each in enumerate(added):
            if each.scheduled is not None:
                assert seen.setdefault(i, each.scheduled) == each.scheduled
    assert [each.num_cached_tokens for each in added] == [0, 0, 0]
    assert [each.sequences[0].new for each in added] == [want] * 3
    assert all(a <= b for a, b in itertools.pairwise(seen[i] for i in range(3)))
