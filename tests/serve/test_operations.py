"""Health, metrics, settings and slots."""

import json

import pytest

import anyformer as af


def test_health_and_ready_need_no_key(serving):
    with serving(keys=("secret",)) as server:
        for path in ("/health", "/ready"):
            assert (server.get(path).status, server.get(path).data) == (200, {"status": "ok"})
        for path in ("/metrics", "/version", "/props", "/slots", "/openapi.json", "/v1/models", "/api/model"):
            assert server.get(path).status == 401, path


def test_ready_is_refused_while_the_server_drains(serving):
    with serving() as server:
        server.state.draining = True
        assert server.get("/health").status == 200
        answer = server.get("/ready")
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        assert answer.headers["retry-after"].isdigit()


def test_health_is_refused_if_the_engine_is_gone(serving, monkeypatch):
    with serving() as server:
        monkeypatch.setattr(type(server.client), "healthy", property(lambda self: False))
        assert (server.get("/health").status, server.get("/ready").status) == (503, 503)


def test_metrics_are_counted_and_can_be_off(serving):
    with serving() as server:
        server.post("/completion", {"prompt": "the cat", "n_predict": 3})
        answer = server.get("/metrics")
        assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
        lines = answer.body.decode().splitlines()
        (made,) = [line for line in lines if line.startswith("vllm:generation_tokens_total")]
        assert made.endswith(" 3")
    with serving(metrics=False) as server:
        answer = server.get("/metrics")
        assert (answer.status, answer.error["type"]) == (501, "not_supported_error")


def test_version_is_that_of_the_package(serving):
    with serving() as server:
        assert server.get("/version").data == {"version": af.__version__}


def test_props_tell_defaults_and_no_path(serving, model_folder):
    defaults = (("temperature", 0.25), ("seed", 7), ("repetition_penalty", 1.5))
    with serving(max_num_seqs=3, defaults=defaults) as server:
        answer = server.get("/props")
        found = answer.data
        assert found["total_slots"] == 3
        settings = found["default_generation_settings"]
        assert settings["n_ctx"] == 256
        assert settings["params"] | {"temperature": 0.25, "seed": 7, "repeat_penalty": 1.5, "n_predict": -1} == settings["params"]  # fmt: skip
        assert found["bos_token"] == "<|endoftext|>"
        assert "add_generation_prompt" in found["chat_template"]
        assert str(model_folder.parent) not in answer.body.decode()


def test_slots_are_off_unless_asked_for(serving):
    with serving() as server:
        assert server.get("/slots").status == 501


def test_slots_tell_who_is_busy_and_never_what_about(serving):
    with serving(slots=True, max_num_seqs=2) as server:
        assert [each["is_processing"] for each in server.get("/slots").data] == [False, False]
        with server.connect() as sock:
            body = json.dumps({"prompt": "the cat", "n_predict": 200, "ignore_eos": True, "stream": True}).encode()
            head = server.head("POST", "/completion", "Content-Type: application/json", f"Content-Length: {len(body)}")
            sock.sendall(head + body)
            sock.recv(1)
            seen = server.get("/slots")
            assert "cat" not in seen.body.decode()
            assert [each["n_ctx"] for each in seen.data] == [256, 256]
        server.engine_idle()
        server.eventually(lambda: not any(each["is_processing"] for each in server.get("/slots").data))


@pytest.mark.parametrize("path", ["/health", "/props", "/metrics", "/openapi.json"])
def test_operations_take_no_post(serving, path: str):
    with serving() as server:
        answer = server.post(path, {})
        assert (answer.status, answer.headers["allow"]) == (405, "GET, HEAD")
