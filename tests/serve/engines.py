"""Engines for tests: a tiny model in fp64, requests of every kind, and what the engine alone answers to them."""

import asyncio
import contextlib
import dataclasses
import functools
from pathlib import Path
from typing import Any

import torch

from anyformer.data.tokenizer import tokenizer
from anyformer.families.io import load
from anyformer.generation.engine import Engine
from anyformer.serve.config import Limits, ServeConfig
from anyformer.serve.engine.client import EngineClient, GenerateRequest, Generation, Output
from anyformer.serve.engine.local import LocalEngine

MENU: tuple[dict[str, Any], ...] = (
    {"max_new_tokens": 9, "stop": []},
    {"max_new_tokens": 12, "temperature": 1.3, "seed": 7, "stop": []},
    {"max_new_tokens": 7, "temperature": 1.1, "seed": 3, "n": 3, "stop": []},
    {"max_new_tokens": 6, "logprobs": 3, "stop": []},
    {"max_new_tokens": 2, "prompt_logprobs": 2, "logprobs": 0, "stop": []},
    {"max_new_tokens": 60, "temperature": 1.5, "seed": 11, "stop": ["a", "e", "t"]},
    {"choices": ["the cat", "the dog", "mat"]},
    {"max_new_tokens": 8, "temperature": 0.9, "seed": 5, "top_k": 20, "top_p": 0.9, "logit_bias": {"5": 3.0, "17": -4.0}},
    {"max_new_tokens": 5, "repetition_penalty": 1.3, "presence_penalty": 0.5, "stop": []},
    {"max_new_tokens": 30, "temperature": 1.0, "seed": 2, "stop": list(range(0, 40))},
)  # fmt: skip
"""Parameters as they come in JSON."""
PROMPTS = tuple([(7 * i + 3 * j) % 270 + 1 for j in range(3 + 5 * (i % 4))] for i in range(len(MENU)))


def config_of(folder: Path, limits: dict[str, Any] | None = None, **more: Any) -> ServeConfig:
    """Small sizes, in fp64: whoever else is there, the tokens are the same."""
    sizes = {"dtype": "float64", "device": "cpu", "max_num_seqs": 6, "max_model_len": 96, "threads": 1}
    return ServeConfig(**{"model": str(folder), "limits": Limits(**(limits or {})), **sizes, **more})


@contextlib.asynccontextmanager
async def running(client: EngineClient):
    """An engine that is closed in the end."""
    await client.start()
    try:
        yield client
    finally:
        await client.close()


@contextlib.asynccontextmanager
async def local(folder: Path, limits: dict[str, Any] | None = None, **more: Any):
    """An engine in a thread; in the end it holds nothing, and there is no thread."""
    async with running(LocalEngine(config_of(folder, limits, **more))) as client:
        assert isinstance(client, LocalEngine)
        yield client
    assert_empty(client)


def assert_empty(client: LocalEngine) -> None:
    """Nothing is held any more, on either side."""
    engine = client.worker.engine
    assert client._thread is None
    assert (client._live, client._jobs, client._unscheduled, client._sequences, client._looking) == ({}, {}, {}, 0, 0)
    assert (client.worker._live, client.worker._unscheduled, client.worker._jobs, client.worker._looks) == (
        {},
        {},
        {},
        {},
    )
    if engine is not None:
        engine.check()
        blocks = engine.scheduler.blocks
        assert blocks is not None
        assert engine.requests == {}
        assert len(blocks.free_slots) == blocks.max_num_seqs
        assert [manager.free for manager in blocks.managers] == list(blocks.totals)


def ask(client: EngineClient, prompt: list[int], salt: str | None = None, **params: Any) -> Generation:
    return client.generate(GenerateRequest(id="test", prompt=list(prompt), params=params, cache_salt=salt))


async def outputs(generation: Generation) -> list[Output]:
    """All of them, in order."""
    return [output async for some in generation for output in some]


@dataclasses.dataclass
class Answer:
    """What a request came to, by sequence."""

    ids: list[list[int]]
    reasons: list[str | None]
    stop_texts: list[str | None]
    logprobs: list[list[float]]
    top: list[list[list[int]]]
    prompt: list[Any] | None


def gathered(found: list[Output], n: int) -> Answer:
    made = Answer([[] for _ in range(n)], [None] * n, [None] * n, [[] for _ in range(n)], [[] for _ in range(n)], None)
    for output in found:
        assert made.reasons[output.index] is None, "an answer goes on after its end"
        made.ids[output.index] += output.ids
        made.logprobs[output.index] += output.logprobs or []
        made.top[output.index] += [[pair[0] for pair in each] for each in output.top or []]
        made.prompt = output.prompt_logprobs if output.prompt_logprobs is not None else made.prompt
        made.reasons[output.index] = output.finish_reason
        made.stop_texts[output.index] = output.stop_text
    return made


@functools.cache
def alone(folder: Path) -> Engine:
    """The engine by itself, with the same weights."""
    model = load(folder, "cpu", torch.float64).eval()
    return Engine(model, max_num_seqs=6, max_model_len=96, tokenizer=tokenizer(folder), enable_prefix_caching=False)


def expected(folder: Path, prompt: list[int], params: dict[str, Any]) -> Answer:
    """What the engine alone answers."""
    named = dict(params)
    if "logit_bias" in named:
        named["logit_bias"] = {int(key): value for key, value in named["logit_bias"].items()}
    (request,) = alone(folder).run([{"input_ids": list(prompt), **named}])
    rows = request.sequences
    met = [None if each.stop_text is None else each.stop_text.met for each in rows]
    if request.params.choices is not None:
        which = [request.params.choices.which(each.new) for each in rows]
        met = [None if i is None else params["choices"][i] for i in which]
    return Answer(
        [each.new for each in rows], [each.finish_reason for each in rows], met, [each.logprobs for each in rows],
        [[[pair[0] for pair in top] for top in each.top] for each in rows],
        None if request.prompt_logprobs is None else [None if p is None else [p[0], [list(pair) for pair in p[1]]] for p in request.prompt_logprobs],
    )  # fmt: skip


def assert_same(mine: Answer, theirs: Answer) -> None:
    """Tokens, reasons and texts are equal, log-probabilities up to the last bits of fp64."""
    assert (mine.ids, mine.reasons, mine.stop_texts, mine.top) == (
        theirs.ids,
        theirs.reasons,
        theirs.stop_texts,
        theirs.top,
    )
    for got, want in zip(mine.logprobs, theirs.logprobs, strict=True):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-9, atol=1e-9)
    assert (mine.prompt is None) == (theirs.prompt is None)
    for got, want in zip(mine.prompt or [], theirs.prompt or [], strict=True):
        if want is None:
            assert got is None
        else:
            assert [pair[0] for pair in got[1]] == [pair[0] for pair in want[1]]
            torch.testing.assert_close(torch.tensor(got[0]), torch.tensor(want[0]), rtol=1e-9, atol=1e-9)


async def assert_serves_all(client: EngineClient, folder: Path, rounds: int = 2) -> None:
    """Requests of every kind at once get what each gets alone."""
    asked = [(prompt, params) for _ in range(rounds) for prompt, params in zip(PROMPTS, MENU, strict=True)]
    made = [ask(client, prompt, **params) for prompt, params in asked]
    found = await asyncio.gather(*map(outputs, made))
    for (prompt, params), each in zip(asked, found, strict=True):
        assert_same(gathered(each, params.get("n", 1)), expected(folder, prompt, params))
