"""Malformed requests over all routes: none is the server's fault, and none leaves anything behind."""

import contextlib
import itertools
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from anyformer.serve.http import exchange, protocol
from tests.serve.asking import assert_alike, assert_unharmed
from tests.serve.gates import reference
from tests.serve.malformed import Made, Malformer, Tally
from tests.serve.running import Running, config_of, read_all, serving_engine

COUNT = 1500


@pytest.fixture
def server(chat_folder: Path, monkeypatch) -> Iterator[Running]:
    # Nobody waits long for a client that was refused, or that says less than it announced.
    monkeypatch.setattr(exchange, "LINGER_SECONDS", 0.02)
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.02)
    limits = {"body_seconds": 0.2, "head_seconds": 0.2}
    config = config_of(limits, model=str(chat_folder), dtype="float64", max_num_seqs=4, max_model_len=128, slots=True)
    with serving_engine(config) as running:
        yield running


def send(running: Running, made: Made) -> bytes:
    with running.connect() as sock:
        # The server may have heard enough before all is said.
        with contextlib.suppress(ConnectionError):
            sock.sendall(made.data)
            if made.kind == "raw":
                sock.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            return read_all(sock)
        return b""


def test_malformed_requests_are_answered_and_leave_nothing(server: Running):
    right = reference(server)
    document = server.get("/openapi.json").data
    made, tally = Malformer(document, f"127.0.0.1:{server.port}", seed=0), Tally()
    for i, each in enumerate(itertools.islice(made, COUNT)):
        tally.add(each, send(server, each))
        if i % 500 == 499:
            assert_unharmed(server)
    assert "\n\n".join(tally.wrong[:5]) == ""
    assert tally.requests == COUNT
    # Each kind of answer was there, so the generator is worth something.
    assert tally.statuses.keys() >= {200, 400, 403, 404, 405, 415}
    assert_unharmed(server)
    assert_alike(reference(server), right)
