"""Texts to tokens and back over HTTP, by the tokenizer's own word."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from anyformer.data.tokenizer import Tokenizer, tokenizer
from tests.serve.running import Running, config_of, serving_engine

MESSAGES = [{"role": "user", "content": "the cat"}, {"role": "assistant", "content": "sat"}]
RENDERED = "[user]the cat\n[assistant]sat\n[assistant]"
BOS = 0


@pytest.fixture(scope="module")
def server(model_folder) -> Iterator[Running]:
    with serving_engine(config_of(model=str(model_folder))) as running:
        yield running


@pytest.fixture(scope="module")
def own(model_folder) -> Tokenizer:
    return tokenizer(model_folder)


def tokens_of(server: Running, **body: Any) -> Any:
    answer = server.post("/tokenize", body)
    assert answer.status == 200, answer.body
    assert set(answer.data) == {"tokens", "count", "max_model_len"}
    assert answer.data["count"] == len(answer.data["tokens"])
    assert answer.data["max_model_len"] == 256
    return answer.data["tokens"]


def test_tokenize_content_has_no_special_token_unless_asked(server: Running, own: Tokenizer):
    plain = own.encode("the cat sat")
    assert tokens_of(server, content="the cat sat") == plain
    assert tokens_of(server, content="the cat sat", add_special=True) == [BOS, *plain]
    assert tokens_of(server, content="the cat sat", add_special_tokens=True) == [BOS, *plain]


def test_tokenize_prompt_is_as_completions_read_it(server: Running, own: Tokenizer):
    plain = own.encode("the cat sat")
    assert tokens_of(server, prompt="the cat sat") == [BOS, *plain]
    assert tokens_of(server, prompt="the cat sat", add_special_tokens=False) == plain
    body = {"prompt": "the cat sat", "max_tokens": 1}
    assert server.post("/v1/completions", body).data["usage"]["prompt_tokens"] == 1 + len(plain)


def test_tokenize_of_an_empty_text_is_empty(server: Running):
    assert tokens_of(server, content="") == []
    assert tokens_of(server, content="", add_special=True) == [BOS]


@pytest.mark.parametrize("special", [True, False])
def test_tokenize_takes_spelled_special_tokens_as_it_is_told(server: Running, own: Tokenizer, special: bool):
    found = tokens_of(server, content="cat<|endoftext|>cat", parse_special=special)
    assert (BOS in found) == special
    assert own.decode(found, specials=True) == "cat<|endoftext|>cat"


def test_tokenize_with_pieces_spells_every_byte(server: Running):
    text = "the cat \u5abd \U0001f917\n"
    pieces = tokens_of(server, content=text, with_pieces=True)
    raw = [each["piece"].encode() if isinstance(each["piece"], str) else bytes(each["piece"]) for each in pieces]
    assert b"".join(raw) == text.encode()
    assert any(isinstance(each["piece"], list) for each in pieces)
    assert [each["id"] for each in pieces] == tokens_of(server, content=text)


def test_tokenize_messages_are_those_of_a_chat(server: Running):
    found = tokens_of(server, messages=MESSAGES)
    body = {"messages": MESSAGES, "max_tokens": 1}
    assert server.post("/v1/chat/completions", body).data["usage"]["prompt_tokens"] == len(found)
    for path in ("/v1/chat/completions/input_tokens", "/chat/completions/input_tokens"):
        assert server.post(path, body).data == {"object": "response.input_tokens", "input_tokens": len(found)}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({}, "content"),
        ({"content": "a", "prompt": "a"}, "content"),
        ({"content": "a", "messages": MESSAGES}, "content"),
        ({"content": "a", "add_special": True, "add_special_tokens": False}, "add_special"),
        ({"content": 5}, "content"),
        ({"content": "a", "text": "b"}, "text"),
    ],
)
def test_tokenize_refuses_what_is_not_clear(server: Running, body: dict[str, Any], param: str):
    answer = server.post("/tokenize", body)
    assert (answer.status, answer.error["param"]) == (400, param)


@pytest.mark.parametrize(
    "body", [{"prompt": " the cat" * 20_000}, {"content": " the cat" * 20_000, "parse_special": False}]
)
def test_tokenize_counts_a_text_longer_than_any_prompt(server: Running, body: dict[str, Any]):
    answer = server.post("/tokenize", body)
    assert answer.status == 200
    assert answer.data["count"] == len(answer.data["tokens"]) > answer.data["max_model_len"]


def test_detokenize_gives_the_text_back(server: Running):
    text = "the cat \u5abd sat"
    answer = server.post("/detokenize", {"tokens": tokens_of(server, content=text)})
    assert answer.data == {"content": text, "prompt": text}
    assert server.post("/detokenize", {"tokens": [BOS]}).data["content"] == "<|endoftext|>"
    assert server.post("/detokenize", {"tokens": []}).data["content"] == ""


@pytest.mark.parametrize("bad", [-1, 10**6, 2**63, True, 1.5, "1"])
def test_detokenize_refuses_what_is_no_token(server: Running, bad: Any):
    answer = server.post("/detokenize", {"tokens": [1, bad]})
    assert (answer.status, answer.error["param"]) == (400, "tokens[1]")


def test_tokenizer_info_names_what_clients_write_chats_with(server: Running):
    found = server.get("/tokenizer_info").data
    assert set(found) == {"eos_token", "bos_token", "pad_token", "chat_template"}
    assert found["bos_token"] == "<|endoftext|>"
    assert "add_generation_prompt" in found["chat_template"]


def test_apply_template_shows_what_the_model_reads(server: Running, own: Tokenizer):
    found = server.post("/apply-template", {"messages": MESSAGES}).data
    assert found["prompt"] == RENDERED
    assert own.decode(found["tokens"], specials=True) == RENDERED
    assert [each["id"] for each in found["pieces"]] == found["tokens"]
    assert "".join(each["piece"] for each in found["pieces"]) == RENDERED
    assert not any(each["special"] for each in found["pieces"])
    bare = server.post("/apply-template", {"messages": MESSAGES, "add_generation_prompt": False}).data
    assert bare["prompt"] == RENDERED.removesuffix("[assistant]")
    begun = server.post("/apply-template", {"messages": MESSAGES, "continue_final_message": True}).data
    assert begun["prompt"] == "[user]the cat\n[assistant]sat"


def test_apply_template_of_special_tokens_in_a_message_keeps_them_text(server: Running):
    said = [{"role": "user", "content": "<|endoftext|>"}]
    found = server.post("/apply-template", {"messages": said}).data
    assert BOS not in found["tokens"]
    assert "<|endoftext|>" in found["prompt"]


def test_apply_template_of_the_operator_s_file_knows_tokens_and_variables(serving, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text("{{ bos_token }}{% if enable_thinking %}thinks: {% endif %}{{ messages[0].content }}")
    said = {"messages": [{"role": "user", "content": "cat"}]}
    kwargs = (("enable_thinking", True),)
    with serving(chat_template=str(file), chat_template_kwargs=kwargs) as server:
        found = server.post("/apply-template", said).data
        assert found["prompt"] == "<|endoftext|>thinks: cat"
        assert found["pieces"][0] == {"id": BOS, "piece": "<|endoftext|>", "special": True}
        off = said | {"chat_template_kwargs": {"enable_thinking": False}}
        assert server.post("/apply-template", off).data["prompt"] == "<|endoftext|>cat"


def test_apply_template_tells_no_field_of_a_tool_that_is_not_there(serving, tmp_path):
    file = tmp_path / "template.jinja"
    file.write_text(
        "{% for tool in tools %}<tool_call>{{ tool | tojson }}</tool_call>{% endfor %}{{ messages[0].content }}"
    )
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object", "default": None}}}
    with serving(chat_template=str(file)) as server:
        answer = server.post("/apply-template", {"messages": [{"role": "user", "content": "cat"}], "tools": [tool]})
        assert answer.status == 200, answer.body
        shown = answer.data["prompt"].removeprefix("<tool_call>").partition("</tool_call>")[0]
        assert json.loads(shown) == tool
