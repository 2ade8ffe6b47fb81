"""What one client has said is nobody else's: not in the cache, not in recycled blocks, not in logs or errors."""

import logging
from pathlib import Path
from typing import Any

import pytest

from tests.serve.asking import assert_alike, assert_unharmed
from tests.serve.gates import REFERENCE, reference
from tests.serve.running import Running, config_of, serving_engine

PATH = "/v1/completions"
SECRET = "the password of the cat is swordfish, and nobody knows"
KEYS = {name: {"Authorization": f"Bearer {name}"} for name in ("ann", "bob", "cyd")}


def ask(running: Running, key: str | None = None, **body: Any) -> dict[str, Any]:
    headers = {} if key is None else KEYS[key]
    answer = running.ask("POST", PATH, {"prompt": SECRET, "max_tokens": 1, "temperature": 0} | body, headers)
    assert answer.status == 200, answer.body
    return answer.data


def cached(running: Running, key: str | None = None, **body: Any) -> int:
    """Tokens of a prompt that were there already, which is what the time of an answer would tell."""
    return ask(running, key, **body)["usage"]["prompt_tokens_details"]["cached_tokens"]


def test_cache_is_shared_by_those_with_the_same_key_only(chat_folder: Path):
    with serving_engine(config_of(model=str(chat_folder), keys=tuple(KEYS))) as running:
        assert [cached(running, key) for key in ("ann", "bob", "cyd")] == [0, 0, 0]
        assert all(cached(running, key) >= 16 for key in KEYS)
        running.engine_idle()
        other = SECRET.replace("swordfish", "something")
        # A guess that is right up to a block tells nothing to somebody else either.
        assert cached(running, "ann", prompt=other) >= 16
        assert cached(running, "cyd", prompt=SECRET[:40] + "x" * 40) >= 16
    with serving_engine(config_of(model=str(chat_folder), keys=tuple(KEYS))) as running:
        assert (cached(running, "ann"), cached(running, "bob", prompt=SECRET[:40] + "x" * 40)) == (0, 0)


def test_cache_without_keys_is_shared_by_all_unless_it_is_off(chat_folder: Path):
    with serving_engine(config_of(model=str(chat_folder))) as running:
        assert cached(running) == 0
        assert cached(running) >= 16
    with serving_engine(config_of(model=str(chat_folder), enable_prefix_caching=False)) as running:
        assert [cached(running), cached(running)] == [0, 0]


def test_cache_of_others_does_not_change_an_answer(chat_folder: Path):
    with serving_engine(config_of(model=str(chat_folder), keys=tuple(KEYS), dtype="float64")) as running:
        body = {"max_tokens": 20, "logprobs": 3, "ignore_eos": True}
        first = ask(running, "ann", **body)["choices"]
        for key in ("ann", "bob", "ann", "cyd"):
            assert_alike(ask(running, key, **body)["choices"], first)


def test_blocks_that_were_used_before_are_never_read(chat_folder: Path):
    config = config_of(model=str(chat_folder), keys=tuple(KEYS), dtype="float64", max_num_seqs=2, num_blocks=33)
    body = {"prompt": "x" * 100, "max_tokens": 60, "logprobs": 2, "ignore_eos": True}
    with serving_engine(config) as running:
        right = ask(running, "bob", **body)["choices"]
    with serving_engine(config) as running:
        # All blocks have been somebody's.
        for size in (400, 300, 490):
            ask(running, "ann", prompt=(SECRET * 20)[:size], max_tokens=10)
        running.engine_idle()
        assert_alike(ask(running, "bob", **body)["choices"], right)
        running.engine_idle()
        pool = running.client.worker.engine.pool
        for i in range(len(pool.policies)):
            for tensor in pool._tensors(i):
                if tensor.is_floating_point():
                    tensor.fill_(1e6)
        # Whoever read a block before writing it would say something else.
        assert_alike(ask(running, "cyd", **body)["choices"], right)
        assert_unharmed(running)


@pytest.fixture
def lines():
    """All that is logged."""
    found: list[str] = []

    class Keeper(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            found.append(self.format(record))

    keeper, logger = Keeper(), logging.getLogger("anyformer")
    before = logger.level
    logger.addHandler(keeper)
    logger.setLevel(logging.DEBUG)
    yield found
    logger.removeHandler(keeper)
    logger.setLevel(before)


def test_texts_are_in_no_log_no_metric_and_no_error_of_others(chat_folder: Path, lines: list[str], monkeypatch):
    word = "swordfish"
    config = config_of(model=str(chat_folder), slots=True, log="json")
    with serving_engine(config) as running:
        before = reference(running)
        ask(running)
        running.post(PATH, {"prompt": SECRET, "max_tokens": "x", "stop": [word, ""], word: 1})
        running.post(PATH, {"prompt": SECRET * 100})
        running.post(PATH, {"prompt": "a", "structured_outputs": {"regex": f"({word}"}})
        running.post(
            "/v1/chat/completions", {"messages": [{"role": "user", "content": SECRET}], "max_tokens": 2, "stream": True}
        )
        running.get(f"/{word}?{word}", **{"x-request-id": "fine"})
        engine = running.client.worker.engine
        monkeypatch.setattr(engine.runner, "forward", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("broken")))
        failed = running.post(PATH, {"prompt": SECRET + "!", "max_tokens": 2})
        monkeypatch.undo()
        assert (failed.status, word in failed.body.decode()) == (500, False)
        assert lines
        for path in ("/metrics", "/slots", "/props", "/v1/models", "/api/model"):
            assert word.encode() not in running.get(path).body
        assert_alike(reference(running), before)
        assert REFERENCE["prompt"] not in "".join(lines)
        # The path is what was asked for, and is no text of a conversation.
        assert [line for line in lines if word in line and f"/{word}" not in line] == []
