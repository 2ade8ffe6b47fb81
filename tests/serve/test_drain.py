"""The end of a server: what runs may finish, what is new is turned away, and nothing is left."""

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

import anyformer
from anyformer.serve.engine.client import open_engine
from anyformer.serve.http import listen
from anyformer.serve.server import serve_engine
from tests.serve.running import (
    PATIENCE,
    Answer,
    Client,
    config_of,
    in_thread,
    read_all,
    read_until,
    status_of,
)
from tests.serve.test_http import send_post

HERE = Path(anyformer.__file__).parent.parent
SCRIPT = """
import asyncio, dataclasses, sys
from anyformer.serve.http.app import App, ServerState
from anyformer.serve.http.listen import Server, bind
from anyformer.serve.server import loop_factory
from tests.serve.running import config_of
from tests.serve.stub_routes import Stub

def ready(server):
    print(server.port, flush=True)
    asyncio.get_running_loop().add_reader(sys.stdin, stub.go.set)

stub, state = Stub(), ServerState()
with bind("127.0.0.1", 0, keys=False) as sock, asyncio.Runner(loop_factory=loop_factory()) as runner:
    config = dataclasses.replace(config_of(), port=sock.getsockname()[1])
    sys.exit(runner.run(Server(App(stub.routes(state), config, state), sock, ready).until_stopped()))
"""


class Asked(threading.Thread):
    """A request in a thread of its own."""

    def __init__(self, running, path: str, body: dict) -> None:
        super().__init__()
        self.ask = lambda: running.post(path, body)
        self.answer: Answer | None = None
        self.start()

    def run(self) -> None:
        self.answer = self.ask()

    def result(self) -> Answer:
        self.join()
        assert self.answer is not None
        return self.answer


@pytest.mark.parametrize(("path", "body"), [("/wait", {}), ("/stream", {"wait_at": 1})])
def test_drain_lets_what_runs_finish_and_turns_new_work_away(serving_stub, stub, path: str, body: dict):
    with serving_stub() as running:
        asked = Asked(running, path, body)
        running.eventually(lambda: stub.begun == 1)
        assert running.get("/ready").status == 200
        running.server.stop()
        running.eventually(lambda: running.state.draining)
        refused = running.post("/wait", {})
        assert (refused.status, refused.error["code"]) == (503, "shutting_down")
        assert int(refused.headers["retry-after"]) == 30
        assert refused.headers["connection"] == "close"
        # What is wrong in itself is told first.
        assert running.post("/wait", b"{").status == 400
        assert running.get("/ready").status == 503
        assert running.get("/health").status == 200
        running.call(stub.go.set)
        answer = asked.result()
        assert answer.status == 200
        assert answer.body == (b'{"waited":true}' if path == "/wait" else b"data: 0\n\ndata: 1\n\ndata: 2\n\n")
        running.thread.join()
        assert (stub.begun, stub.cancelled) == (1, 0)


def test_drain_ends_what_takes_longer_than_the_grace_and_says_so(serving_stub, stub):
    with serving_stub({"grace_seconds": 0.1}) as running:
        waiting, streaming = Asked(running, "/wait", {}), Asked(running, "/stream", {"wait_at": 1})
        running.eventually(lambda: stub.begun == 2)
        running.server.stop()
        running.thread.join()
        answer = waiting.result()
        assert (answer.status, answer.error["code"]) == (503, "shutting_down")
        first, error = streaming.result().body.split(b"\n\n", 1)
        assert first == b"data: 0"
        assert json.loads(error.removeprefix(b"data: "))["error"]["code"] == "shutting_down"
        assert stub.cancelled == 2
        assert not running.server.server_state.tasks


def test_drain_closes_idle_connections_and_forgets_half_requests(serving_stub):
    with serving_stub() as running, running.connect() as idle, running.connect() as half:
        idle.sendall(running.head("GET", "/health"))
        read_until(idle, b'"ok"}')
        half.sendall(b"POST /wa")
        running.eventually(lambda: len(running.server.server_state.connections) == 2)
        running.server.stop()
        assert (read_all(idle), read_all(half)) == (b"", b"")
        running.thread.join()


def test_drain_asked_for_twice_ends_at_once(serving_stub, stub):
    with serving_stub() as running, running.connect() as sock:
        send_post(running, sock, "/stream", {"wait_at": 1})
        assert status_of(read_until(sock, b"data: 0\n\n")) == 200
        running.server.stop()
        running.server.stop()
        read_all(sock)
        running.thread.join()
        assert (stub.cancelled, stub.closed) == (1, 1)
        assert not running.server.server_state.tasks


def test_drain_ends_a_reader_that_does_not_read(serving_stub, stub, monkeypatch):
    monkeypatch.setattr(listen, "LAST_SECONDS", 0.2)
    with serving_stub({"grace_seconds": 0.05}) as running, running.connect(receive_buffer=4096) as sock:
        send_post(running, sock, "/stream", {"count": 100_000, "size": 1000})
        running.eventually(lambda: stub.begun == 1)
        running.server.stop()
        running.thread.join()
        assert stub.closed == 1
        assert not running.server.server_state.tasks


def test_drain_under_load_finishes_what_the_engine_began(serving):
    body = {"prompt": "the cat", "max_tokens": 60, "ignore_eos": True, "temperature": 0}
    with serving(max_num_seqs=2) as running:
        right = running.post("/v1/completions", body).data["choices"]
        asked = [Asked(running, "/v1/completions", body | {"stream": i % 2 == 0}) for i in range(6)]
        running.eventually(lambda: running.state.active == 6)
        running.server.stop()
        answers = [each.result() for each in asked]
        running.thread.join()
        assert [answer.status for answer in answers] == [200] * 6
        assert all(answer.data["choices"] == right for answer in answers[1::2])
        assert all(answer.body.endswith(b"data: [DONE]\n\n") for answer in answers[::2])
        assert not running.client.healthy


@pytest.mark.parametrize("apart", [False, True])
def test_engine_that_dies_is_told_and_logged_and_ends_the_server_with_1(model_folder, monkeypatch, apart: bool):
    config = config_of(model=str(model_folder), front_end_process=apart)
    client, statuses, said = open_engine(config), [], []
    handler = logging.Handler()
    monkeypatch.setattr(handler, "emit", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(logging.getLogger("anyformer.serve.engine"), "handlers", [handler])

    async def main(config, sock, on_ready) -> int:
        statuses.append(await serve_engine(config, client, sock, on_ready))
        return statuses[0]

    def failing() -> None:
        raise RuntimeError("a bug of ours")

    body = {"prompt": "the cat", "max_tokens": 60, "ignore_eos": True}
    with in_thread(config, client, main) as running:
        assert running.post("/v1/completions", body).status == 200
        if apart:
            # It stands still, so that none of these ends before it does.
            process = client.process
            os.kill(process.pid, signal.SIGSTOP)
        else:
            gate, advance = threading.Event(), client.worker._advance_jobs
            monkeypatch.setattr(client.worker, "_advance_jobs", lambda: failing() if gate.wait(PATIENCE) else advance())
        asked = [Asked(running, "/v1/completions", body | {"stream": stream}) for stream in (False, True)]
        running.eventually(lambda: len(client._live) == 2)
        if apart:
            os.kill(process.pid, signal.SIGKILL)
        else:
            gate.set()
        answers = [each.result() for each in asked]
        running.thread.join()
    whole, stream = answers
    assert (whole.status, whole.error["code"]) == (503, "engine_gone")
    assert b'"engine_gone"' in stream.body
    assert statuses == [1]
    assert any("the server ends" in each for each in said)
    assert any("SIGKILL" in each for each in said) == apart


def start(launch) -> tuple[subprocess.Popen, int]:
    command = [sys.executable, "-c", SCRIPT]
    process = launch(
        command, cwd=HERE, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    return process, int(process.stdout.readline())


@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGINT])
def test_signal_drains_and_exits_with_0(launch, sent: signal.Signals):
    process, port = start(launch)
    running = Client(port)
    with running.connect() as sock:
        send_post(running, sock, "/stream", {"wait_at": 1})
        head = read_until(sock, b"data: 0\n\n")
        process.send_signal(sent)
        while running.ask("GET", "/ready").status == 200:
            pass
        assert running.ask("POST", "/wait", {}).status == 503
        assert process.poll() is None
        process.stdin.write("go\n")
        process.stdin.flush()
        rest = read_all(sock)
        assert status_of(head) == 200
        assert rest.count(b"data: ") == 2
        assert rest.endswith(b"0\r\n\r\n")
    assert process.wait(PATIENCE) == 0
    assert process.stderr.read() == ""


def test_signal_that_comes_twice_ends_at_once(launch):
    process, port = start(launch)
    running = Client(port)
    with running.connect() as sock:
        send_post(running, sock, "/stream", {"wait_at": 1})
        read_until(sock, b"data: 0\n\n")
        process.send_signal(signal.SIGTERM)
        while running.ask("GET", "/ready").status == 200:
            pass
        process.send_signal(signal.SIGTERM)
        assert process.wait(PATIENCE) == 1
        read_all(sock)
    assert process.stderr.read() == ""


def test_signal_without_work_ends_the_server(launch):
    process, _ = start(launch)
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE) == 0
