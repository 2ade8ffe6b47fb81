"""POST /v1/responses: the answers of /v1/chat/completions in the words of the Responses API."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.asking import assert_alike, assert_unharmed
from tests.serve.running import Answer, Running, config_of, serving_engine
from tests.serve.test_chat import CLOCK, USER, WEATHER, said_by

PATH, CHAT = "/v1/responses", "/v1/chat/completions"
TOOLS = [{"type": "function", **tool["function"]} for tool in (WEATHER, CLOCK)]
CALL = '<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call>'


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Running]:
    with serving_engine(config_of(model=str(chat_folder), dtype="float64", max_num_seqs=8)) as running:
        yield running
        assert_unharmed(running)


def ask(running: Running, **body: Any) -> dict[str, Any]:
    answer = running.post(PATH, {"input": "the cat"} | body)
    assert answer.status == 200, answer.body
    return answer.data


def events_of(answer: Answer) -> list[dict[str, Any]]:
    """The events of a stream, each of which says its own name; their numbers have no gap."""
    assert (answer.status, answer.headers["content-type"]) == (200, "text/event-stream; charset=utf-8"), answer.body
    frames = [frame.split("\n") for frame in answer.body.decode().split("\n\n")[:-1]]
    found = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in found]
    assert [event["sequence_number"] for event in found] == list(range(len(found)))
    return found


def without_ids(response: dict[str, Any]) -> dict[str, Any]:
    left = {name: value for name, value in response.items() if name not in ("id", "created_at")}
    return left | {"output": [{k: v for k, v in item.items() if k not in ("id", "call_id")} for item in left["output"]]}


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ({"input": "the cat"}, {"messages": [USER]}),
        ({"input": [USER]}, {"messages": [USER]}),
        ({"input": [{"role": "user", "content": [{"type": "input_text", "text": "the cat"}]}]}, {"messages": [USER]}),
        ({"input": "the cat", "instructions": "be"}, {"messages": [{"role": "system", "content": "be"}, USER]}),
        (
            {"input": [USER, {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "sat"}]}, USER]},
            {"messages": [USER, {"role": "assistant", "content": "sat"}, USER]},
        ),
        ({"top_p": 0.5, "seed": 9, "temperature": 1.5}, {"messages": [USER], "top_p": 0.5, "seed": 9, "temperature": 1.5}),
    ],
)  # fmt: skip
def test_responses_say_what_chat_says(server: Running, given: dict[str, Any], asked: dict[str, Any]):
    usual = {"temperature": 0}
    chat = server.post(CHAT, {"max_tokens": 9} | usual | asked).data
    made = ask(server, **{"max_output_tokens": 9} | usual | given)
    (item,) = made["output"]
    (part,) = item["content"]
    assert part["text"] == chat["choices"][0]["message"]["content"]
    length = chat["choices"][0]["finish_reason"] == "length"
    assert made["status"] == item["status"] == ("incomplete" if length else "completed")
    assert made["incomplete_details"] == ({"reason": "max_output_tokens"} if length else None)
    assert made["usage"]["input_tokens"] == chat["usage"]["prompt_tokens"]
    assert made["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    assert (made["id"][:5], item["id"][:4], made["object"]) == ("resp_", "msg_", "response")


@pytest.mark.parametrize(
    "body",
    [
        {"max_output_tokens": 8, "seed": 3}, {"max_output_tokens": 40, "seed": 0}, {"max_output_tokens": 5, "top_logprobs": 3, "seed": 1},
        {"text": {"format": {"type": "json_schema", "name": "x", "schema": WEATHER["function"]["parameters"]}}, "seed": 1},
        {"tools": TOOLS, "tool_choice": "required", "seed": 2},
        {"tools": TOOLS, "tool_choice": {"type": "function", "name": "clock"}, "seed": 2},
        {"tools": TOOLS, "max_output_tokens": 6, "seed": 5},
    ],
)  # fmt: skip
def test_responses_streamed_end_with_what_comes_at_once(server: Running, body: dict[str, Any]):
    whole = ask(server, **body)
    events = events_of(server.post(PATH, {"input": "the cat", "stream": True} | body))
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds[:2] == ["created", "in_progress"]
    assert kinds[-1] == whole["status"]
    last = events[-1]["response"]
    for each in (whole, last):
        each["usage"].pop("input_tokens_details")
    assert_alike(without_ids(last), without_ids(whole))
    assert {event["response"]["id"] for event in events if "response" in event} == {last["id"]}
    text = "".join(event["delta"] for event in events if event["type"] == "response.output_text.delta")
    said = [part["text"] for item in last["output"] if item["type"] == "message" for part in item["content"]]
    assert [text] * len(said) == said
    added = [event["item"]["id"] for event in events if event["type"] == "response.output_item.added"]
    ended = [event["item"] for event in events if event["type"] == "response.output_item.done"]
    assert added == [item["id"] for item in ended] == [item["id"] for item in last["output"]]
    assert ended == last["output"]
    indices = [event["output_index"] for event in events if event["type"] == "response.output_item.added"]
    assert indices == list(range(len(indices)))


def test_responses_include_log_probabilities_where_asked(server: Running):
    usual = {"temperature": 0, "max_output_tokens": 4}
    named = ask(server, include=["message.output_text.logprobs"], **usual)["output"][0]["content"][0]
    counted = ask(server, top_logprobs=0, **usual)["output"][0]["content"][0]
    assert named["logprobs"]
    assert_alike(named, counted)
    for include in (None, []):
        assert ask(server, include=include, **usual)["output"][0]["content"][0]["logprobs"] == []


def test_responses_tell_which_items_they_know(server: Running):
    answer = server.post(PATH, {"input": [{"type": "computer_call"}]})
    assert "'message', 'function_call', 'function_call_output'" in answer.error["message"]


def test_responses_with_a_required_call_have_a_function_call(server: Running):
    made = ask(server, tools=TOOLS, tool_choice="required", seed=1)
    (item,) = made["output"]
    assert (item["type"], item["status"], item["call_id"][:5]) == ("function_call", "completed", "call_")
    assert next(iter(json.loads(item["arguments"]).values())) in ("Paris", "Rome", "UTC", "CET")


def test_responses_take_calls_and_their_answers_back(server: Running):
    made = ask(server, tools=TOOLS, tool_choice="required", seed=1)["output"][0]
    back = [USER, made, {"type": "function_call_output", "call_id": made["call_id"], "output": "noon"}]
    call = {
        "id": made["call_id"],
        "type": "function",
        "function": {"name": made["name"], "arguments": made["arguments"]},
    }
    chat = [USER, {"role": "assistant", "tool_calls": [call]}, {"role": "tool", "tool_call_id": made["call_id"], "content": "noon"}]  # fmt: skip
    usual = {"temperature": 0}
    told = server.post(CHAT, {"messages": chat, "max_tokens": 5} | usual).data
    found = ask(server, input=back, max_output_tokens=5, **usual)
    assert found["usage"]["input_tokens"] == told["usage"]["prompt_tokens"]
    assert found["output"][0]["content"][0]["text"] == told["choices"][0]["message"]["content"]


def test_responses_read_the_calls_that_chat_reads(server: Running):
    # Responses have no field that leaves the model one text, so both are compared on what chat alone can be told.
    chat = server.post(CHAT, {"messages": [USER], "tools": [WEATHER], **said_by(CALL)}).data
    (call,) = chat["choices"][0]["message"]["tool_calls"]
    made = ask(server, tools=TOOLS[:1], tool_choice="required", seed=4)["output"][0]
    assert made["name"] == call["function"]["name"]
    assert json.loads(made["arguments"]).keys() == json.loads(call["function"]["arguments"]).keys()


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"store": True}, "store"), ({"previous_response_id": "resp_1"}, "previous_response_id"), ({"background": True}, "background"),
        ({"conversation": "x"}, "conversation"), ({"messages": []}, "messages"), ({"max_tokens": 3}, "max_tokens"),
        ({"tools": [{"type": "web_search"}]}, "tools[0].type"), ({"input": []}, "input"), ({"truncation": "auto"}, "truncation"),
        ({"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "http://169.254.169.254/"}]}]}, "input[0].content[0].type"),
        ({"max_output_tokens": 10**6}, "max_output_tokens"), ({"max_output_tokens": 0}, "max_output_tokens"), ({"include": ["reasoning.encrypted_content"]}, "include[0]"),
        ({"input": [USER, {"type": "reasoning", "summary": []}]}, "input[1].type"), ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input[0].type"),
        ({"input": [{"role": "user"}]}, "input[0].content"),
    ],
)  # fmt: skip
def test_responses_refuse_what_they_do_not_have_by_name(server: Running, body: dict[str, Any], param: str):
    for stream in (False, True):
        answer = server.post(PATH, {"input": "the cat", "stream": stream} | body)
        assert (answer.status, answer.error["param"]) == (400, param)


def test_responses_that_fail_after_their_head_say_so_in_an_event(server: Running, monkeypatch):
    engine = server.client.worker.engine
    steps = iter(range(10**6))
    decode = engine.runner.decode

    def failing(*given: Any) -> Any:
        if next(steps) >= 3:
            raise RuntimeError("secret words")
        return decode(*given)

    monkeypatch.setattr(engine.runner, "decode", failing)
    answer = server.post(PATH, {"input": "the cat", "stream": True, "temperature": 0, "max_output_tokens": 40})
    monkeypatch.undo()
    events = events_of(answer)
    assert events[-1]["type"] == "response.failed"
    assert events[-1]["response"]["error"]["code"] == "engine_failed"
    assert b"secret" not in answer.body
    assert ask(server, max_output_tokens=3)["usage"]["output_tokens"] <= 3
