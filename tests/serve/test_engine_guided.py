"""Grammars: compiled beside the steps of others, and within limits."""

import asyncio
import json
import threading

import pytest

pytest.importorskip("llguidance")

from anyformer.data.tokenizer import tokenizer
from anyformer.serve.engine import grammars
from anyformer.serve.errors import ApiError
from tests.serve.engines import ask, assert_serves_all, gathered, local, outputs

DIGITS = {"guided": {"regex": "[0-9]{4}"}, "max_new_tokens": 20, "temperature": 1.0, "seed": 3}


def test_guided_request_answers_in_its_grammar_and_others_get_the_same(model_folder):
    words = tokenizer(model_folder)
    schema = {"type": "object", "properties": {"a": {"enum": [1, 2]}}, "required": ["a"], "additionalProperties": False}

    async def scenario():
        async with local(model_folder) as client:
            digits = [ask(client, [1, 2, 3], **DIGITS) for _ in range(2)]
            table = ask(client, [1, 2, 3], guided={"json_schema": schema}, max_new_tokens=90, stop=[])
            await assert_serves_all(client, model_folder)
            found = [gathered(await outputs(each), 1) for each in (*digits, table)]
            assert [each.reasons for each in found] == [["stop"]] * 3
            assert words.decode(found[0].ids[0]).isdigit()
            assert len(words.decode(found[0].ids[0])) == 4
            assert found[0].ids == found[1].ids
            assert json.loads(words.decode(found[2].ids[0])) in ({"a": 1}, {"a": 2})
            # A grammar that is known needs no thread.
            known = len(client.worker._grammars._known)
            again = gathered(await outputs(ask(client, [1, 2, 3], **DIGITS)), 1)
            assert again.ids == found[0].ids
            assert len(client.worker._grammars._known) == known == 2

    before = threading.active_count()
    asyncio.run(scenario())
    assert threading.active_count() == before


@pytest.mark.parametrize(
    ("guided", "words"),
    [
        ({"regex": "(" * 40}, "guided: regex"),
        ({"json_schema": {"type": "no such type"}}, "json_schema"),
        ({"json_schema": {"description": "x" * 5000}}, "guided"),
        ({"regex": "a", "grammar": "b"}, "exactly one grammar"),
    ],
)
def test_grammar_that_can_not_be_is_refused_and_others_go_on(model_folder, guided, words):
    async def scenario():
        async with local(model_folder, {"schema_bytes": 2000}) as client:
            bad = ask(client, [1, 2, 3], guided=guided, max_new_tokens=5)
            await assert_serves_all(client, model_folder, rounds=1)
            with pytest.raises(ApiError, match=words) as refused:
                await outputs(bad)
            assert refused.value.status == 400

    asyncio.run(scenario())


def test_request_that_is_cancelled_while_its_grammar_is_compiled_never_begins(model_folder, monkeypatch):
    go_on, begun, compile_grammar = threading.Event(), threading.Event(), grammars.compile_grammar

    def slow(*args, **more):
        begun.set()
        go_on.wait()
        return compile_grammar(*args, **more)

    monkeypatch.setattr(grammars, "compile_grammar", slow)

    async def scenario():
        async with local(model_folder) as client:
            generation = ask(client, [1, 2, 3], **DIGITS)
            while not begun.is_set():
                await asyncio.sleep(0)
            generation.cancel()
            go_on.set()
            await assert_serves_all(client, model_folder, rounds=1)
            assert client.snapshot["waiting"] == 0
            assert [output async for output in generation] == []

    try:
        asyncio.run(scenario())
    finally:
        go_on.set()
