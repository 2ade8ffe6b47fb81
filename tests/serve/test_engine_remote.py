"""An engine in a process of its own: the same answers, and nothing left when either side is gone."""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys

import pytest

from anyformer.cli.main import main
from anyformer.errors import AnyformerError, InputError
from anyformer.serve.engine.client import open_engine
from anyformer.serve.engine.messages import FRAME_BYTES, FrameError, FrameReader, pack_config, to_frame
from anyformer.serve.engine.process import Connection, smaller
from anyformer.serve.engine.remote import PROGRAM, RemoteEngine
from anyformer.serve.errors import ApiError
from tests.serve.engines import ask, assert_serves_all, config_of, local, outputs, running

ROWS = [[1, 2, 3], [4], [5, 6, 7, 8]]


def remote(folder, limits=None, **more) -> RemoteEngine:
    client = open_engine(config_of(folder, limits, front_end_process=True, **more))
    assert isinstance(client, RemoteEngine)
    return client


def test_remote_engine_gives_what_the_local_one_gives_and_ends_with_its_client(model_folder):
    async def here():
        async with local(model_folder) as client:
            return client.facts, await client.embed(ROWS, pooling="none", normalize=False), await client.look([1, 2, 3])

    async def scenario():
        facts, vectors, look = await here()
        client = remote(model_folder)
        async with running(client):
            process = client.process
            assert client.facts == facts
            await assert_serves_all(client, model_folder)
            assert await client.embed(ROWS, pooling="none", normalize=False) == vectors
            assert await client.look([1, 2, 3]) == json.loads(json.dumps(look))
            with pytest.raises(ApiError, match="serves up to 96") as refused:
                await outputs(ask(client, [1, 2, 3], max_new_tokens=500))
            assert refused.value.status == 400
            cancelled = ask(client, [1, 2, 3], max_new_tokens=90, stop=[])
            await anext(cancelled)
            cancelled.cancel()
            prompt = [(5 * i) % 200 + 1 for i in range(40)]
            for cached in (0, 32):
                generation = ask(client, prompt, "salt", max_new_tokens=2)
                await outputs(generation)
                assert generation.num_cached_tokens == cached
            assert (client.snapshot["running"], client.snapshot["waiting"]) == (0, 0)
            assert client.snapshot["free_blocks"] == client.facts.num_blocks
            left = ask(client, [1, 2, 3], max_new_tokens=90, stop=[])
        assert process.returncode == 0
        assert not client.healthy
        with pytest.raises(ApiError, match="shutting down"):
            await outputs(left)
        with pytest.raises(ApiError) as refused:
            ask(client, [1])
        assert refused.value.status == 503
        await client.close()

    asyncio.run(scenario())


def test_remote_engine_that_is_killed_is_unhealthy_and_everybody_is_told(model_folder):
    async def scenario():
        client = remote(model_folder)
        async with running(client):
            process = client.process
            await outputs(ask(client, [1, 2, 3], max_new_tokens=3))
            # It stands still, so that none of these ends before it does.
            os.kill(process.pid, signal.SIGSTOP)
            asked = [ask(client, [1, 2, 3], max_new_tokens=90, stop=[]) for _ in range(3)]
            jobs = [asyncio.ensure_future(client.embed(ROWS * 80, pooling="mean", normalize=True))]
            await asyncio.sleep(0)
            os.kill(process.pid, signal.SIGKILL)
            found = await asyncio.gather(*map(outputs, asked), *jobs, return_exceptions=True)
            assert {(each.status, each.code) for each in found} == {(503, "engine_gone")}
            assert not client.healthy
            with pytest.raises(ApiError, match="process has ended") as refused:
                ask(client, [1])
            assert refused.value.status == 503
            asked[0].cancel()
        assert process.returncode == -signal.SIGKILL

    asyncio.run(scenario())


def test_remote_engine_whose_model_is_not_there_says_so_and_leaves_no_process(tmp_path):
    async def scenario():
        client = remote(tmp_path / "nothing-here")
        with pytest.raises(InputError, match="nothing-here"):
            await client.start()
        assert client.process is None
        await client.close()

    asyncio.run(scenario())


def test_remote_engine_that_ends_while_it_loads_says_so_in_one_line(model_folder, monkeypatch):
    # Any program that ends at once.
    monkeypatch.setattr("anyformer.serve.engine.remote.PROGRAM", "this")

    async def scenario():
        client = remote(model_folder)
        with pytest.raises(AnyformerError, match=r"process has ended before it had read the model; .* memory") as told:
            await client.start()
        assert "\n" not in str(told.value)
        assert client.process is None

    asyncio.run(scenario())


def test_engine_process_logs_as_the_server_does(model_folder, launch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        child = launch([sys.executable, "-m", PROGRAM, str(fd)], pass_fds=(fd,), stderr=subprocess.PIPE, text=True)
        theirs.close()
        ours.sendall(to_frame(pack_config(config_of(model_folder, log="json"))))
        ours.sendall(to_frame({"type": "nonsense", "number": 1}))
        line = json.loads(child.stderr.readline())
    assert (line["level"], line["message"]) == ("error", "a message of an unknown type: nonsense")
    assert child.wait(60) == 0


def test_log_of_json_has_warnings_and_what_others_log_as_json_too(launch):
    script = (
        "import logging, warnings; from anyformer.serve.http.logs import log_to_stderr; log_to_stderr('json');"
        "warnings.warn('a source of 401 tokens'); logging.getLogger('other').warning('beware')"
    )
    child = launch([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    lines = [json.loads(line) for line in child.communicate()[1].splitlines()]
    assert [(line["level"], line["message"]) for line in lines] == [
        ("warning", "a source of 401 tokens"),
        ("warning", "beware"),
    ]


def test_key_of_the_environment_is_not_passed_on_to_other_processes(model_folder, monkeypatch):
    seen = []

    def serve(config, on_ready) -> int:
        seen.append((config.keys, "ANYFORMER_API_KEY" in os.environ))
        return 0

    monkeypatch.setattr("anyformer.serve.server.serve", serve)
    monkeypatch.setenv("ANYFORMER_API_KEY", "secret")
    assert main(["serve", str(model_folder)]) == 0
    assert seen == [(("secret",), False)]


def test_remote_engine_whose_start_is_cancelled_leaves_no_process(model_folder):
    async def scenario():
        client = remote(model_folder)
        task = asyncio.ensure_future(client.start())
        while client.process is None:
            await asyncio.sleep(0)
        process = client.process
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert process.returncode is not None

    asyncio.run(scenario())


def test_engine_process_ends_when_its_front_end_is_gone(model_folder, launch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        child = launch([sys.executable, "-m", PROGRAM, str(fd)], pass_fds=(fd,), start_new_session=True)
        theirs.close()
        ours.sendall(to_frame(pack_config(config_of(model_folder))))
        connection = Connection(ours)
        assert connection.receive()[0]["type"] == "ready"
        asked = {"type": "add", "number": 1, "id": "a", "prompt": [1, 2], "params": {"max_new_tokens": 90, "stop": []}}
        ours.sendall(to_frame(asked | {"cache_salt": None}))
        assert connection.receive()[0]["type"] == "batch"
    assert child.wait(60) == 0


def test_engine_process_that_still_loads_ends_when_its_front_end_is_gone(model_folder, launch):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        fd = theirs.fileno()
        child = launch([sys.executable, "-m", PROGRAM, str(fd)], pass_fds=(fd,), stderr=subprocess.DEVNULL)
        ours.sendall(to_frame(pack_config(config_of(model_folder))))
    child.wait(60)


def test_frames_come_out_as_they_went_in_however_they_are_cut():
    messages = [{"type": "a", "n": i, "text": "\u00e9" * i, "inf": float("-inf")} for i in range(40)]
    data, found = b"".join(map(to_frame, messages)), []
    for size in (1, 7, 100_000):
        reader, found = FrameReader(), []
        for at in range(0, len(data), size):
            found += reader.push(data[at : at + size])
        assert found == messages


@pytest.mark.parametrize("data", [(FRAME_BYTES + 1).to_bytes(4, "big"), b"\0\0\0\2{]", b"\0\0\0\2[]", b"\0\0\0\1\xff"])
def test_frames_that_are_none_are_refused(data):
    with pytest.raises(FrameError):
        list(FrameReader().push(data))


def test_messages_that_are_too_large_go_in_parts_or_as_errors(monkeypatch):
    monkeypatch.setattr("anyformer.serve.engine.messages.FRAME_BYTES", 300)
    ours, theirs = socket.socketpair()
    with ours, theirs:
        connection, reader = Connection(ours), FrameReader()
        rows = [[i, 0, list(range(12))] for i in range(20)]
        connection.send({"type": "batch", "rows": rows, "snapshot": {}, "steps": [1]})
        connection.send({"type": "answer", "number": 3, "value": "x" * 400})
        connection.send({"type": "batch", "rows": [[9, 0, [1], {"prompt_logprobs": "x" * 400}]], "snapshot": {}})
        found = list(reader.push(theirs.recv(2**16)))
    batches = [each for each in found if each["type"] == "batch"]
    assert [row for each in batches for row in each["rows"]] == rows
    assert sum(len(each.get("steps", [])) for each in batches) == 1
    assert [each["error"][0] for each in found if each["type"] == "answer"] == [400]
    assert batches[-1]["refused"][0][:2] == [9, 400]
    with pytest.raises(FrameError):
        smaller({"type": "ready", "facts": "x" * 400}, FrameError("too large"))
