"""Faults inside of the server: the request that meets one gets 500 and its id, and the others get their answers."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import anyformer
from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.text.detokenizer import ByteDetokenizer
from anyformer.serve.api.choices import Choice, Jobs
from anyformer.serve.api.completions import Answer as CompletionAnswer
from tests.serve.asking import assert_alike, assert_unharmed, events_of, joined
from tests.serve.gates import REFERENCE, Asked, Gate, reference
from tests.serve.running import PATIENCE, Answer, Client, Running, config_of, serving_engine, wait_for

PATH, CHAT = "/v1/completions", "/v1/chat/completions"
BAD = 77
"""A token at which things break."""
VICTIM = {"prompt": "the cat", "max_tokens": 30, "temperature": 0, "logit_bias": {str(BAD): 100}}
OTHER = {
    "prompt": "the dog",
    "max_tokens": 30,
    "seed": 3,
    "ignore_eos": True,
    "logit_bias": {str(BAD): -100},
    "logprobs": 1,
}
USER = {"role": "user", "content": "the cat"}
HERE = Path(anyformer.__file__).parent.parent


class Panic(BaseException):
    """What the tokenizers library raises is no Exception."""


@pytest.fixture(scope="module")
def server(chat_folder: Path) -> Iterator[Running]:
    with serving_engine(config_of(model=str(chat_folder), dtype="float64", max_num_seqs=4)) as running:
        yield running
        assert_unharmed(running)


@contextlib.contextmanager
def among_others(running: Running) -> Iterator[None]:
    """Whatever breaks inside, three others that run beside it and one that comes later are answered as before."""
    right = [running.post(PATH, OTHER | {"seed": seed}).data["choices"] for seed in range(3)]
    with Gate(running) as gate:
        asked = [Asked(running, PATH, OTHER | {"seed": seed}) for seed in range(3)]
        running.eventually(lambda: len(running.client._live) == 3)
        gate.let(3)
        gate.open()
        yield
    for each, wanted in zip(asked, right, strict=True):
        assert_alike(each.result().data["choices"], wanted)
    assert_unharmed(running)
    assert_alike(running.post(PATH, OTHER | {"seed": 0}).data["choices"], right[0])


def assert_failed(answer: Answer, *words: str) -> None:
    """500 with the request's id, and not a word of what went wrong inside."""
    assert answer.status == 500, answer.body
    assert answer.error["type"] == "server_error"
    assert answer.headers["x-should-retry"] == "false"
    assert answer.headers["x-request-id"] == "mine"
    assert b"secret" not in answer.body
    assert all(word in answer.error["message"] for word in words)


def victim(running: Running, body: dict[str, Any], path: str = PATH) -> Answer:
    return running.post(path, body, x_request_id="mine")


@pytest.mark.parametrize("phase", ["prefill", "decode"])
@pytest.mark.parametrize("stream", [False, True])
def test_forward_that_fails_for_one_request_ends_that_one_only(server: Running, monkeypatch, phase: str, stream: bool):
    runner = server.client.worker.engine.runner
    decode, forward = runner.decode, runner.forward

    def failing_decode(kv: Any, tokens: list[int], *more: Any) -> Any:
        if phase == "decode" and BAD in tokens:
            raise RuntimeError("secret words")
        return decode(kv, tokens, *more)

    def failing_forward(kv: Any, tokens: list[list[int]], **more: Any) -> Any:
        if any(BAD in row for row in tokens):
            raise RuntimeError("secret words")
        return forward(kv, tokens, **more)

    monkeypatch.setattr(runner, "decode", failing_decode)
    monkeypatch.setattr(runner, "forward", failing_forward)
    body = VICTIM | {"stream": stream} | ({"prompt": [5, BAD, 6]} if phase == "prefill" else {})
    with among_others(server):
        answer = victim(server, body)
        if stream and phase == "decode":
            # The first token was sent already.
            assert answer.status == 200
            last = answer.body.decode().split("\n\n")[-2]
            assert json.loads(last.removeprefix("data: "))["error"]["type"] == "server_error"
            assert b"secret" not in answer.body
            assert b"[DONE]" not in answer.body
        else:
            assert_failed(answer)


def test_sampler_that_fails_for_one_request_ends_that_one_only(server: Running, monkeypatch):
    sampler = server.client.worker.engine.sampler
    sample = sampler._sample

    def failing(logits_BV: Any, sequences: list[Any]) -> Any:
        if any(each.request.prompt[-1] == BAD for each in sequences):
            raise RuntimeError("secret words")
        return sample(logits_BV, sequences)

    monkeypatch.setattr(sampler, "_sample", failing)
    with among_others(server):
        assert_failed(victim(server, {"prompt": [5, BAD], "max_tokens": 5}))


def test_step_that_fails_as_a_whole_ends_what_runs_and_the_engine_lives_on(server: Running, monkeypatch):
    engine = server.client.worker.engine
    right = reference(server)

    def failing() -> Any:
        raise RuntimeError("secret words")

    monkeypatch.setattr(engine.scheduler, "schedule", failing)
    assert_failed(victim(server, REFERENCE))
    monkeypatch.undo()
    assert_unharmed(server)
    assert_alike(reference(server), right)


def test_tokenizer_that_panics_fails_that_request_only(server: Running, monkeypatch):
    whole = Tokenizer.encode

    def failing(self: Tokenizer, text: str, **how: Any) -> Any:
        if "panic" in text:
            raise Panic("secret words")
        return whole(self, text, **how)

    monkeypatch.setattr(Tokenizer, "encode", failing)
    with among_others(server):
        assert_failed(victim(server, {"prompt": "panic"}))
        assert_failed(victim(server, {"prompt": "panic" * 300}))
        assert_failed(victim(server, {"prompt": ["the cat", "panic"], "stream": True}))
        assert_failed(victim(server, {"input": "panic"}, "/v1/embeddings"))


def test_detokenizer_that_panics_fails_that_request_only(server: Running, monkeypatch):
    whole = ByteDetokenizer.push

    def failing(self: ByteDetokenizer, *ids: int) -> str:
        if BAD in ids:
            raise Panic("secret words")
        return whole(self, *ids)

    monkeypatch.setattr(ByteDetokenizer, "push", failing)
    with among_others(server):
        assert_failed(victim(server, VICTIM), "mine")
        # Where the engine looks for a stop string, it meets the same.
        assert_failed(victim(server, VICTIM | {"stop": ["zz"]}))
        streamed = victim(server, VICTIM | {"stream": True})
        assert streamed.status == 500 or b'"error"' in streamed.body
        assert b"secret" not in streamed.body


@pytest.mark.parametrize(
    ("owner", "name", "mine"),
    [
        (CompletionAnswer, "__init__", lambda self, handler, jobs, *_: jobs.request.id == "mine"),
        (CompletionAnswer, "body", lambda self: self.jobs.request.id == "mine"),
        (Jobs, "usage", lambda self: self.request.id == "mine"),
        (Choice, "push", lambda self, output: BAD in output.ids),
    ],
)
def test_handler_that_fails_gives_its_slots_back(server: Running, monkeypatch, owner: type, name: str, mine: Any):
    whole = getattr(owner, name)

    def failing(*given: Any) -> Any:
        if mine(*given):
            raise ValueError("secret words")
        return whole(*given)

    monkeypatch.setattr(owner, name, failing)
    with among_others(server):
        assert_failed(victim(server, VICTIM | {"max_tokens": 60}), "internal error, request id mine")


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", [PATH, CHAT, "/v1/responses", "/v1/messages", "/completion"])
def test_request_that_fails_half_way_is_ended_in_the_engine_too(server: Running, monkeypatch, path: str, stream: bool):
    whole, count = Choice.push, iter(range(10**6))

    def failing(self: Choice, output: Any) -> str:
        if next(count) >= 3:
            raise ValueError("secret words")
        return whole(self, output)

    body = {
        PATH: {"prompt": "the cat", "max_tokens": 400, "ignore_eos": True}, CHAT: {"messages": [USER], "max_tokens": 400, "ignore_eos": True},
        "/v1/responses": {"input": "the cat", "max_output_tokens": 400, "temperature": 0}, "/completion": {"prompt": "the cat", "n_predict": 400, "ignore_eos": True},
        "/v1/messages": {"messages": [USER], "max_tokens": 400, "temperature": 0},
    }[path]  # fmt: skip
    monkeypatch.setattr(Choice, "push", failing)
    with Gate(server) as gate:
        asked = Asked(server, path, body | {"stream": stream})
        server.eventually(lambda: gate.held)
        gate.let(4)
        answer = asked.result()
        assert b"secret" not in answer.body
        assert b"error" in answer.body
        # It ran into its fault while the engine stood before its fifth step, which is the last.
        gate.let()
        server.eventually(lambda: not server.client.worker.engine.requests)
        assert gate.steps <= 5


def test_answer_that_is_no_json_is_a_fault(server: Running, monkeypatch):
    monkeypatch.setattr(CompletionAnswer, "body", lambda self: {"logprob": float("nan")})
    assert_failed(victim(server, VICTIM))


# The end


class Child:
    """`anyformer serve` as a user starts it."""

    def __init__(self, launch: Any, folder: Path, *options: str) -> None:
        command = [sys.executable, "-m", "anyformer", "serve", str(folder), "--port", "0", "--threads", "1", *options]
        self.process = launch(command, cwd=HERE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)", line)
        assert found is not None, line + self.process.stderr.read()
        self.client = Client(int(found[1]))

    def running(self) -> int:
        text = self.client.get("/metrics").body.decode()
        numbers = re.findall(r"^vllm:num_requests_(?:running|waiting)\{.*\} ([\d.]+)$", text, re.MULTILINE)
        return sum(int(float(each)) for each in numbers)


@pytest.mark.parametrize("process", [(), ("--front-end-process",)])
def test_sigterm_under_load_answers_every_request_that_was_accepted(
    launch, chat_folder: Path, process: tuple[str, ...]
):
    child = Child(launch, chat_folder, "--max-num-seqs", "2", "--log", "none", *process)
    body = {"prompt": "the cat", "max_tokens": 200, "ignore_eos": True, "temperature": 0}
    asked = [Asked(child.client, PATH, body | {"stream": i % 2 == 0}) for i in range(8)]
    wait_for(lambda: child.running() >= 4)
    child.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(ConnectionError):
        while (answer := child.client.post(PATH, body | {"max_tokens": 1})).status != 503:
            assert answer.status == 200
        assert int(answer.headers["retry-after"]) > 0
    texts, turned_away = [], 0
    for i, each in enumerate(asked):
        answer = each.result()
        turned_away += answer.status == 503
        if answer.status != 503:
            texts.append((joined(answer) if i % 2 == 0 else answer.data)["choices"][0])
    # Whoever came before the signal has a whole answer.
    assert len(texts) >= 4
    assert len(texts) + turned_away == 8
    assert {(choice["text"], choice["finish_reason"]) for choice in texts} == {(texts[0]["text"], "length")}
    assert child.process.wait(PATIENCE) == 0
    assert child.process.stderr.read() == ""


def test_sigterm_that_comes_twice_ends_at_once(launch, chat_folder: Path):
    child = Child(launch, chat_folder, "--max-num-seqs", "2", "--log", "none")
    body = {"prompt": "the cat", "max_tokens": 500, "ignore_eos": True, "stream": True}
    asked = [Asked(child.client, PATH, body) for _ in range(9)]
    wait_for(lambda: child.running() >= 7)
    child.process.send_signal(signal.SIGTERM)
    with contextlib.suppress(ConnectionError):
        wait_for(lambda: child.client.get("/ready").status == 503)
    child.process.send_signal(signal.SIGTERM)
    assert child.process.wait(PATIENCE) in (0, 1)
    ended = 0
    for each in asked:
        with contextlib.suppress(Exception):
            events_of(each.result())
            ended += 1
    # Not all of them can have been answered by then.
    assert ended < 9
