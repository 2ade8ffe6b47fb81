"""Anthropic's API: the answers of /v1/chat/completions in other words, as a whole and in events."""

import json

import pytest

from anyformer.serve.api.messages import messages_of
from tests.serve.running import config_of, serving_engine

TOOL = {"name": "add", "description": "adds", "input_schema": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"], "additionalProperties": False}}  # fmt: skip
ASKED = {"max_tokens": 12, "temperature": 0, "messages": [{"role": "user", "content": "the cat"}]}


@pytest.fixture(scope="module")
def running(chat_folder):
    with serving_engine(config_of(model=str(chat_folder))) as found:
        yield found


def events_of(answer) -> list[dict]:
    assert answer.headers["content-type"].startswith("text/event-stream")
    frames = [frame.split("\n") for frame in answer.body.decode().split("\n\n") if frame and not frame.startswith(":")]
    for kind, data in frames:
        assert kind == f"event: {json.loads(data.removeprefix('data: '))['type']}"
    return [json.loads(data.removeprefix("data: ")) for _, data in frames]


def test_message_says_what_the_chat_endpoint_says(running):
    chat = running.post("/v1/chat/completions", ASKED).data
    found = running.post("/v1/messages", ASKED).data
    assert found["content"] == [{"type": "text", "text": chat["choices"][0]["message"]["content"]}]
    assert found["stop_reason"] == {"length": "max_tokens", "stop": "end_turn"}[chat["choices"][0]["finish_reason"]]
    assert found["usage"]["output_tokens"] == chat["usage"]["completion_tokens"]
    usage = found["usage"]
    assert usage["input_tokens"] + usage["cache_read_input_tokens"] == chat["usage"]["prompt_tokens"]


def test_message_streamed_adds_up_to_the_whole(running):
    whole = running.post("/v1/messages", ASKED).data
    events = events_of(running.post("/v1/messages", ASKED | {"stream": True}))
    kinds = [each["type"] for each in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    text = "".join(each["delta"]["text"] for each in events if each["type"] == "content_block_delta")
    assert text == whole["content"][0]["text"]
    assert events[-2]["delta"] == {"stop_reason": whole["stop_reason"], "stop_sequence": whole["stop_sequence"]}
    assert events[-2]["usage"]["output_tokens"] == whole["usage"]["output_tokens"]


def test_required_tool_is_called_with_what_its_schema_allows(running):
    asked = ASKED | {
        "max_tokens": 200,
        "tools": [TOOL],
        "tool_choice": {"type": "tool", "name": "add"},
        "temperature": 1.0,
    }
    found = running.post("/v1/messages", asked).data
    if found["stop_reason"] == "tool_use":
        (block,) = [each for each in found["content"] if each["type"] == "tool_use"]
        assert block["name"] == "add"
        assert isinstance(block["input"]["a"], int)
    else:
        # Digits of a random model may have no end.
        assert found["stop_reason"] == "max_tokens"


def test_conversation_with_calls_and_results_is_read_as_chat_reads_it(running):
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "the"}, {"type": "text", "text": " cat"}]},
        {"role": "assistant", "content": [{"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}}]},
        {"role": "user", "content": [{"type": "text", "text": "so:"}, {"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
    ]  # fmt: skip
    plain = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "the cat"},
        {"role": "assistant", "content": "", "tool_calls": [{"id": "t1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}]},
        {"role": "user", "content": "so:"},
        {"role": "tool", "tool_call_id": "t1", "content": "2"},
    ]  # fmt: skip
    counted = running.post("/v1/messages/count_tokens", {"messages": messages, "system": "be brief"}).data
    rendered = running.post("/apply-template", {"messages": plain}).data
    assert counted == {"input_tokens": len(rendered["tokens"])}


@pytest.mark.parametrize("last", [True, False])
def test_results_and_texts_stay_in_the_order_of_their_blocks(last):
    result = {"type": "tool_result", "tool_use_id": "t1", "content": "RESULT", "is_error": False}
    text = {"type": "text", "text": "WORDS"}
    tool, user = (
        {"role": "tool", "tool_call_id": "t1", "content": "RESULT"},
        {"role": "user", "content": "WORDS"},
    )
    content = [result, result, text] if last else [text, result, result, {"type": "text", "text": ""}]
    found = messages_of({"system": None, "messages": [{"role": "user", "content": content}]})
    assert found == ([tool, tool, user] if last else [user, tool, tool])


def test_thinking_disabled_is_taken_where_the_template_knows_none(serving):
    with serving() as plain:
        found = plain.post("/v1/messages", ASKED | {"thinking": {"type": "disabled"}})
        assert (found.status, found.data["content"]) == (200, plain.post("/v1/messages", ASKED).data["content"])
        refused = plain.post("/v1/messages", ASKED | {"thinking": {"type": "enabled", "budget_tokens": 9}})
        assert (refused.status, refused.error["param"]) == (400, "thinking")


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
@pytest.mark.parametrize(
    "body", [{"messages": []}, {"messages": ASKED["messages"], "max_tokens": 1, "model": "none"}, b"{"]
)
def test_errors_have_the_type_of_the_whole_answer(running, path, body):
    if path.endswith("tokens") and isinstance(body, dict):
        body = {name: value for name, value in body.items() if name != "max_tokens"}
    found = running.post(path, body)
    assert found.status in (400, 404)
    assert (found.data["type"], sorted(found.data)) == ("error", ["error", "type"])
    assert running.post("/v1/chat/completions", {}).data.keys() == {"error"}


def test_image_is_refused_and_named(running):
    block = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA"}}
    found = running.post("/v1/messages", ASKED | {"messages": [{"role": "user", "content": [block]}]})
    assert found.status == 400
    assert found.error["param"] == "messages[0].content[0].type"
    assert "image input is not supported" in found.error["message"]


def test_max_tokens_missing_is_refused(running):
    found = running.post("/v1/messages", {"messages": ASKED["messages"]})
    assert (found.status, found.error["param"]) == (400, "max_tokens")
    running.engine_idle()
