"""Requests that mean harm, in their fields: each is answered as it should be, and nobody else notices."""

import json
import shutil
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from anyformer.serve.api import embeddings, large
from anyformer.serve.api.chat import ChatAnswer
from anyformer.serve.api.completions import Answer as CompletionAnswer
from anyformer.serve.api.native_answer import NativeAnswer
from anyformer.serve.text.texts import Texts
from tests.serve.asking import assert_alike, assert_unharmed, events_of, joined_chat
from tests.serve.gates import REFERENCE, Asked, Gate, beside, reference
from tests.serve.running import PATIENCE, Answer, Running, config_of, read_all, read_until, serving_engine
from tests.serve.test_http import send_post

COMPLETIONS, CHAT, NATIVE = "/v1/completions", "/v1/chat/completions", "/completion"
USER = {"role": "user", "content": "the cat"}
NONE: Any = object()


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Running]:
    with serving_engine(config_of(model=str(chat_folder), dtype="float64", max_num_seqs=4)) as running:
        yield running


@pytest.fixture(scope="module")
def right(server: Running) -> list[Any]:
    return reference(server)


def complete(running: Running, **body: Any) -> Answer:
    return running.post(COMPLETIONS, {"prompt": "a", "max_tokens": 1} | body)


def chat(running: Running, **body: Any) -> Answer:
    return running.post(CHAT, {"messages": [USER], "max_tokens": 1} | body)


def native(running: Running, **body: Any) -> Answer:
    return running.post(NATIVE, {"prompt": "a", "n_predict": 1} | body)


def raw(running: Running, text: str) -> Answer:
    """A body that Python's JSON would not write."""
    return running.post(COMPLETIONS, text.encode())


VOCAB, ROOM = 278, 512
WRONG: dict[str, list[Any]] = {
    "20 n": [
        (complete, {"n": 1_000_000}), (complete, {"n": 9}), (complete, {"n": 5}), (complete, {"n": 0}), (complete, {"n": -1}),
        (chat, {"n": 1_000_000}), (chat, {"n": 1.0}), (chat, {"n": "2"}), (chat, {"n": True}),
    ],
    "21 prompts": [(complete, {"prompt": ["a"] * 100_000}), (complete, {"prompt": ["a"] * 65}), (complete, {"prompt": [[1]] * 65})],
    "22 best_of": [(complete, {"best_of": 20, "n": 1}), (complete, {"best_of": 5}), (complete, {"best_of": 1, "n": 2})],
    "23 logprobs": [
        (complete, {"logprobs": 10**9}), (complete, {"logprobs": 21}), (complete, {"logprobs": -1}), (complete, {"logprobs": True}),
        (complete, {"prompt_logprobs": 10**9}), (chat, {"logprobs": True, "top_logprobs": -1}), (chat, {"logprobs": True, "top_logprobs": 21}),
        (chat, {"logprobs": 5}), (native, {"n_probs": 10**9}),
    ],
    "24 max_tokens": [
        (complete, {"max_tokens": each}) for each in (10**12, ROOM + 1, -5, -1, 1.5, "8", True, 0)
    ] + [(chat, {"max_tokens": each}) for each in (10**12, ROOM + 1, -5, 1.5, "8", True, 0)] + [(native, {"n_predict": 10**12})],
    "25 sampling": [
        (complete, {"temperature": 999_999}), (complete, {"temperature": -0.1}), (complete, {"top_p": -1}), (complete, {"top_p": 0}),
        (complete, {"top_p": 1.1}), (complete, {"top_k": -2}), (complete, {"min_p": 2}), (complete, {"repetition_penalty": 0}),
        (complete, {"repetition_penalty": -1}), (complete, {"presence_penalty": 3}), (complete, {"frequency_penalty": -3}),
        (native, {"repeat_penalty": 0}), (native, {"temperature": 999_999}), (native, {"top_p": -1}),
    ],
    "26 seed": [(complete, {"seed": 2**70}), (complete, {"seed": -(2**63) - 1}), (complete, {"seed": 1.5}), (chat, {"seed": 2**64})],
    "27 logit_bias": [
        (complete, {"logit_bias": {str(i): 1 for i in range(100_000)}}), (complete, {"logit_bias": {"-1": 1}}),
        (complete, {"logit_bias": {str(VOCAB): 1}}), (complete, {"logit_bias": {"1": 101}}), (complete, {"logit_bias": {"1": "a"}}),
        (complete, {"logit_bias": {"0x1": 1}}), (complete, {"logit_bias": {"\u0661": 1}}), (complete, {"logit_bias": [1]}),
        (raw, '{"prompt": "a", "logit_bias": {"1": NaN}}'), (raw, '{"prompt": "a", "logit_bias": {"1": 1e999}}'),
    ],
    "28 stop": [
        (complete, {"stop": [""]}), (complete, {"stop": ""}), (complete, {"stop": ["x"] * 10_000}), (complete, {"stop": "x" * 2**20}),
        (complete, {"stop": [1]}), (complete, {"stop": {"a": 1}}), (complete, {"stop_token_ids": [VOCAB]}), (complete, {"stop_token_ids": [1] * 65}),
    ],
    "29 token ids": [
        (complete, {"prompt": [each]}) for each in (-1, VOCAB, 2**63, True, 1.5, None, [])
    ] + [(complete, {"prompt": [[1], [VOCAB]]}), (complete, {"prompt": [[1], "a"]}), (complete, {"prompt": [1, "a"]}), (complete, {"prompt": {}})],
    "31 room": [(complete, {"prompt": [5] * (ROOM + 1)}), (complete, {"prompt": [5] * ROOM, "max_tokens": 2}), (complete, {"prompt": "a" * ROOM})],
    "32 template": [
        (chat, {"chat_template": "{{ 1 }}"}), (chat, {"chat_template": ""}), (complete, {"chat_template": "a"}),
    ],
    "33 template kwargs": [
        (chat, {"chat_template_kwargs": each}) for each in (
            {"tokenize": True}, {"chat_template": "x"}, {"messages": []}, {"enable_thinking": {"a": [1] * 1000}}, {"enable_thinking": "x" * 10**6},
            {"add_generation_prompt": False}, {"reasoning_effort": "high"}, [],
        )
    ],
    "38 media": [
        (chat, {"messages": [{"role": "user", "content": [part]}]}) for part in (
            {"type": "image_url", "image_url": {"url": "http://169.254.169.254/"}}, {"type": "image_url", "image_url": {"url": "file:///etc/passwd"}},
            {"type": "input_audio", "input_audio": {"data": "", "format": "wav"}}, {"type": "file", "file": {"file_id": "x"}},
            {"type": "text", "text": "a", "image_url": "x"}, {"type": "video_url"}, {},
        )
    ],
    "40 unknown": [
        (complete, {"max_token": 5}), (complete, {"messages": []}), (chat, {"prompt": "a"}), (chat, {"max_new_tokens": 1}), (native, {"n_predictt": 1}),
        (complete, {"__class__": 1}), (complete, {"": 1}), (complete, {"x" * 10**6: 1}),
    ],
}  # fmt: skip
NAMES = {"max_token": "max_tokens", "n_predictt": "n_predict"}


@pytest.mark.parametrize("row", WRONG)
def test_field_that_means_harm_is_refused_and_nobody_else_notices(server: Running, right: list[Any], row: str):
    with beside(server, right):
        for ask, given in WRONG[row]:
            answer = ask(server, given) if isinstance(given, str) else ask(server, **given)
            assert answer.status == 400, (given if len(str(given)) < 500 else row, answer.body[:300])
            assert set(answer.error) >= {"message", "type", "param", "code"}
            assert len(answer.body) < 20_000
            for name, meant in NAMES.items():
                if name in given:
                    assert f"did you mean {meant!r}" in answer.error["message"]


def test_room_that_is_used_exactly_is_enough(server: Running, right: list[Any]):
    with beside(server, right):
        full = complete(server, prompt=[5] * ROOM, ignore_eos=True)
        assert (full.status, full.data["usage"]["completion_tokens"]) == (200, 1)


@pytest.mark.parametrize("text", [" " * 4_000_000, "a" * 4_000_000, "\U0001f63a" * 300_000, "the cat " * 400_000])
def test_prompt_that_can_not_fit_is_refused_without_being_tokenised(
    server: Running, right: list[Any], text: str, monkeypatch
):
    sizes: list[int] = []
    whole = Texts.prompt_ids_of
    monkeypatch.setattr(Texts, "prompt_ids_of", lambda self, text, *a, **k: sizes.append(len(text)) or whole(self, text, *a, **k))  # fmt: skip
    with beside(server, right):
        for path, body in (
            (COMPLETIONS, {"prompt": text}),
            (COMPLETIONS, {"prompt": ["a", text]}),
            (NATIVE, {"prompt": text}),
        ):
            answer = server.post(path, json.dumps(body, ensure_ascii=False).encode())
            assert (answer.status, answer.error["code"]) == (400, "context_length_exceeded"), answer.body
    assert max(sizes) < 100


def test_prompt_as_long_as_can_be_is_tokenised_beside_the_others(server: Running, right: list[Any]):
    long = server.client.facts.max_model_len * 4
    with beside(server, right):
        # Many letters make one token at best; only the tokenizer knows how many there are.
        answer = complete(server, prompt="\n" * long)
        assert answer.status in (200, 400)


def test_template_in_a_message_is_data(server: Running, right: list[Any]):
    for text in ("{{ ''.__class__.__mro__ }}", "{% for i in range(10**9) %}x{% endfor %}", "{{ 7 * 7 }}", "{% raw %}"):
        with beside(server, right):
            written = server.post("/apply-template", {"messages": [{"role": "user", "content": text}]}).data["prompt"]
            assert written == f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
            assert chat(server, messages=[{"role": "user", "content": text}]).status == 200


@pytest.mark.parametrize(
    "template",
    ["{% for i in range(10**9) %}{% for j in range(10**9) %}{% endfor %}{% endfor %}",
     "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}", "{{ messages[0].content * 10**9 }}",
     "{% set ns = namespace(x='a') %}{% for i in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{{ ns.x }}",
     "{{ messages.__class__ }}{{ raise_exception('no') }}"],
)  # fmt: skip
def test_template_of_a_hostile_folder_is_stopped_and_generation_goes_on(
    chat_folder: Path, tmp_path: Path, template: str
):
    folder = tmp_path / "hostile"
    shutil.copytree(chat_folder, folder)
    (folder / "chat_template.jinja").write_text(template)
    with serving_engine(config_of(model=str(folder), dtype="float64")) as running:
        right = reference(running)
        with beside(running, right):
            asked = [Asked(running, CHAT, {"messages": [USER], "max_tokens": 1}) for _ in range(2)]
            # Renderings wait for each other, not generation for them.
            assert_alike(reference(running), right)
            for each in asked:
                answer = each.result()
                assert (answer.status, answer.error["type"]) == (400, "invalid_request_error")
                assert "chat template" in answer.error["message"]
        (folder / "plain.jinja").write_text("{{ messages[0].content }}")
    with serving_engine(config_of(model=str(folder), chat_template=str(folder / "plain.jinja"))) as running:
        assert chat(running).status == 200


GRAMMARS: list[Any] = [
    {"regex": "(a+)+$"}, {"regex": "(a{1,10000}){1,10000}"}, {"regex": "((((a*)*)*)*)*b"}, {"regex": "(.*)(.*)(.*)(.*)(.*)=\\1"},
    {"regex": "(" * 500 + "a" + ")" * 500}, {"regex": "["}, {"regex": "a{99999999}"}, {"regex": "(?=a)b"},
    {"json": {"enum": [f"value {i}" for i in range(50_000)]}}, {"json": {"enum": [str(i) for i in range(6_000)]}},
    {"json": {"type": "array", "minItems": 10**8}}, {"json": {"$ref": "http://169.254.169.254/schema"}}, {"json": {"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/a"}}}},
    {"json": {"type": "string", "pattern": "(a+)+$"}}, {"json": {"type": "string", "pattern": "^(\\w{1,1000}){1,1000}$"}},
    {"json": {"allOf": [{"type": "string", "maxLength": i} for i in range(1, 300)]}}, {"json": {"type": "nothing"}}, {"json": 5}, {"json": "{"},
    {"grammar": "start: start"}, {"grammar": "start: a\na: b\nb: a"}, {"grammar": "start: " + '"a"? ' * 2000}, {"grammar": "root ::= root root | \"a\""},
    {"grammar": "start: /(a|b|c)*d{1,5000}/"}, {"grammar": "%import common.WORD\nstart: WORD"}, {"grammar": "%import /etc/passwd"},
]  # fmt: skip


def nested(depth: int) -> dict[str, Any]:
    made: dict[str, Any] = {"type": "integer"}
    for _ in range(depth):
        made = {"type": "object", "properties": {"a": made}, "required": ["a"]}
    return made


def test_grammar_that_is_hard_is_compiled_or_refused_and_nobody_waits(server: Running, right: list[Any]):
    with beside(server, right):
        for each in [*GRAMMARS, {"json": nested(40)}, {"json": nested(120)}]:
            answer = complete(server, structured_outputs=each, max_tokens=3)
            assert answer.status in (200, 400), (str(each)[:200], answer.body[:300])
            assert b"passwd" not in answer.body.replace(b"/etc/passwd", b"")


@pytest.mark.parametrize(
    "grammar",
    [{"json": False}, {"json": {"not": {}}}, {"json": {"enum": []}}, {"json": {"type": "string", "minLength": 5, "maxLength": 2}},
     {"json": {"type": "integer", "minimum": 5, "maximum": 2}}, {"json": {"allOf": [{"type": "string"}, {"type": "integer"}]}},
     {"regex": "[^\\s\\S]"}, {"regex": "a(?!a)a"}, {"grammar": 'start: "a" /[^\\s\\S]/'}, {"choice": []}, {"choice": [""]}],
)  # fmt: skip
def test_grammar_that_allows_nothing_ends(server: Running, right: list[Any], grammar: dict[str, Any]):
    with beside(server, right):
        answer = complete(server, structured_outputs=grammar, max_tokens=20)
        if answer.status == 200:
            assert answer.data["choices"][0]["finish_reason"] == "stop"
        else:
            assert answer.status == 400, answer.body


@pytest.mark.parametrize(
    "name", ["../../etc/passwd", "x" * 60_000, "tiny\x00", "CHATTY", "chatty ", "", "<script>alert(1)</script>"]
)
def test_model_of_another_name_is_not_found(server: Running, right: list[Any], name: str):
    with beside(server, right):
        for answer in (
            complete(server, model=name),
            chat(server, model=name),
            server.post("/v1/embeddings", {"input": "a", "model": name}),
        ):
            assert (answer.status, answer.error["code"]) == (404, "model_not_found")
            assert len(answer.body) < 1000
        assert complete(server, model="x" * 2**20).status in (400, 404)
        assert server.get("/v1/models/..%2f..%2fetc%2fpasswd").status == 404
        assert complete(server, model="chatty").status == 200


def test_answer_that_holds_signs_of_control_is_sent_as_data(server: Running, right: list[Any]):
    texts = [
        "<script>alert(1)</script>",
        "\x1b[31m\x00\r\n\r\ndata: [DONE]\r\n\r\n",
        "\u202eevil\u2028\u2029\u0085",
        "x" * 300,
        "\n\ndata: x\n\n",
    ]
    for text in texts:
        with beside(server, right):
            body = {"messages": [USER], "structured_outputs": {"choice": [text]}, "ignore_eos": True}
            answer = server.post(CHAT, body)
            assert answer.status == 200, answer.body
            assert answer.data["choices"][0]["message"]["content"] == text
            assert answer.headers["content-type"] == "application/json"
            assert answer.headers["x-content-type-options"] == "nosniff"
            streamed = server.post(CHAT, body | {"stream": True})
            assert joined_chat(streamed)["choices"][0]["message"]["content"] == text
            assert streamed.body.isascii()
            assert b"\r" not in streamed.body


def test_slots_and_metrics_need_their_flag_and_key(chat_folder: Path):
    with serving_engine(config_of(model=str(chat_folder), keys=("k",), metrics=False)) as running:
        assert [running.get(path).status for path in ("/slots", "/metrics")] == [401, 401]
        assert [running.get(path, Authorization="Bearer k").status for path in ("/slots", "/metrics")] == [501, 501]


# Those who leave


PHASES = {"queue": 0, "prefill": 2, "decode": 8}
"""Steps that are taken before the client leaves."""


@pytest.fixture(scope="module")
def narrow(chat_folder: Path) -> Iterator[Running]:
    """One slot, and prompts that are read a few tokens at a time."""
    config = config_of({"queue": 3}, model=str(chat_folder), dtype="float64", max_num_seqs=1, max_num_batched_tokens=8, enable_prefix_caching=False)  # fmt: skip
    with serving_engine(config) as running:
        yield running


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("kind", ["whole", "stream", "n", "guided", "native", "chat", "prompts"])
def test_client_that_leaves_frees_its_slot_within_a_step(narrow: Running, phase: str, kind: str):
    long = "x" * (200 if phase == "prefill" else 4)
    path, body = COMPLETIONS, {"prompt": long, "max_tokens": 200, "ignore_eos": True, "stream": kind == "stream"}
    match kind:
        case "guided":
            body |= {"structured_outputs": {"regex": "[a-z]{180}"}}
        case "native":
            path, body = NATIVE, {"prompt": long, "n_predict": 200, "ignore_eos": True, "stream": True}
        case "chat":
            path, body = CHAT, {"messages": [{"role": "user", "content": long}], "ignore_eos": True}
        case "prompts":
            body |= {"prompt": [long, long]}
        case _:
            pass
    right = reference(narrow)
    pool = narrow.client.worker.engine.pool
    with Gate(narrow) as gate:
        other = Asked(narrow, COMPLETIONS, REFERENCE) if phase == "queue" else None
        if other is not None:
            narrow.eventually(lambda: gate.held)
        with narrow.connect() as sock:
            send_post(narrow, sock, path, body)
            waiting = 1 if phase == "queue" else 0
            narrow.eventually(lambda: len(narrow.client._live) >= 1 + waiting)
            for step in range(PHASES[phase]):
                narrow.eventually(lambda step=step: gate.held and gate.steps == step)
                gate.let()
            narrow.eventually(lambda: gate.held)
        narrow.eventually(lambda: narrow.state.active == waiting)
        # What was under way when it left is the last step that it has.
        gate.let()
        narrow.eventually(
            lambda: len(pool.free_slots) == 1 - waiting and not narrow.client.worker.engine.scheduler.waiting
        )
        gate.open()
        if other is not None:
            assert_alike(other.result().data["choices"], right)
    assert_unharmed(narrow)
    assert_alike(reference(narrow), right)


def test_overload_is_refused_at_once_and_those_accepted_get_their_answer(narrow: Running):
    right = reference(narrow)
    with Gate(narrow) as gate:
        accepted = []
        for i in range(4):
            accepted.append(Asked(narrow, COMPLETIONS, REFERENCE | {"stream": i == 1}))
            narrow.eventually(lambda i=i: narrow.state.active == i + 1)
        for body in (REFERENCE, REFERENCE | {"stream": True}, REFERENCE | {"prompt": ["a", "b"]}):
            for _ in range(10):
                answer = narrow.post(COMPLETIONS, body)
                assert (answer.status, answer.error["type"], answer.error["code"]) == (
                    429,
                    "rate_limit_error",
                    "rate_limit_exceeded",
                )
                assert 1 <= int(answer.headers["retry-after"]) <= 120
        assert narrow.get("/health").status == 200
        gate.open()
        answers = [each.result() for each in accepted]
    for i, answer in enumerate(answers):
        if i == 1:
            assert "".join(event["choices"][0]["text"] for event in events_of(answer)) == right[0]["text"]
        else:
            assert_alike(answer.data["choices"], right)
    assert_unharmed(narrow)


def test_prompts_of_one_request_are_let_in_together_or_not_at_all(narrow: Running):
    body = {"prompt": [f"the cat {i}" for i in range(20)], "max_tokens": 4, "temperature": 0}
    # More than the queue holds, but nobody else is there.
    answer = narrow.post(COMPLETIONS, body)
    assert (answer.status, len(answer.data["choices"])) == (200, 20)
    with Gate(narrow) as gate:
        others = [Asked(narrow, COMPLETIONS, REFERENCE) for _ in range(4)]
        narrow.eventually(lambda: narrow.state.active == 4)
        refused = narrow.post(COMPLETIONS, body)
        assert (refused.status, refused.error["code"]) == (429, "rate_limit_exceeded")
        gate.open()
        assert {each.result().status for each in others} == {200}
    assert_unharmed(narrow)
    assert narrow.post(COMPLETIONS, body).data["choices"] == answer.data["choices"]


def test_request_that_takes_too_long_is_ended_and_frees_its_slot(chat_folder: Path):
    body = {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True}
    with serving_engine(config_of({"request_seconds": 0.2}, model=str(chat_folder), max_num_seqs=1)) as running:
        with Gate(running) as gate:
            for stream in (False, True):
                answer = running.post(COMPLETIONS, body | {"stream": stream})
                assert (answer.status, answer.error["code"]) == (408, "request_timeout")
                assert answer.headers["x-should-retry"] == "false"
            gate.open()
            running.eventually(lambda: not running.client.worker.engine.requests)
        # Where the head was sent already, an event says so.
        with Gate(running) as gate:
            asked = Asked(running, COMPLETIONS, body | {"stream": True})
            running.eventually(lambda: gate.held)
            gate.let(3)
            answer = asked.result()
            gate.open()
        assert answer.status == 200
        last = json.loads(answer.body.decode().split("\n\n")[-2].removeprefix("data: "))
        assert last["error"]["code"] == "request_timeout"
        assert_unharmed(running)


def test_looks_wait_for_each_other_and_too_many_are_refused(server: Running, right: list[Any]):
    worker = server.client.worker
    trace = worker._trace
    go = threading.Event()
    worker._trace = lambda message: go.wait() and trace(message)
    try:
        with beside(server, right):
            asked = []
            for i in range(5):
                asked.append(Asked(server, "/api/look", {"prompt": "the cat"}))
                server.eventually(lambda i=i: server.client._looking == i + 1)
            for _ in range(50):
                answer = server.post("/api/look", {"prompt": "the cat"})
                assert (answer.status, "retry-after" in answer.headers) == (429, True)
            # Others are served meanwhile.
            assert_alike(reference(server), right)
            go.set()
            assert {each.result().status for each in asked} == {200}
            assert server.post("/api/look", {"ids": [5] * 257}).status == 400
    finally:
        go.set()
        del worker._trace


def test_client_that_leaves_while_its_answer_is_sent_is_forgotten(server: Running, right: list[Any]):
    with beside(server, right):
        for _ in range(20):
            with server.connect() as sock:
                send_post(
                    server, sock, COMPLETIONS, {"prompt": "a", "max_tokens": 400, "stream": True, "ignore_eos": True}
                )
                read_until(sock, b"data: ")
        with server.connect() as sock:
            send_post(server, sock, COMPLETIONS, {"prompt": "a", "max_tokens": 3, "stream": True})
            sock.shutdown(1)
            read_all(sock)


LARGE = [
    (COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 0, "echo": True, "logprobs": 20}, CompletionAnswer, "body"),
    (COMPLETIONS, {"prompt": [5] * 500, "max_tokens": 1, "prompt_logprobs": 20, "stream": True}, CompletionAnswer, "_first"),
    (CHAT, {"messages": [USER], "max_tokens": 450, "logprobs": True, "top_logprobs": 20, "ignore_eos": True}, ChatAnswer, "body"),
    (NATIVE, {"prompt": "a", "n_predict": 450, "n_probs": 20, "ignore_eos": True}, NativeAnswer, "whole"),
    ("/v1/embeddings", {"input": ["a"] * 256, "encoding_format": "float"}, embeddings, "encoded"),
]  # fmt: skip


def test_answer_that_would_be_far_too_large_is_refused(server: Running, right: list[Any], monkeypatch):
    monkeypatch.setattr(large, "MOST", 10_000)
    with beside(server, right):
        body = {"prompt": [[5] * 100] * 6, "max_tokens": 0, "echo": True}
        assert server.post(COMPLETIONS, body | {"logprobs": 15}).status == 200
        for more in ({"logprobs": 16}, {"logprobs": 8, "n": 2}, {"logprobs": 0, "prompt_logprobs": 16}):
            answer = server.post(COMPLETIONS, body | more)
            assert (answer.status, answer.error["param"]) == (400, "logprobs")


def test_vectors_of_tokens_that_would_be_far_too_many_are_refused(chat_folder: Path, monkeypatch):
    monkeypatch.setattr(embeddings, "NUMBERS", 32 * 100)
    with serving_engine(config_of(model=str(chat_folder), pooling="none")) as running:
        assert running.post("/embeddings", {"input": [[5] * 50] * 2}).status == 200
        answer = running.post("/embeddings", {"input": [[5] * 50] * 3})
        assert (answer.status, answer.error["param"]) == (400, "input")


@pytest.mark.parametrize(("path", "body", "owner", "name"), LARGE)
def test_answer_that_is_large_is_made_while_others_are_served(
    server: Running, right: list[Any], monkeypatch, path: str, body: dict[str, Any], owner: Any, name: str
):
    make, go, begun = getattr(owner, name), threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        # On the server's own thread nobody may wait.
        if threading.current_thread() is not server.thread:
            begun.set()
            go.wait(PATIENCE)
        return make(*given)

    small = server.post(path, body).body
    monkeypatch.setattr(owner, name, slowly)
    try:
        with beside(server, right):
            asked = Asked(server, path, body)
            server.eventually(begun.is_set)
            assert server.get("/health").status == 200
            assert_alike(reference(server), right)
            go.set()
            answer = asked.result()
    finally:
        go.set()
    assert answer.status == 200
    assert abs(len(answer.body) - len(small)) < len(small) / 2
