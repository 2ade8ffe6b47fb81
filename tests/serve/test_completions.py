"""POST /v1/completions: what the model says by `af.generate` is what comes back, at once or bit by bit."""

import json
import random
import re
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import anyformer as af
from anyformer.data.token_bytes import TokenBytes
from anyformer.data.tokenizer import tokenizer, train_bpe
from anyformer.families.io import load
from tests.contract.contracts import randomise
from tests.serve.asking import Oracle, Said, assert_alike, assert_unharmed, events_of, joined, oracle_of, without
from tests.serve.conftest import SPEC, TEXT
from tests.serve.running import Running, config_of, serving_engine
from tests.tolerances import assert_close

PATH = "/v1/completions"
TEXTS = ["the cat", "the dog sat on the mat, and", " ", "na\u00efve \u732b", "x" * 40, "the cat sat on the mat.\n" * 3]
PAIRS = {"max_tokens": "max_new_tokens", "min_tokens": "min_new_tokens"}
"""Fields that `af.generate` knows under other names."""
SAME = ("temperature", "top_p", "top_k", "min_p", "typical_p", "repetition_penalty", "presence_penalty", "frequency_penalty", "seed")  # fmt: skip


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Running]:
    with serving_engine(config_of(model=str(chat_folder), dtype="float64", max_num_seqs=8)) as running:
        yield running
        assert_unharmed(running)


@pytest.fixture(scope="module")
def oracle(chat_folder: Path) -> Oracle:
    return oracle_of(chat_folder)


def ask(running: Running, **body: Any) -> dict[str, Any]:
    answer = running.post(PATH, body)
    assert answer.status == 200, answer.body
    return answer.data


def refused(running: Running, **body: Any) -> dict[str, Any]:
    answer = running.post(PATH, body)
    assert answer.status == 400, answer.body
    return answer.error


def exact(values: Any) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def draw(rng: random.Random, vocab: int) -> dict[str, Any]:
    """A request over all fields that are answered at once and as a stream alike."""
    one = rng.choice(TEXTS), [*(rng.randrange(vocab) for _ in range(rng.randint(0, 19))), 70]
    prompt: Any = rng.choice(one)
    if rng.random() < 0.2:
        prompt = [prompt, prompt[:5] or "a", prompt] if isinstance(prompt, str) else [prompt, [9, *prompt[-3:]]]
    body: dict[str, Any] = {
        "prompt": prompt,
        "max_tokens": rng.randint(1, 24),
        "seed": rng.choice((0, 7, -1, 2**63 - 1)),
    }

    def maybe(chance: float, name: str, *values: Any) -> None:
        if rng.random() < chance:
            body[name] = rng.choice(values)

    maybe(0.8, "temperature", 0, 0.5, 1, 1.7, 100)
    maybe(0.3, "n", 1, 2, 3)
    maybe(0.5, "logprobs", 0, 1, 3, 20)
    maybe(0.3, "echo", True)
    maybe(0.3, "top_p", 0.3, 0.9, 1)
    maybe(0.2, "top_k", -1, 0, 1, 5, 10**6)
    maybe(0.2, "min_p", 0, 0.5)
    maybe(0.1, "typical_p", 0.5)
    maybe(0.2, "repetition_penalty", 0.8, 1.0, 1.5)
    maybe(0.2, "presence_penalty", -1, 0, 2)
    maybe(0.2, "frequency_penalty", -0.5, 1)
    maybe(0.2, "logit_bias", {}, {"5": 100}, {str(i): -100 for i in range(100, 200)}, {"2": 5.5, "260": -3})
    maybe(0.4, "stop", "a", ["t", "zz"], [" the", "cat", "\n", "e"], [])
    maybe(0.2, "stop_token_ids", [5, 100, 261], [])
    maybe(0.3, "min_tokens", 0, 1)
    maybe(0.2, "ignore_eos", True)
    maybe(0.3, "return_token_ids", True)
    maybe(0.2, "add_special_tokens", False)
    if body["max_tokens"] > 8:
        maybe(0.2, "min_tokens", 8)
    return body


def expected(oracle: Oracle, body: dict[str, Any]) -> list[tuple[list[int], list[Said]]]:
    """By prompt: its ids, and the answers."""
    given = body["prompt"]
    prompts = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    named = {name: body[name] for name in SAME if name in body} | {mine: body[own] for own, mine in PAIRS.items() if own in body}  # fmt: skip
    named["seed"] = body["seed"] % 2**63
    named.setdefault("temperature", 1.0)
    if named.get("top_k", 1) <= 0:
        del named["top_k"]
    if body.get("logit_bias"):
        named["logit_bias"] = {int(token): bias for token, bias in body["logit_bias"].items()}
    stop = body.get("stop", [])
    ends = {*(() if body.get("ignore_eos") else oracle.eos), *body.get("stop_token_ids", ())}
    count = body.get("n", 1)
    drawn = count if named["temperature"] > 0 else 1
    found = []
    for prompt in prompts:
        ids = (
            prompt if isinstance(prompt, list) else oracle.prompt(prompt, specials=body.get("add_special_tokens", True))
        )
        said = oracle.say(
            ids, n=drawn, stops=[stop] if isinstance(stop, str) else stop, ends=ends, logprobs=body.get("logprobs", 0), **named
        )  # fmt: skip
        found.append((ids, said * (count // drawn)))
    return found


def check(oracle: Oracle, body: dict[str, Any], answer: dict[str, Any]) -> None:
    """An answer is what the model says."""
    right = expected(oracle, body)
    flat = [(ids, each) for ids, said in right for each in said]
    echo, least = body.get("echo", False), body.get("min_tokens", 0)
    assert [choice["index"] for choice in answer["choices"]] == list(range(len(flat)))
    count = 0
    for choice, (ids, said) in zip(answer["choices"], flat, strict=True):
        shown = oracle.tokenizer.decode(ids) if echo else ""
        assert choice["finish_reason"] == said.reason
        # A stop string within the first `least` tokens is text.
        if not least:
            assert choice["text"] == shown + said.text
        if body.get("return_token_ids"):
            assert choice["token_ids"] == said.ids + said.end
            assert choice["prompt_token_ids"] == ids
        count += len(said.ids + said.end)
        if "logprobs" not in body:
            assert choice["logprobs"] is None
            continue
        found = choice["logprobs"]["token_logprobs"]
        new = found[len(ids) :] if echo else found
        # Where a stop string is text at first, what is one of its tokens is not as plain.
        told = len(new) if least and body.get("stop") else said.told
        assert_close("promise", exact(new), exact(said.logprobs[:told]))
        labels = TokenBytes(oracle.tokenizer)
        shown_ids = (ids if echo else []) + (said.ids + said.end)[:told]
        assert choice["logprobs"]["tokens"] == [labels.label(each) for each in shown_ids]
    usage = answer["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (sum(len(ids) for ids, _ in right), count)
    assert usage["total_tokens"] == usage["prompt_tokens"] + count


@pytest.mark.parametrize("seed", range(5))
def test_completions_of_random_requests_are_what_generate_says_streamed_or_not(
    server: Running, oracle: Oracle, seed: int
):
    rng = random.Random(seed)
    for _ in range(12):
        body = draw(rng, oracle.tokenizer.vocab)
        whole = ask(server, **body)
        check(oracle, body, whole)
        options = {"include_usage": True} | ({"continuous_usage_stats": True} if rng.random() < 0.3 else {})
        streamed = joined(server.post(PATH, body | {"stream": True, "stream_options": options}))
        # What another request has computed may be there the second time.
        whole["usage"].pop("prompt_tokens_details"), streamed["usage"].pop("prompt_tokens_details")
        assert_alike(without(streamed), without(whole), json.dumps(body))


def test_completions_equal_the_pipeline_of_the_same_folder(server: Running, chat_folder: Path):
    talk = af.pipeline("text-generation", str(chat_folder), dtype=torch.float64)
    for text in ("the cat", "the dog sat"):
        said = talk(text, max_new_tokens=12)[0]["generated_text"]
        assert ask(server, prompt=text, max_tokens=12, temperature=0, echo=True)["choices"][0]["text"] == said


@pytest.mark.parametrize("given", ["the cat sat on the mat", [0, 261, 266, 130, 7], [[5, 6, 7], [8]]])
def test_completions_with_echo_and_no_new_tokens_score_the_prompt(server: Running, oracle: Oracle, given: Any):
    answer = ask(server, prompt=given, max_tokens=0, echo=True, logprobs=3, return_token_ids=True)
    assert answer["usage"]["completion_tokens"] == 0
    rows = [given] if isinstance(given, str) or isinstance(given[0], int) else given
    for row, choice in zip(rows, answer["choices"], strict=True):
        ids = oracle.prompt(row) if isinstance(row, str) else row
        assert choice["text"] == (row if isinstance(row, str) else oracle.tokenizer.decode(ids))
        assert (choice["finish_reason"], choice["prompt_token_ids"], choice["token_ids"]) == ("length", ids, [])
        found = choice["logprobs"]
        assert {len(values) for values in found.values()} == {len(ids)}
        assert (found["token_logprobs"][0], found["top_logprobs"][0], found["top_ids"][0]) == (None, None, None)
        scores = oracle.scores(tuple(ids))
        for i in range(1, len(ids)):
            own = found["token_logprobs"][i]
            assert_close("promise", exact(own), scores[i - 1, ids[i]])
            best = scores[i - 1].topk(3).indices.tolist()
            assert [token for token, *_ in found["top_ids"][i]] == best + [ids[i]] * (ids[i] not in best)
            # Clients compare the two with ==.
            assert found["top_logprobs"][i][found["tokens"][i]] == own
            assert len(found["top_logprobs"][i]) == len(found["top_ids"][i])
        plain = ask(server, prompt=row, max_tokens=1, prompt_logprobs=3)["choices"][0]["prompt_logprobs"]
        assert plain[0] is None
        assert [each[str(ids[i])]["logprob"] for i, each in enumerate(plain) if each] == found["token_logprobs"][1:]
        assert all(next(iter(each.values()))["rank"] == 1 for each in plain[1:])


def test_completions_that_score_are_streamed_alike(server: Running):
    body = {
        "prompt": ["the cat sat", "on the mat"],
        "max_tokens": 0,
        "echo": True,
        "logprobs": 2,
        "return_token_ids": True,
    }
    streamed = joined(server.post(PATH, body | {"stream": True, "stream_options": {"include_usage": True}}))
    assert_alike(without(streamed, "usage"), without(ask(server, **body), "usage"))


def test_completions_send_the_log_probabilities_of_the_prompt_in_a_stream_too(server: Running):
    body = {"prompt": "the cat sat", "max_tokens": 3, "prompt_logprobs": 1, "temperature": 0, "return_token_ids": True}
    whole = ask(server, **body)["choices"][0]
    streamed = joined(server.post(PATH, body | {"stream": True}))["choices"][0]
    assert_alike(streamed["prompt_logprobs"], whole["prompt_logprobs"])
    assert streamed["prompt_token_ids"] == whole["prompt_token_ids"]


def test_completions_send_usage_with_every_event_where_asked(server: Running):
    body = {"prompt": "the cat", "max_tokens": 6, "ignore_eos": True, "stream": True}
    counted = events_of(server.post(PATH, body | {"stream_options": {"continuous_usage_stats": True}}))
    numbers = [event["usage"]["completion_tokens"] for event in counted]
    assert numbers == sorted(numbers)
    assert numbers[-1] == 6
    ended = events_of(server.post(PATH, body | {"stream_options": {"include_usage": True}}))
    assert [event["usage"] for event in ended[:-1]] == [None] * (len(ended) - 1)
    assert (ended[-1]["choices"], ended[-1]["usage"]["completion_tokens"]) == ([], 6)
    assert all("usage" not in event for event in events_of(server.post(PATH, body)))


def test_completions_order_choices_by_prompt(server: Running):
    body = {"max_tokens": 5, "temperature": 1.0, "seed": 3, "n": 2}
    many = ask(server, prompt=["the cat", "the dog", "a"], **body)["choices"]
    alone = [choice["text"] for text in ("the cat", "the dog", "a") for choice in ask(server, prompt=text, **body)["choices"]]  # fmt: skip
    assert [choice["index"] for choice in many] == [0, 1, 2, 3, 4, 5]
    assert [choice["text"] for choice in many] == alone


def test_completions_with_best_of_send_the_likeliest(server: Running):
    body = {"prompt": ["the cat", "the dog"], "max_tokens": 6, "seed": 11, "ignore_eos": True, "logprobs": 0}
    every = ask(server, n=5, **body)["choices"]
    best = ask(server, n=2, best_of=5, **body)
    mean = lambda choice: -sum(choice["logprobs"]["token_logprobs"])  # noqa: E731
    right = [sorted(every[i : i + 5], key=mean)[:2] for i in (0, 5)]
    assert [choice["text"] for choice in best["choices"]] == [choice["text"] for some in right for choice in some]
    assert [choice["index"] for choice in best["choices"]] == [0, 1, 2, 3]
    # All that were made are counted.
    assert best["usage"]["completion_tokens"] == 2 * 5 * 6
    assert ask(server, prompt="the cat", n=1, best_of=3, max_tokens=2)["choices"][0]["logprobs"] is None
    assert refused(server, prompt="a", n=3, best_of=2)["param"] == "best_of"
    assert refused(server, prompt="a", best_of=2, stream=True)["param"] == "best_of"
    assert refused(server, prompt="a", best_of=2, temperature=0)["param"] == "best_of"


def test_completions_draw_again_with_the_same_seed_only(server: Running):
    body = {"prompt": "the cat", "max_tokens": 20, "ignore_eos": True}
    texts = [ask(server, seed=seed, **body)["choices"][0]["text"] for seed in (4, 4, 5)]
    assert texts[0] == texts[1] != texts[2]
    assert len({ask(server, **body)["choices"][0]["text"] for _ in range(3)}) == 3


@pytest.mark.parametrize("stop", ["t o", "sat on the", "at on the mat, and the d", " cat"])
def test_completions_end_before_a_stop_string_that_is_split_over_tokens(server: Running, stop: str):
    text = "the cat sat on the mat, and the dog sat on the cat."
    body = {"prompt": "x", "structured_outputs": {"regex": re.escape(text)}, "max_tokens": 64, "temperature": 0}
    assert ask(server, **body)["choices"][0]["text"] == text
    answer = ask(server, **body, stop=stop)["choices"][0]
    assert (answer["text"], answer["finish_reason"], answer["stop_reason"]) == (text[: text.index(stop)], "stop", stop)
    streamed = joined(server.post(PATH, body | {"stop": stop, "stream": True}))["choices"][0]
    assert (streamed["text"], streamed["stop_reason"]) == (answer["text"], stop)
    # The tokens of the stop string have no log-probabilities, whenever it is known to be one.
    whole = ask(server, **body, stop=stop, logprobs=0)["choices"][0]
    assert whole["logprobs"]["text_offset"][-1] < len(whole["text"])
    assert "".join(whole["logprobs"]["tokens"]).startswith(whole["text"])
    streamed = joined(server.post(PATH, body | {"stop": stop, "stream": True, "logprobs": 0}))["choices"][0]
    assert_alike(streamed, whole)


def test_completions_pass_a_stop_string_before_min_tokens(server: Running, oracle: Oracle):
    letters = {oracle.tokenizer.encode(letter)[0] for letter in "abc"}
    bias = {str(token): -100 for token in range(oracle.tokenizer.vocab) if token not in letters}
    body = {"prompt": "x", "max_tokens": 40, "seed": 5, "logit_bias": bias, "ignore_eos": True}
    text = ask(server, **body)["choices"][0]["text"]
    assert set(text) == {*"abc"}
    for stop in ("ab", "cc", "bca"):
        for least in (0, 4, 13, 30):
            # It may begin before so many tokens, and has to end behind them.
            at = text.find(stop, max(0, least - len(stop) + 1))
            choice = ask(server, **body, stop=["zz", stop], min_tokens=least)["choices"][0]
            right = (text, "length", None) if at < 0 else (text[:at], "stop", stop)
            assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == right


def test_completions_end_at_stop_token_ids_and_say_which(server: Running):
    body = {"prompt": "the cat", "max_tokens": 20, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    ids = ask(server, **body)["choices"][0]["token_ids"]
    third = ids[2]
    ended = ask(server, **body, stop_token_ids=[third])
    at = ids.index(third)
    choice = ended["choices"][0]
    assert (choice["token_ids"], choice["stop_reason"], choice["finish_reason"]) == (ids[: at + 1], third, "stop")
    assert ended["usage"]["completion_tokens"] == at + 1


def test_completions_without_an_end_of_text_go_on_where_eos_is_ignored(server: Running, oracle: Oracle):
    bias = {str(oracle.eos[0]): 100}
    body = {"prompt": "the cat", "max_tokens": 7, "temperature": 0, "logit_bias": bias}
    ended = ask(server, **body)
    assert (ended["choices"][0]["text"], ended["choices"][0]["stop_reason"]) == ("", None)
    named = ask(server, **body, stop_token_ids=[oracle.eos[0]])["choices"][0]
    assert (named["finish_reason"], named["stop_reason"]) == ("stop", oracle.eos[0])
    assert ended["usage"]["completion_tokens"] == 1
    on = ask(server, **body, ignore_eos=True, return_token_ids=True)
    assert on["choices"][0]["token_ids"] == [oracle.eos[0]] * 7
    assert on["choices"][0]["finish_reason"] == "length"
    least = ask(server, **body, min_tokens=3, return_token_ids=True)["choices"][0]
    assert (len(least["token_ids"]), least["token_ids"][-1], least["stop_reason"]) == (4, oracle.eos[0], None)


def test_completions_that_end_at_once_have_a_log_probability_for_each_token(server: Running, oracle: Oracle):
    bias = {str(oracle.eos[0]): 100}
    body = {"prompt": "the cat sat", "max_tokens": 1, "temperature": 0, "logit_bias": bias, "logprobs": 1, "echo": True}
    choice = ask(server, **body)["choices"][0]
    # What ends an answer is no part of its text; clients that score a prompt cut off the last entry all the same.
    assert (choice["text"], choice["finish_reason"]) == ("the cat sat", "stop")
    assert {len(values) for values in choice["logprobs"].values()} == {len(oracle.prompt("the cat sat")) + 1}
    streamed = joined(server.post(PATH, body | {"stream": True}))["choices"][0]
    assert_alike(streamed, choice)


@pytest.mark.parametrize("kind", ["text", "ids"])
def test_completions_fill_the_room_exactly_and_not_beyond(server: Running, oracle: Oracle, kind: str):
    room = server.client.facts.max_model_len
    text = "x" * (room - 1)
    ids = oracle.prompt(text)
    assert len(ids) == room
    prompt = text if kind == "text" else ids
    full = ask(server, prompt=prompt, max_tokens=1, ignore_eos=True)
    assert full["usage"] == {
        "prompt_tokens": room, "completion_tokens": 1, "total_tokens": room + 1,
        "prompt_tokens_details": full["usage"]["prompt_tokens_details"],
    }  # fmt: skip
    usual = ask(server, prompt=prompt, ignore_eos=True)
    assert usual["usage"]["completion_tokens"] == 1
    longer = text + "x" if kind == "text" else [*ids, 5]
    for body in ({"prompt": longer}, {"prompt": longer, "max_tokens": 1}, {"prompt": prompt, "max_tokens": 2}):
        error = refused(server, **body)
        assert (error["type"], error["code"]) == ("exceed_context_size_error", "context_length_exceeded")
        assert (error["n_prompt_tokens"], error["n_ctx"]) == (len(ids) + (body["prompt"] is longer), room)
    half = room // 2
    assert (
        ask(server, prompt=ids[:half], max_tokens=room - half + 1, ignore_eos=True)["usage"]["total_tokens"] == room + 1
    )
    assert refused(server, prompt=ids[:half], max_tokens=room - half + 2)["param"] == "max_tokens"


def test_completions_guided_by_a_schema_are_json_of_it(server: Running):
    schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}, "n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["city", "n"], "additionalProperties": False}  # fmt: skip
    for form in (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}},
        {"response_format": {"type": "json_object", "schema": schema}},
        {"structured_outputs": {"json": schema}},
    ):
        for seed in range(2):
            body = {"prompt": "the cat", "max_tokens": 200, "seed": seed, **form}
            choice = ask(server, **body)["choices"][0]
            found = json.loads(choice["text"])
            assert choice["finish_reason"] == "stop"
            assert found["city"] in ("Paris", "Rome")
            assert found["n"] in range(10)
            streamed = joined(server.post(PATH, body | {"stream": True}))["choices"][0]
            assert streamed["text"] == choice["text"]


def test_completions_guided_by_a_regular_expression_choice_or_grammar(server: Running):
    body = {"prompt": "the cat", "max_tokens": 40, "seed": 1}
    assert ask(server, **body, structured_outputs={"regex": "[ab]{3}c"})["choices"][0]["text"] in {
        f"{x}{y}{z}c" for x in "ab" for y in "ab" for z in "ab"
    }
    assert ask(server, **body, structured_outputs={"choice": ["yes", "no", "maybe"]})["choices"][0]["text"] in ("yes", "no", "maybe")  # fmt: skip
    assert ask(server, **body, structured_outputs={"grammar": 'start: "x" ("y" | "z")'})["choices"][0]["text"] in ("xy", "xz")  # fmt: skip
    error = refused(server, **body, structured_outputs={"regex": "a", "choice": ["b"]})
    assert error["param"] == "structured_outputs"


def test_completions_guided_beside_others_leave_those_alone(server: Running):
    body = {"prompt": ["the cat", "the dog"], "max_tokens": 8, "seed": 2, "ignore_eos": True}
    right = ask(server, **body)["choices"]
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(ask(server, prompt="a", max_tokens=60, structured_outputs={"regex": "[a-f]{40}"})))  # fmt: skip
    thread.start()
    beside = ask(server, **body)["choices"]
    thread.join()
    assert beside == right
    assert len(found[0]["choices"][0]["text"]) == 40


def test_completions_begin_a_text_with_bos_unless_told_otherwise(server: Running):
    asked = {"prompt": "the cat", "max_tokens": 1, "return_token_ids": True}
    assert ask(server, **asked)["choices"][0]["prompt_token_ids"] == [0, 261, 266]
    assert ask(server, **asked, add_special_tokens=False)["choices"][0]["prompt_token_ids"] == [261, 266]
    assert ask(server, **asked | {"prompt": [261, 266]})["choices"][0]["prompt_token_ids"] == [261, 266]


@pytest.mark.parametrize("prompt", ["", [], [[]], ["a", ""], [[1], []]])
def test_completions_of_nothing_begin_with_bos_or_are_refused(server: Running, prompt: Any):
    answer = server.post(PATH, {"prompt": prompt, "max_tokens": 1, "add_special_tokens": False})
    assert (answer.status, answer.error["param"][:6]) == (400, "prompt")


def test_completions_answer_what_clients_send_without_meaning_it(server: Running):
    neutral = {
        "logprobs": None, "seed": None, "stop": None, "n": 1, "top_p": 1, "presence_penalty": 0, "frequency_penalty": 0,
        "repetition_penalty": 1.0, "best_of": 1, "suffix": None, "user": "me", "echo": False, "stream": False, "logit_bias": None,
    }  # fmt: skip
    plain = ask(server, prompt="the cat", temperature=0, max_tokens=5)
    assert ask(server, prompt="the cat", temperature=0, max_tokens=5, **neutral)["choices"] == plain["choices"]


def test_completions_without_a_word_on_sampling_take_the_defaults_of_the_server(chat_folder: Path, oracle: Oracle):
    asked = {"prompt": "the cat", "max_tokens": 12}
    given = (("temperature", 0.7), ("top_k", 5), ("seed", 3), ("presence_penalty", 1.5))
    ids = oracle.prompt("the cat")
    (said,) = oracle.say(ids, max_new_tokens=12, **dict(given))
    (plain,) = oracle.say(ids, max_new_tokens=12, temperature=0.0)
    with serving_engine(config_of(model=str(chat_folder), dtype="float64", defaults=given)) as running:
        assert ask(running, **asked)["choices"][0]["text"] == said.text
        own = {"temperature": 0, "presence_penalty": 0}
        assert ask(running, **asked, **own)["choices"][0]["text"] == plain.text


def test_completions_guided_draw_each_answer_by_itself(server: Running):
    body = {
        "prompt": ["a", "b"],
        "n": 3,
        "seed": 6,
        "max_tokens": 20,
        "structured_outputs": {"regex": "[a-z]{6}[0-9]"},
        "logprobs": 1,
    }
    whole = ask(server, **body)["choices"]
    texts = [choice["text"] for choice in whole]
    assert all(re.fullmatch("[a-z]{6}[0-9]", text) for text in texts)
    assert len(set(texts)) == 6
    assert_alike(joined(server.post(PATH, body | {"stream": True}))["choices"], whole)


def test_completions_name_every_offset_of_their_text(server: Running):
    choice = ask(server, prompt="the cat", max_tokens=16, seed=4, logprobs=0, echo=True, ignore_eos=True)["choices"][0]
    found, text = choice["logprobs"], choice["text"]
    for token, at in zip(found["tokens"], found["text_offset"], strict=True):
        if not token.startswith(("bytes:", "<|")):
            assert text[at : at + len(token)] == token
    assert found["text_offset"] == sorted(found["text_offset"])


def write_model(place: Path, topology: str, ids: dict[str, Any]) -> Path:
    words = train_bpe([TEXT], 300)
    spec = af.spec(SPEC | {"topology": topology, "vocab": words.vocab, "ids": ids})
    af.save(randomise(af.build(spec), 3).eval(), place)
    words.save(place)
    return place


def test_completions_of_an_encoder_are_not_served(tmp_path: Path):
    with serving_engine(config_of(model=str(write_model(tmp_path, "encoder", {})))) as running:
        for path, body in (
            (PATH, {"prompt": "the cat"}), ("/v1/chat/completions", {"messages": [{"role": "user", "content": "a"}]}),
            ("/v1/responses", {"input": "a"}), ("/completion", {"prompt": "a"}),
        ):  # fmt: skip
            for stream in (False, True):
                answer = running.post(path, body | {"stream": stream})
                assert (answer.status, answer.error["type"]) == (501, "not_supported_error"), path
        assert running.post("/v1/embeddings", {"input": "the cat"}).status == 200


def test_completions_of_an_encoder_decoder_answer_a_source(tmp_path: Path):
    folder = write_model(tmp_path, "encoder-decoder", {"bos": 0, "start": 0})
    model, words = load(folder, "cpu", torch.float64).eval(), tokenizer(folder)
    source = words.encode("the cat sat", specials=True)
    new = af.generate(model, torch.tensor([source]), max_new_tokens=9)[0, 1:].tolist()
    body = {"prompt": "the cat sat", "max_tokens": 9, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    with serving_engine(config_of(model=str(folder), dtype="float64", max_model_len=64)) as running:
        choice = ask(running, **body)["choices"][0]
        assert (choice["prompt_token_ids"], choice["token_ids"], choice["text"]) == (source, new, words.decode(new))
        streamed = joined(running.post(PATH, body | {"stream": True}))["choices"][0]
        assert (streamed["token_ids"], streamed["text"]) == (new, words.decode(new))
        # Nothing predicts a source, so it can't be scored.
        assert refused(running, **body, echo=True)["param"] == "echo"
        assert refused(running, **body, prompt_logprobs=1)["param"] == "prompt_logprobs"
        # The source takes no room of the answer.
        assert ask(running, **body | {"max_tokens": 64})["usage"]["completion_tokens"] == 64
        assert refused(running, **body | {"max_tokens": 65})["code"] == "context_length_exceeded"
        assert_unharmed(running)
