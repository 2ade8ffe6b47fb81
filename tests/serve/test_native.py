"""llama.cpp's POST /completion, by hand from the model's own logits."""

import json
import math
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data.tokenizer import Tokenizer, tokenizer
from tests.serve.running import Running, config_of, serving_engine

TEXT = "the cat sat on"
KEYS = {
    "index", "content", "tokens", "id_slot", "stop", "model", "tokens_predicted", "tokens_evaluated", "generation_settings",
    "prompt", "has_new_line", "truncated", "stop_type", "stopping_word", "tokens_cached", "timings",
}  # fmt: skip
TIMINGS = {
    "cache_n", "prompt_n", "prompt_ms", "prompt_per_token_ms", "prompt_per_second", "predicted_n", "predicted_ms",
    "predicted_per_token_ms", "predicted_per_second",
}  # fmt: skip


@pytest.fixture(scope="module")
def server(model_folder) -> Iterator[Running]:
    with serving_engine(config_of(model=str(model_folder), enable_prefix_caching=False)) as running:
        yield running
        running.engine_idle()


@pytest.fixture(scope="module")
def own(model_folder) -> Tokenizer:
    return tokenizer(model_folder)


@pytest.fixture(scope="module")
def ids(own: Tokenizer) -> list[int]:
    return [0, *own.encode(TEXT)]


@pytest.fixture(scope="module")
def model(model_folder):
    return af.load(model_folder, dtype=torch.float32).eval()


def complete(server: Running, **body: Any) -> Any:
    answer = server.post("/completion", body)
    assert answer.status == 200, answer.body
    return answer.data


def events(server: Running, **body: Any) -> list[dict[str, Any]]:
    answer = server.post("/completion", body | {"stream": True})
    assert answer.status == 200, answer.body
    assert answer.body.endswith(b"\n\n")
    return [json.loads(each.removeprefix("data: ")) for each in answer.body.decode().split("\n\n")[:-1]]


def test_completion_is_what_generate_says(server: Running, own: Tokenizer, ids, model):
    found = complete(server, prompt=TEXT, n_predict=12, temperature=0, return_tokens=True)
    wanted = af.generate(model, torch.tensor([ids]), max_new_tokens=12, stop=())[0, len(ids) :].tolist()
    assert set(found) == KEYS
    assert found["tokens"] == wanted
    assert found["content"] == own.decode([*ids, *wanted])[len(TEXT) :]
    assert (found["tokens_evaluated"], found["tokens_predicted"]) == (len(ids), 12)
    assert (found["stop"], found["stop_type"], found["stopping_word"], found["truncated"]) == (True, "limit", "", False)
    assert found["prompt"] == own.decode(ids, specials=True)
    assert found["has_new_line"] == ("\n" in found["content"])
    assert found["generation_settings"] | {"n_predict": 12, "temperature": 0.0} == found["generation_settings"]
    assert complete(server, prompt=TEXT, n_predict=1)["tokens"] == []


def test_completion_timings_are_finite_and_count_tokens(server: Running, ids):
    for count in (0, 1, 6):
        times = complete(server, prompt=TEXT, n_predict=count, ignore_eos=True)["timings"]
        assert set(times) == TIMINGS
        assert (times["cache_n"], times["prompt_n"], times["predicted_n"]) == (0, len(ids), count)
        assert all(value >= 0 and math.isfinite(value) for value in times.values())
        # The first new token comes with the prompt and is no step.
        assert (times["predicted_per_second"] > 0) == (count > 1)


def test_completion_prompts_come_in_every_form(server: Running, own: Tokenizer, ids):
    given = {"n_predict": 4, "temperature": 0}
    whole = complete(server, prompt=TEXT, **given)
    for one in (ids, {"prompt_string": TEXT}, [0, TEXT], [*ids[:2], own.decode(ids[2:])]):
        assert complete(server, prompt=one, **given)["content"] == whole["content"], one
    many = complete(server, prompt=[TEXT, ids, {"prompt_string": TEXT}, "a dog"], **given)
    assert [each["index"] for each in many] == [0, 1, 2, 3]
    assert [each["content"] for each in many[:3]] == [whole["content"]] * 3
    assert many[3]["tokens_evaluated"] == 1 + len(own.encode("a dog"))
    assert [each["content"] for each in complete(server, prompt=[TEXT], **given)] == [whole["content"]]


@pytest.mark.parametrize(
    ("prompt", "param"),
    [
        ([], "prompt"),
        ([[]], "prompt[0]"),
        ([1, -1], "prompt[1]"),
        ([1, True], "prompt[1]"),
        ([1, 1.5], "prompt[1]"),
        ([1, 2**63], "prompt[1]"),
        (["a", [1, {}]], "prompt[1][1]"),
        (5, "prompt"),
        (None, "prompt"),
        (["a"] * 65, "prompt"),
        ({"prompt_string": "a", "multimodal_data": ["x"]}, "prompt.multimodal_data"),
        ({"text": "a"}, "prompt.text"),
        ({}, "prompt.prompt_string"),
    ],
)
def test_completion_refuses_what_is_no_prompt(server: Running, prompt: Any, param: str):
    answer = server.post("/completion", {"prompt": prompt})
    assert (answer.status, answer.error["param"]) == (400, param)


def test_completion_probabilities_are_the_model_s_own(server: Running, own: Tokenizer, ids, model):
    found = complete(
        server, prompt=TEXT, n_predict=3, temperature=0, n_probs=4, return_tokens=True, logit_bias=[[9, 5]]
    )
    row = torch.tensor([[*ids, *found["tokens"]]])
    with torch.no_grad():
        logprobs = model(row).logits[0, len(ids) - 1 : -1].log_softmax(-1)
    assert [each["id"] for each in found["completion_probabilities"]] == found["tokens"]
    for each, own_V in zip(found["completion_probabilities"], logprobs, strict=True):
        assert each["logprob"] == pytest.approx(float(own_V[each["id"]]), abs=1e-4)
        assert bytes(each["bytes"]).decode("utf-8", "replace") == each["token"]
        top = own_V.topk(4)
        assert [one["id"] for one in each["top_logprobs"]] == top.indices.tolist()
        assert [one["logprob"] for one in each["top_logprobs"]] == pytest.approx(top.values.tolist(), abs=1e-4)


def test_completion_probabilities_after_sampling_are_those_of_the_draw(server: Running, ids, model):
    given = {"prompt": TEXT, "n_predict": 4, "n_probs": 10, "post_sampling_probs": True, "return_tokens": True}
    found = complete(server, temperature=0.5, top_k=3, seed=5, logit_bias=[[9, 5]], **given)
    row = torch.tensor([[*ids, *found["tokens"]]])
    with torch.no_grad():
        logits = model(row).logits[0, len(ids) - 1 : -1].clone()
    logits[:, 9] += 5
    for each, own_V in zip(found["completion_probabilities"], logits, strict=True):
        three = (own_V / 0.5).topk(3)
        probs = three.values.softmax(-1)
        assert [one["id"] for one in each["top_probs"]] == three.indices.tolist()
        assert [one["prob"] for one in each["top_probs"]] == pytest.approx(probs.tolist(), abs=1e-4)
        assert each["prob"] == pytest.approx(float(probs[three.indices.tolist().index(each["id"])]), abs=1e-4)
    greedy = complete(server, temperature=0, **given)["completion_probabilities"]
    assert [(each["prob"], len(each["top_probs"])) for each in greedy] == [(1.0, 1)] * 4


def test_completion_stream_is_the_whole_answer_in_pieces(server: Running):
    given = {"prompt": TEXT, "n_predict": 9, "seed": 3, "n_probs": 2, "return_tokens": True}
    whole, parts = complete(server, **given), events(server, **given)
    *steps, last = parts
    assert [each["stop"] for each in parts] == [False] * len(steps) + [True]
    assert "".join(each["content"] for each in parts) == whole["content"]
    assert [token for each in steps for token in each["tokens"]] == whole["tokens"]
    probabilities = [one for each in steps for one in each["completion_probabilities"]]
    assert probabilities == whole["completion_probabilities"]
    assert set(last) == KEYS | {"completion_probabilities"}
    assert (last["content"], last["tokens"]) == ("", [])
    assert last["tokens_predicted"] == whole["tokens_predicted"]
    assert b"[DONE]" not in server.post("/completion", given | {"stream": True}).body


def test_completion_stream_of_several_prompts_keeps_them_apart(server: Running):
    given = {"prompt": [TEXT, "a dog"], "n_predict": 5, "temperature": 0}
    whole = complete(server, **given)
    for index in (0, 1):
        parts = [each for each in events(server, **given) if each["index"] == index]
        assert "".join(each["content"] for each in parts) == whole[index]["content"]
        assert [each["stop"] for each in parts].count(True) == 1


def test_completion_stream_tells_progress_and_times_if_asked(server: Running, ids):
    parts = events(server, prompt=TEXT, n_predict=3, return_progress=True, timings_per_token=True, ignore_eos=True)
    first, second = (each for each in parts if "prompt_progress" in each)
    assert (first["prompt_progress"]["processed"], first["timings"]["prompt_n"]) == (0, 0)
    assert second["prompt_progress"]["processed"] == second["prompt_progress"]["total"] == len(ids)
    assert [each["timings"]["predicted_n"] for each in parts[2:]] == [1, 2, 3, 3]
    assert not any("timings" in each for each in events(server, prompt=TEXT, n_predict=3)[:-1])


def test_completion_response_fields_are_picked_by_path(server: Running):
    found = complete(server, prompt=TEXT, n_predict=2, response_fields=["content", "generation_settings/n_predict", "no/such"])  # fmt: skip
    assert set(found) == {"content", "generation_settings/n_predict"}
    assert found["generation_settings/n_predict"] == 2
    assert set(complete(server, prompt=TEXT, n_predict=2, response_fields=[])) == KEYS


def test_completion_ends_before_a_stop_text(server: Running):
    whole = complete(server, prompt=TEXT, n_predict=20, temperature=0)["content"]
    word = whole[4:6]
    found = complete(server, prompt=TEXT, n_predict=20, temperature=0, stop=[word, "never said"])
    assert found["content"] == whole[: whole.index(word)]
    assert (found["stop_type"], found["stopping_word"]) == ("word", word)


def test_completion_bias_works_by_id_and_text_and_never(server: Running, own: Tokenizer):
    given = {"prompt": TEXT, "n_predict": 6, "temperature": 0, "return_tokens": True}
    usual = complete(server, **given)["tokens"]
    cat = own.encode(" cat")
    for bias in ([[cat[0], 100]], {str(cat[0]): 100}):
        assert set(complete(server, logit_bias=bias, **given)["tokens"]) == {cat[0]}
    assert len(cat) == 1
    for bias in ([[" cat", 100]], {" cat": 100}):
        assert set(complete(server, logit_bias=bias, **given)["tokens"]) == {cat[0]}
    found = complete(server, logit_bias=[[token, False] for token in set(usual)], **given)
    assert not set(found["tokens"]) & set(usual)
    assert {each["bias"] for each in found["generation_settings"]["logit_bias"]} == {None}


def test_completion_takes_as_many_tokens_as_there_is_room_for(server: Running, ids):
    found = complete(server, prompt=TEXT, n_predict=-1, ignore_eos=True)
    # The last new token is never read, so it needs no room.
    assert found["tokens_predicted"] == 256 - len(ids) + 1
    assert found["truncated"]
    answer = server.post("/completion", {"prompt": TEXT, "n_predict": 256})
    assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded")
    long = server.post("/completion", {"prompt": ids * 60, "n_predict": 1})
    assert (long.status, long.error["type"]) == (400, "exceed_context_size_error")


def test_completion_of_the_same_seed_is_the_same_and_minus_one_is_any(server: Running):
    given = {"prompt": TEXT, "n_predict": 24, "temperature": 1.0}
    assert complete(server, seed=1, **given)["content"] == complete(server, seed=1, **given)["content"]
    drawn = [complete(server, seed=-1, **given) for _ in range(3)]
    assert len({each["content"] for each in drawn}) > 1
    again = complete(server, seed=drawn[0]["generation_settings"]["seed"], **given)
    assert again["content"] == drawn[0]["content"]


def test_completion_is_ended_at_a_line_when_its_time_is_over(server: Running, own: Tokenizer):
    line = own.encode("\n")[0]
    given = {"prompt": TEXT, "n_predict": 200, "temperature": 0, "ignore_eos": True}
    late = complete(server, t_max_predict_ms=1, logit_bias=[[line, 100]], **given)
    assert (late["stop_type"], late["has_new_line"]) == ("limit", True)
    assert 1 <= late["tokens_predicted"] < 200
    # Without the end of a line there is no good place to stop.
    assert complete(server, t_max_predict_ms=1, logit_bias=[["\n", False], [line, False]], **given)["tokens_predicted"] == 200  # fmt: skip


@pytest.mark.parametrize(
    ("field", "value", "code"),
    [
        ("mirostat", 2, "unsupported_value"),
        ("xtc_probability", 0.5, "unsupported_value"),
        ("n_indent", 4, "unsupported_value"),
        ("image_data", [{"data": "x", "id": 1}], "unsupported_value"),
        ("samplers", ["top_k"], "unknown_parameter"),
        ("max_tokens", 5, "unknown_parameter"),
        ("n_probs", 21, "invalid_value"),
        ("repeat_penalty", 0, "invalid_value"),
        ("seed", 2**70, "invalid_value"),
        ("n_predict", -2, "invalid_value"),
        ("logit_bias", [[10**6, 1]], "invalid_value"),
        ("logit_bias", [["", 1]], "invalid_value"),
        ("logit_bias", [[1, True]], "invalid_type"),
        ("stop", [""], "invalid_value"),
    ],
)
def test_completion_refuses_what_it_does_not_have(server: Running, field: str, value: Any, code: str):
    answer = server.post("/completion", {"prompt": TEXT, field: value})
    assert (answer.status, answer.error["code"]) == (400, code)
    assert answer.error["param"].startswith(field)


def test_completion_takes_what_changes_nothing(server: Running):
    neutral = {
        "mirostat": 0, "mirostat_tau": 5, "xtc_probability": 0, "dry_multiplier": 0.0, "repeat_last_n": -1, "cache_prompt": False,
        "id_slot": 3, "dynatemp_range": 0, "top_n_sigma": -1, "n_keep": 0, "min_keep": 0, "dry_sequence_breakers": ["\n"],
    }  # fmt: skip
    given = {"prompt": TEXT, "n_predict": 5, "temperature": 0}
    assert complete(server, **given, **neutral)["content"] == complete(server, **given)["content"]


@pytest.mark.parametrize("last", [0, 64])
@pytest.mark.parametrize("penalty", [{}, {"repeat_penalty": 1.0}, {"repeat_penalty": 1, "presence_penalty": 0}])
def test_completion_without_a_penalty_takes_any_number_of_last_tokens(server: Running, penalty, last: int):
    given = {"prompt": TEXT, "n_predict": 5, "temperature": 0}
    found = complete(server, **given, **penalty, repeat_last_n=last, n_keep=-1, n_discard=3)
    assert found["content"] == complete(server, **given)["content"]


@pytest.mark.parametrize("penalty", [{"repeat_penalty": 1.1}, {"frequency_penalty": 0.5}])
def test_completion_with_a_penalty_for_the_last_tokens_only_is_refused(server: Running, penalty):
    (name,) = penalty
    answer = server.post("/completion", {"prompt": TEXT, "n_predict": 2, "repeat_last_n": 64, **penalty})
    assert (answer.status, answer.error["param"]) == (400, "repeat_last_n")
    assert name in answer.error["message"]
    complete(server, prompt=TEXT, n_predict=2, repeat_last_n=-1, **penalty)


@pytest.mark.parametrize("count", [257, 300, 100_000])
def test_completion_of_too_many_ids_is_told_how_many_there_are(server: Running, count: int):
    answer = server.post("/completion", {"prompt": [5] * count, "n_predict": 1})
    assert (answer.status, answer.error["n_prompt_tokens"], answer.error["param"]) == (400, count, "prompt")
    assert f"a prompt of {count:,} tokens" in answer.error["message"]
    texts = server.post("/completion", {"prompt": ["a", 5, *["b", ""] * count], "n_predict": 1})
    assert (texts.status, texts.error["n_prompt_tokens"] >= count + 2) == (400, True)


def test_completion_errors_name_the_fields_of_the_request(server: Running):
    long = server.post("/completion", {"prompt": TEXT, "n_predict": 10_000})
    assert (long.status, long.error["param"]) == (400, "n_predict")
    wrong = server.post("/completion", {"prompt": TEXT, "grammar": "root ::= ("})
    assert (wrong.status, wrong.error["param"]) == (400, "grammar")
    assert wrong.error["message"].startswith("grammar: ")
    assert "grammar: grammar" not in wrong.error["message"]
    schema = server.post("/completion", {"prompt": TEXT, "json_schema": {"type": 5}})
    assert (schema.status, schema.error["param"]) == (400, "json_schema")
    assert schema.error["message"].startswith("json_schema: ")


@pytest.mark.parametrize(
    ("asked", "param", "words"),
    [
        ({"response_format": {"type": "json_object"}, "min_tokens": 2}, "response_format", "min_tokens does not go together"),
        ({"structured_outputs": {"regex": "a("}}, "structured_outputs", "regex: "),
        ({"structured_outputs": {"choice": ["a", "the cat sat"]}, "max_tokens": 1}, "structured_outputs.choice", "more than max_tokens, 1"),
        ({"structured_outputs": {"choice": ["a", "b"]}, "min_tokens": 1}, "structured_outputs.choice", "min_tokens could bar"),
        ({"max_tokens": 10_000}, "max_tokens", "10,000 new ones"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("stream", [False, True])
def test_engine_s_refusal_names_the_fields_of_the_request(server: Running, asked, param: str, words: str, stream: bool):
    answer = server.post("/v1/completions", {"prompt": "the cat", "stream": stream} | asked)
    assert (answer.status, answer.error["param"]) == (400, param)
    assert words in answer.error["message"]
    for name in ("guided", "new_tokens", "choices"):
        assert name not in answer.error["message"]


def test_completion_follows_a_grammar_and_a_schema(server: Running):
    found = complete(server, prompt=TEXT, n_predict=8, grammar='root ::= "yes" | "no"')
    assert found["content"] in ("yes", "no")
    schema = {"type": "boolean"}
    assert isinstance(json.loads(complete(server, prompt=TEXT, n_predict=8, json_schema=schema)["content"]), bool)
    answer = server.post("/completion", {"prompt": TEXT, "grammar": "root ::= ", "json_schema": schema})
    assert (answer.status, answer.error["param"]) == (400, "grammar")


def test_completions_is_the_same_endpoint(server: Running):
    given = {"prompt": TEXT, "n_predict": 4, "temperature": 0}
    assert server.post("/completions", given).data["content"] == complete(server, **given)["content"]
