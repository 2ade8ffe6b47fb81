"""Programs of others against this server: OpenAI's package, the command line tool `llm`, and the lm-evaluation-harness."""

import base64
import dataclasses
import json
import os
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anyformer as af
from anyformer.data.tokenizer import train_bpe
from tests.contract.contracts import randomise
from tests.serve.asking import oracle_of
from tests.serve.conftest import SPEC, TEXT
from tests.serve.running import Running, config_of, serving_engine
from tests.serve.test_chat import CLOCK, WEATHER

KEY = "sk-test"
USER: Any = {"role": "user", "content": "the cat"}


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Running]:
    with serving_engine(config_of(model=str(chat_folder), keys=(KEY,), dtype="float64", max_num_seqs=4)) as running:
        yield running
        running.engine_idle()


@pytest.fixture
def openai():
    return pytest.importorskip("openai")


@pytest.fixture
def client(openai, server: Running) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{server.base_url}/v1", api_key=KEY, max_retries=0) as made:
        yield made


def test_openai_lists_the_model(client):
    (model,) = client.models.list().data
    assert (model.id, model.object) == ("chatty", "model")
    assert client.models.retrieve("chatty").id == "chatty"


def test_openai_completes_and_streams_the_same(client, chat_folder: Path):
    oracle = oracle_of(chat_folder)
    (said,) = oracle.say(oracle.prompt("the cat"), max_new_tokens=12, temperature=1.0, seed=5, logprobs=3)
    asked = {"model": "chatty", "prompt": "the cat", "max_tokens": 12, "seed": 5, "logprobs": 3}
    whole = client.completions.create(**asked)
    assert (whole.choices[0].text, whole.choices[0].finish_reason) == (said.text, said.reason)
    assert whole.choices[0].logprobs.token_logprobs == pytest.approx(said.logprobs, abs=1e-9)
    events = list(client.completions.create(**asked, stream=True, stream_options={"include_usage": True}))
    assert "".join(choice.text for event in events for choice in event.choices) == said.text
    assert events[-1].usage.completion_tokens == whole.usage.completion_tokens


def test_openai_chats_and_streams_the_same(client):
    asked = {
        "model": "chatty",
        "messages": [USER],
        "max_completion_tokens": 12,
        "seed": 5,
        "logprobs": True,
        "top_logprobs": 2,
        "n": 2,
    }
    whole = client.chat.completions.create(**asked)
    assert [choice.message.role for choice in whole.choices] == ["assistant", "assistant"]
    texts, tokens = {0: "", 1: ""}, {0: 0, 1: 0}
    for event in client.chat.completions.create(**asked, stream=True):
        for choice in event.choices:
            texts[choice.index] += choice.delta.content or ""
            tokens[choice.index] += len((choice.logprobs.content or []) if choice.logprobs else [])
    assert texts == {choice.index: choice.message.content for choice in whole.choices}
    assert tokens == {choice.index: len(choice.logprobs.content) for choice in whole.choices}
    with client.chat.completions.stream(model="chatty", messages=[USER], max_completion_tokens=6, seed=5) as stream:
        final = stream.get_final_completion()
    assert whole.choices[0].message.content.startswith(final.choices[0].message.content[:-2])


def test_openai_calls_a_tool_and_takes_its_answer(client):
    asked = {"model": "chatty", "messages": [USER], "tools": [WEATHER, CLOCK], "tool_choice": "required", "seed": 2}
    message = client.chat.completions.create(**asked).choices[0].message
    (call,) = message.tool_calls
    assert json.loads(call.function.arguments)
    parts = [choice.delta for event in client.chat.completions.create(**asked, stream=True) for choice in event.choices]
    (streamed,) = [each for part in parts for each in part.tool_calls or ()]
    assert (streamed.function.name, streamed.function.arguments) == (call.function.name, call.function.arguments)
    back = [USER, message, {"role": "tool", "tool_call_id": call.id, "content": "noon"}]
    answer = client.chat.completions.create(
        model="chatty", messages=back, tools=[WEATHER, CLOCK], max_completion_tokens=3
    )
    assert answer.usage.completion_tokens <= 3


def test_openai_parses_a_structured_output(client):
    pydantic = pytest.importorskip("pydantic")
    from typing import Literal

    model = pydantic.create_model("Place", city=(Literal["Paris", "Rome"], ...), number=(Literal[1, 2, 3], ...))
    found = client.chat.completions.parse(model="chatty", messages=[USER], response_format=model, seed=3)
    assert found.choices[0].message.parsed.city in ("Paris", "Rome")
    assert found.choices[0].message.parsed.number in (1, 2, 3)
    made = client.responses.parse(model="chatty", input="the cat", text_format=model, extra_body={"seed": 3})
    assert made.output_parsed.city in ("Paris", "Rome")


def test_openai_embeds_in_base64_by_default(client):
    found = client.embeddings.create(model="chatty", input=["the cat", "the dog"])
    plain = client.embeddings.create(model="chatty", input=["the cat", "the dog"], encoding_format="float")
    raw = client.embeddings.with_raw_response.create(model="chatty", input="the cat", encoding_format="base64")
    text = json.loads(raw.text if isinstance(raw.text, str) else raw.text())["data"][0]["embedding"]
    vector = list(struct.unpack("<32f", base64.b64decode(text)))
    assert found.data[0].embedding == pytest.approx(vector)
    assert [each.embedding for each in found.data] == [pytest.approx(each.embedding) for each in plain.data]


def test_openai_responds_and_streams_the_same(client):
    asked = {"model": "chatty", "input": "the cat", "max_output_tokens": 10, "temperature": 0, "store": False}
    whole = client.responses.create(**asked)
    events = list(client.responses.create(**asked, stream=True))
    assert "".join(event.delta for event in events if event.type == "response.output_text.delta") == whole.output_text
    assert events[-1].response.output_text == whole.output_text
    assert events[-1].response.usage.output_tokens == whole.usage.output_tokens
    tool = {"type": "function", "name": "clock", "parameters": CLOCK["function"]["parameters"], "strict": True}
    (item,) = client.responses.create(model="chatty", input="the cat", tools=[tool], tool_choice="required").output
    assert (item.type, item.name) == ("function_call", "clock")
    # Its helper wants an answer that was not cut.
    with client.responses.stream(model="chatty", input="the cat", tools=[tool], tool_choice="required") as stream:
        assert json.loads(stream.get_final_response().output[0].arguments)["zone"] in ("UTC", "CET")


def test_openai_raises_the_error_that_fits(openai, client, server: Running):
    with pytest.raises(openai.BadRequestError) as bad:
        client.completions.create(model="chatty", prompt="a", max_tokens=10**6)
    assert (bad.value.code, bad.value.param, bad.value.type) == ("context_length_exceeded", "max_tokens", "exceed_context_size_error")  # fmt: skip
    with pytest.raises(openai.NotFoundError) as missing:
        client.completions.create(model="gpt-4o", prompt="a")
    assert missing.value.code == "model_not_found"
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()
    with pytest.raises(openai.BadRequestError):
        list(client.chat.completions.create(model="chatty", messages=[], stream=True))
    worker, queue = server.client, server.client.config
    worker.config = dataclasses.replace(queue, limits=dataclasses.replace(queue.limits, queue=-(10**6)))
    try:
        with pytest.raises(openai.RateLimitError) as busy:
            client.completions.create(model="chatty", prompt="a")
    finally:
        worker.config = queue
    assert int(busy.value.response.headers["retry-after"]) >= 1
    assert client.completions.create(model="chatty", prompt="a", max_tokens=1).id.startswith("cmpl-")


def test_openai_raises_what_comes_after_the_head_of_a_stream(openai, client, server: Running, monkeypatch):
    runner = server.client.worker.engine.runner
    decode, steps = runner.decode, iter(range(10**6))

    def failing(*given: Any) -> Any:
        if next(steps) >= 3:
            raise RuntimeError("broken")
        return decode(*given)

    monkeypatch.setattr(runner, "decode", failing)
    with pytest.raises(openai.APIError, match="the engine failed"):
        list(
            client.completions.create(
                model="chatty", prompt="a", max_tokens=30, stream=True, extra_body={"ignore_eos": True}
            )
        )


def test_llm_completes_and_chats(server: Running, tmp_path: Path):
    pytest.importorskip("llm")
    entries = [
        {"model_id": "ours", "model_name": "chatty", "api_base": f"{server.base_url}/v1", "api_key_name": "ours", "supports_schema": True, "supports_tools": True},
        {"model_id": "ours-text", "model_name": "chatty", "api_base": f"{server.base_url}/v1", "api_key_name": "ours", "completion": True},
    ]  # fmt: skip
    # YAML reads JSON.
    (tmp_path / "extra-openai-models.yaml").write_text(json.dumps(entries))
    (tmp_path / "keys.json").write_text(json.dumps({"ours": KEY}))
    environment = os.environ | {"LLM_USER_PATH": str(tmp_path)}

    def run(*words: str) -> str:
        command = [sys.executable, "-m", "llm", *words]
        return subprocess.run(command, env=environment, capture_output=True, check=True, text=True).stdout

    chat = server.post("/v1/chat/completions", {"messages": [USER], "max_tokens": 8, "temperature": 0}, Authorization=f"Bearer {KEY}")  # fmt: skip
    said = chat.data["choices"][0]["message"]["content"]
    for more in ((), ("--no-stream",)):
        out = run("-m", "ours", "the cat", "-o", "max_tokens", "8", "-o", "temperature", "0", *more)
        assert out.rstrip("\n") == said.rstrip("\n")
    assert run("-m", "ours-text", "the cat", "-o", "max_tokens", "3")
    assert json.loads(run("-m", "ours", "the cat", "--schema", json.dumps(CLOCK["function"]["parameters"])))["zone"]


def test_harness_over_http_has_the_figures_of_our_own_adapter(tmp_path: Path):
    pytest.importorskip("lm_eval")
    pytest.importorskip("tenacity")
    from tests.serve.harness_http import compare

    words = train_bpe([TEXT], 300, ("<end>",))
    # Nothing is put before a text over HTTP, so this model has no bos.
    spec = af.spec(SPEC | {"vocab": words.vocab, "context": 512, "ids": {"eos": [0]}})
    af.save(randomise(af.build(spec), 5).eval(), tmp_path / "model")
    words.save(tmp_path / "model")
    found = compare(tmp_path / "model", tmp_path, batch_invariant=True)
    # Whoever else is there, every bit is the same.
    assert found.many == found.single
    assert found.many.greedy == found.ours.greedy
    assert found.many.answers == found.ours.answers
    assert found.many.furthest(found.ours) < 1e-4
    assert found.many.figures.keys() == found.ours.figures.keys()
    for name, value in found.many.figures.items():
        if "acc" in name or "match" in name:
            assert value == found.ours.figures[name]
        if "bits_per_byte" in name:
            assert abs(value - found.ours.figures[name]) < 1e-6
