"""Failing passes, samplers, tokenizers and steps: one request ends, or all of them, and the engine lives on."""

import asyncio
import logging

import pytest

from anyformer.generation.engine import sampler as sampling
from anyformer.serve.errors import ApiError
from tests.serve.engines import MENU, PROMPTS, ask, assert_same, assert_serves_all, expected, gathered, local, outputs

BAD = [251, 252, 253]
"""The prompt of the request that fails."""


@pytest.fixture(autouse=True)
def _quiet():
    logging.getLogger("anyformer.serve.engine").disabled = True
    yield
    logging.getLogger("anyformer.serve.engine").disabled = False


async def assert_only_one_fails(client, folder, bad, status=500):
    """Every other request gets what it gets alone."""
    asked = [(p, m) for p, m in zip(PROMPTS, MENU, strict=True) if "n" not in m]
    before = [ask(client, prompt, **params) for prompt, params in asked[:4]]
    failing = ask(client, **bad)
    after = [ask(client, prompt, **params) for prompt, params in asked[4:]]
    found = await asyncio.gather(*map(outputs, [*before, failing, *after]), return_exceptions=True)
    error = found.pop(4)
    assert isinstance(error, ApiError)
    assert (error.status, error.headers["x-should-retry"]) == (status, "false")
    for (prompt, params), each in zip(asked, found, strict=True):
        assert_same(gathered(each, 1), expected(folder, prompt, params))
    return error


def test_forward_that_fails_for_one_prompt_ends_that_request_only(model_folder, monkeypatch):
    async def scenario():
        async with local(model_folder, enable_prefix_caching=False) as client:
            runner = client.worker.engine.runner
            forward = runner.forward

            def failing(sequences, ids, **more):
                if any(row[:3] == BAD for row in ids):
                    raise RuntimeError("secret inner state")
                return forward(sequences, ids, **more)

            monkeypatch.setattr(runner, "forward", failing)
            error = await assert_only_one_fails(client, model_folder, {"prompt": BAD, "max_new_tokens": 5})
            assert "secret" not in error.message
            await assert_serves_all(client, model_folder, rounds=1)

    asyncio.run(scenario())


def test_sampler_that_fails_for_one_sequence_ends_that_request_only(model_folder, monkeypatch):
    sample = sampling.Sampler._sample

    def failing(self, logits_BV, sequences):
        if any(each.request.prompt == tuple(BAD) and each.num_new_tokens == 2 for each in sequences):
            raise RuntimeError("no sample")
        return sample(self, logits_BV, sequences)

    monkeypatch.setattr(sampling.Sampler, "_sample", failing)

    async def scenario():
        async with local(model_folder) as client:
            await assert_only_one_fails(client, model_folder, {"prompt": BAD, "max_new_tokens": 5, "stop": []})

    asyncio.run(scenario())


class Panic(BaseException):
    """What the tokenizers library raises where it panics is no Exception."""


def test_tokenizer_that_panics_in_a_stop_string_ends_that_request_only(model_folder, monkeypatch):
    from anyformer.generation.params import stop

    push = stop.StopText.push

    def failing(self, *ids):
        if "panics" in self._stops:
            raise Panic
        return push(self, *ids)

    monkeypatch.setattr(stop.StopText, "push", failing)

    async def scenario():
        async with local(model_folder) as client:
            bad = {"prompt": BAD, "max_new_tokens": 5, "stop": ["panics"]}
            await assert_only_one_fails(client, model_folder, bad)

    asyncio.run(scenario())


def test_tokenizer_that_panics_while_a_request_is_read_ends_that_request_only(model_folder, monkeypatch):
    from anyformer.generation.engine import engine

    made = engine.StopText

    def failing(text, stops, **more):
        if "panics" in stops:
            raise Panic
        return made(text, stops, **more)

    monkeypatch.setattr(engine, "StopText", failing)

    async def scenario():
        async with local(model_folder) as client:
            bad = {"prompt": BAD, "max_new_tokens": 5, "stop": ["panics"]}
            await assert_only_one_fails(client, model_folder, bad)

    asyncio.run(scenario())


@pytest.mark.parametrize("error", [RuntimeError("everything"), KeyboardInterrupt(), Panic()])
def test_step_that_fails_as_a_whole_ends_all_requests_and_the_next_are_served(model_folder, monkeypatch, error):
    async def scenario():
        async with local(model_folder) as client:
            engine = client.worker.engine
            schedule, left = engine.scheduler.schedule, [3]

            def failing():
                left[0] -= 1
                if not left[0]:
                    raise error
                return schedule()

            monkeypatch.setattr(engine.scheduler, "schedule", failing)
            asked = [ask(client, prompt, **params) for prompt, params in zip(PROMPTS[:4], MENU[:4], strict=True)]
            found = await asyncio.gather(*map(outputs, asked), return_exceptions=True)
            assert [(each.status, each.code) for each in found] == [(500, "engine_failed")] * 4
            assert client.healthy
            await assert_serves_all(client, model_folder, rounds=1)
            assert client.worker.engine is engine

    asyncio.run(scenario())


def test_engine_that_has_lost_count_is_made_anew(model_folder, monkeypatch):
    async def scenario():
        async with local(model_folder) as client:
            engine = client.worker.engine

            def failing():
                engine.scheduler.blocks.free_slots.pop()
                raise RuntimeError("a slot is lost")

            monkeypatch.setattr(engine.scheduler, "schedule", failing)
            with pytest.raises(ApiError):
                await outputs(ask(client, [1, 2, 3], max_new_tokens=4))
            await assert_serves_all(client, model_folder, rounds=1)
            assert client.worker.engine is not engine

    asyncio.run(scenario())


def test_engine_that_can_not_be_made_anew_is_unhealthy_and_says_so(model_folder, monkeypatch):
    async def scenario():
        async with local(model_folder) as client:

            def failing(*_):
                raise RuntimeError("no memory")

            monkeypatch.setattr(client.worker.engine, "step", failing)
            monkeypatch.setattr(client.worker.engine, "check", failing)
            object.__setattr__(client.worker._loaded, "remake", failing)
            asked = [ask(client, [1, 2, 3], max_new_tokens=4) for _ in range(3)]
            found = await asyncio.gather(*map(outputs, asked), return_exceptions=True)
            assert {each.status for each in found} <= {500, 503}
            assert not client.healthy
            with pytest.raises(ApiError) as refused:
                ask(client, [1])
            assert refused.value.status == 503

    asyncio.run(scenario())


def test_worker_that_breaks_down_is_unhealthy_and_nobody_waits_for_ever(model_folder, monkeypatch):
    async def scenario():
        async with local(model_folder) as client:

            def failing():
                raise RuntimeError("a bug of ours")

            monkeypatch.setattr(client.worker, "_advance_jobs", failing)
            with pytest.raises(ApiError) as told:
                await outputs(ask(client, [1, 2, 3], max_new_tokens=4))
            assert told.value.status == 503
            assert not client.healthy
            with pytest.raises(ApiError):
                await client.embed([[1]], pooling="mean", normalize=True)

    asyncio.run(scenario())


def test_one_answer_of_several_that_fails_ends_the_request_and_frees_all_of_it(model_folder, monkeypatch):
    sample = sampling.Sampler._sample

    def failing(self, logits_BV, sequences):
        if any(each.index == 1 and each.num_new_tokens == 2 for each in sequences):
            raise RuntimeError("no sample")
        return sample(self, logits_BV, sequences)

    monkeypatch.setattr(sampling.Sampler, "_sample", failing)

    async def scenario():
        async with local(model_folder) as client:
            with pytest.raises(ApiError):
                await outputs(ask(client, [1, 2, 3], max_new_tokens=50, n=3, temperature=1.0, seed=1, stop=[]))
            await outputs(ask(client, [4], max_new_tokens=1))
            assert client.snapshot["running"] == 0

    asyncio.run(scenario())
