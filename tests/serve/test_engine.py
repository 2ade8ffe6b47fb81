"""An engine in a thread: requests get what the engine alone gives, and leave nothing behind."""

import asyncio
import random
import threading
from typing import Any

import pytest

from anyformer.errors import InputError
from anyformer.serve.engine.client import ANSWER
from anyformer.serve.engine.local import LocalEngine
from anyformer.serve.errors import ApiError
from tests.serve.engines import (
    MENU,
    PROMPTS,
    ask,
    assert_empty,
    assert_same,
    assert_serves_all,
    config_of,
    expected,
    gathered,
    local,
    outputs,
    running,
)


def test_local_engine_gives_requests_of_every_kind_what_the_engine_alone_gives(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            await assert_serves_all(client, model_folder, rounds=3)
            assert client.snapshot["running"] == client.snapshot["waiting"] == 0

    asyncio.run(scenario())


def test_local_engine_tells_when_what_happened_in_order(model_folder):
    async def scenario():
        async with local(model_folder, max_num_seqs=1) as client:
            first, second = (ask(client, [1, 2, 3], max_new_tokens=9, stop=[]) for _ in range(2))
            await asyncio.gather(outputs(first), outputs(second))
            for each in (first, second):
                times = each.times
                assert times.arrival <= times.scheduled <= times.first_token <= times.last_token
            assert first.times.first_token <= second.times.scheduled

    asyncio.run(scenario())


def test_local_engine_with_eos_ignored_ends_at_texts_only(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            client.worker.engine.model.spec = client.worker.engine.model.spec.vary({"ids.eos": [0, 5]})
            given = {"max_new_tokens": 4, "stop": ["no such text"], "ignore_eos": True, "logit_bias": {"5": 100.0}}
            generation = ask(client, [1, 2, 3], **given)
            found = gathered(await outputs(generation), 1)
            assert (found.ids, found.reasons) == ([[5] * 4], ["length"])
            del given["ignore_eos"]
            assert gathered(await outputs(ask(client, [1, 2, 3], **given)), 1).ids == [[5]]

    asyncio.run(scenario())


def test_local_engine_shares_prefixes_among_equal_salts_only(model_folder):
    prompt, asked = [(5 * i) % 200 + 1 for i in range(40)], {"max_new_tokens": 5, "stop": []}

    async def scenario():
        async with local(model_folder) as client:
            found = []
            for salt in ("alice", "alice", "bob", None, "bob"):
                generation = ask(client, prompt, salt, **asked)
                found.append(gathered(await outputs(generation), 1).ids)
                found.append(generation.num_cached_tokens)
            assert found[1::2] == [0, 32, 0, 0, 32]
            assert all(ids == found[0] for ids in found[::2])
            assert client.snapshot["prefix_cache_hits"] == 64
            assert client.snapshot["prefix_cache_queries"] == 200

    asyncio.run(scenario())


@pytest.mark.parametrize("after", [0, 1, 3])
def test_cancel_in_queue_prefill_or_decode_frees_slots_and_others_get_the_same(model_folder, after):
    async def scenario():
        async with local(model_folder, max_num_seqs=2, max_num_batched_tokens=8) as client:
            long = [(i % 200) + 1 for i in range(60)]
            kept = ask(client, PROMPTS[1], **MENU[1])
            gone = [ask(client, long, max_new_tokens=30, stop=[]) for _ in range(3)]
            if after:
                steps = client.worker.engine.stats
                while steps.steps < after:
                    await asyncio.sleep(0)
            for each in gone:
                each.cancel()
                each.cancel()
            assert_same(gathered(await outputs(kept), 1), expected(model_folder, PROMPTS[1], MENU[1]))
            for each in gone:
                assert [output async for output in each] == []

    asyncio.run(scenario())


def test_cancel_while_a_stream_is_read_ends_it_within_a_step(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            generation, count = ask(client, [1, 2, 3], max_new_tokens=90, stop=[]), 0
            async for some in generation:
                count += len(some)
                generation.cancel()
            assert count < 90
            # The one who comes next sees that nothing runs any more.
            await outputs(ask(client, [4], max_new_tokens=1))
            assert client.snapshot["running"] == 0

    asyncio.run(scenario())


def test_200_random_requests_and_cancels_leave_nothing(model_folder):
    rng = random.Random(0)

    async def one(client: LocalEngine):
        i = rng.randrange(len(MENU))
        generation = ask(client, PROMPTS[i], rng.choice((None, "a")), **MENU[i])
        reads, found = rng.choice((0, 1, 4, 1000)), []
        for _ in range(rng.randint(0, 5)):
            await asyncio.sleep(0)
        try:
            async for some in generation:
                found += some
                reads -= 1
                if reads < 0:
                    break
            else:
                assert_same(gathered(found, MENU[i].get("n", 1)), expected(model_folder, PROMPTS[i], MENU[i]))
        finally:
            generation.cancel()

    async def scenario():
        async with local(model_folder, {"queue_pools": 1000}, num_blocks=20) as client:
            tasks = set()
            for _ in range(200):
                tasks.add(asyncio.ensure_future(one(client)))
                if rng.random() < 0.3:
                    await asyncio.sleep(0.001)
                if rng.random() < 0.1:
                    rng.choice(list(tasks)).cancel()
            for found in await asyncio.gather(*tasks, return_exceptions=True):
                assert found is None or isinstance(found, asyncio.CancelledError), found
            await outputs(ask(client, [4], max_new_tokens=1))
            assert client.snapshot["running"] == client.snapshot["waiting"] == 0
            assert client.snapshot["free_blocks"] == 20

    asyncio.run(scenario())


def test_engine_that_is_full_refuses_with_the_time_to_wait_and_those_accepted_finish(model_folder):
    async def scenario():
        async with local(model_folder, {"queue": 3}, max_num_seqs=2) as client:
            accepted: list[Any] = [ask(client, [1, 2, 3], max_new_tokens=20, stop=[]) for _ in range(5)]
            for _ in range(20):
                with pytest.raises(ApiError) as refused:
                    ask(client, [1, 2, 3], max_new_tokens=20, stop=[])
                assert refused.value.status == 429
                assert 1 <= int(refused.value.headers["retry-after"]) <= 120
            assert client.metrics.refused == 20
            found = await asyncio.gather(*map(outputs, accepted))
            assert [sum(len(output.ids) for output in each) for each in found] == [20] * 5
            await outputs(ask(client, [1], max_new_tokens=1))

    asyncio.run(scenario())


def test_engine_with_too_many_tokens_in_the_queue_refuses_but_takes_one_of_any_size(model_folder):
    async def scenario():
        async with local(model_folder, {"queue_pools": 1}, max_num_seqs=1) as client:
            # n = 8 answers are more than a pool; there is nobody before it.
            big = ask(client, [1, 2, 3], max_new_tokens=90, n=8, temperature=1.0, seed=1, stop=[])
            with pytest.raises(ApiError) as refused:
                ask(client, [1, 2, 3], max_new_tokens=20)
            assert refused.value.code == "rate_limit_exceeded"
            big.cancel()
            await outputs(ask(client, [1, 2, 3], max_new_tokens=20))

    asyncio.run(scenario())


def test_engine_whose_slots_are_free_refuses_nobody_however_long_answers_may_be(model_folder):
    async def scenario():
        async with local(model_folder, max_num_seqs=8, num_blocks=16, max_model_len=256) as client:
            asked = [ask(client, [1, 2, 3], stop=[]) for _ in range(8)]
            # Those that wait are counted by what answers come to, and not by what each of them may.
            asked += [ask(client, [1, 2, 3], stop=[]) for _ in range(4)]
            assert client.metrics.refused == 0
            for each in asked:
                each.cancel()
            await asyncio.gather(*(outputs(ask(client, [1, 2, 3], max_new_tokens=2, stop=[])) for _ in range(8)))
            assert client.usual_answer < ANSWER

    asyncio.run(scenario())


def test_engine_that_is_full_says_how_many_requests_wait_and_counts_no_sequences(model_folder):
    async def scenario():
        async with local(model_folder, {"queue": 2}, max_num_seqs=2) as client:
            params = {"n": 2, "max_new_tokens": 5, "temperature": 1.0, "stop": []}
            accepted = [ask(client, [1, 2, 3], **params) for _ in range(3)]
            with pytest.raises(ApiError, match=r"^2 requests wait already, for about 26 tokens; try again"):
                ask(client, [1, 2, 3], **params)
            await asyncio.gather(*map(outputs, accepted))

    asyncio.run(scenario())


def test_consumer_that_is_too_slow_is_aborted_and_told(model_folder):
    async def scenario():
        async with local(model_folder, {"stream_events": 4}) as client:
            slow = ask(client, [1, 2, 3], max_new_tokens=80, stop=[])
            await anext(slow)
            while client._live:
                await asyncio.sleep(0)
            with pytest.raises(ApiError) as told:
                await outputs(slow)
            assert (told.value.status, told.value.code) == (408, "slow_client")
            # Who has not begun to read is not slow.
            late = ask(client, [1, 2, 3], max_new_tokens=30, stop=[])
            while client._live:
                await asyncio.sleep(0)
            assert sum(len(output.ids) for output in await outputs(late)) == 30

    asyncio.run(scenario())


@pytest.mark.parametrize(
    ("params", "words"),
    [
        ({"max_new_tokens": 500}, "serves up to 96"),
        ({"temperature": -1.0}, "temperature"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"logit_bias": {"no number": 1.0}}, "no number"),
        ({"choices": []}, "choices"),
    ],
)
def test_request_that_the_engine_refuses_is_told_why_and_others_go_on(model_folder, params, words):
    async def scenario():
        async with local(model_folder) as client:
            kept = ask(client, PROMPTS[0], **MENU[0])
            with pytest.raises(ApiError, match=words) as refused:
                await outputs(ask(client, [1, 2, 3], **params))
            assert refused.value.status == 400
            assert_same(gathered(await outputs(kept), 1), expected(model_folder, PROMPTS[0], MENU[0]))

    asyncio.run(scenario())


def test_idle_worker_waits_and_does_not_go_round(model_folder):
    async def scenario():
        async with local(model_folder) as client:
            await outputs(ask(client, [1, 2, 3], max_new_tokens=3))
            worker, waiting = client.worker, threading.Event()
            inbox = worker._inbox

            class Inbox:
                """Tells when the worker waits, and that it does so without a limit."""

                def get(self, timeout=None):
                    assert timeout is None
                    waiting.set()
                    found = inbox.get(timeout=timeout)
                    waiting.clear()
                    return found

                get_nowait, put = inbox.get_nowait, inbox.put

            worker._inbox = Inbox()
            for _ in range(2):
                await outputs(ask(client, [1, 2, 3], max_new_tokens=3))
                while not waiting.is_set():
                    await asyncio.sleep(0)
            before = worker.iterations
            await asyncio.sleep(0.05)
            assert worker.iterations == before

    asyncio.run(scenario())


def test_close_aborts_what_runs_and_then_nothing_is_served(model_folder):
    async def scenario():
        client = LocalEngine(config_of(model_folder))
        with pytest.raises(ApiError, match="not started"):
            ask(client, [1])
        async with running(client):
            generation = ask(client, [1, 2, 3], max_new_tokens=90, stop=[])
            await anext(generation)
            job = asyncio.ensure_future(client.embed([[1, 2]] * 50, pooling="mean", normalize=True))
            await asyncio.sleep(0)
        with pytest.raises(ApiError) as ended:
            await outputs(generation)
        assert ended.value.status == 503
        assert isinstance((await asyncio.gather(job, return_exceptions=True))[0], ApiError)
        assert not client.healthy
        with pytest.raises(ApiError) as refused:
            ask(client, [1])
        assert refused.value.status == 503
        await client.close()
        assert_empty(client)

    before = threading.active_count()
    asyncio.run(scenario())
    assert threading.active_count() == before


def test_engine_whose_model_is_not_there_says_so_and_leaves_no_thread(tmp_path):
    before = threading.active_count()
    with pytest.raises(InputError, match="nothing-here"):
        asyncio.run(LocalEngine(config_of(tmp_path / "nothing-here")).start())
    assert threading.active_count() == before


def test_worker_whose_listener_is_gone_ends(model_folder):
    async def scenario():
        client = LocalEngine(config_of(model_folder))
        await client.start()
        ask(client, [1, 2, 3], max_new_tokens=90, stop=[])
        return client

    client = asyncio.run(scenario())
    # The loop is closed: the next report finds nobody.
    client.worker.handle({"type": "abort", "number": 1})
    client._thread.join(60)
    assert not client._thread.is_alive()
