"""A real server in a thread of the test's process, and clients that send it any bytes."""

import asyncio
import contextlib
import dataclasses
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from typing import Any

from anyformer.serve.config import Limits, ServeConfig
from anyformer.serve.http.app import App, ServerState
from anyformer.serve.http.listen import Server, bind
from anyformer.serve.http.reply import RouteTable
from anyformer.serve.server import loop_factory, serve_engine

PATIENCE = 60.0
"""Seconds after which a test gives up. None of them waits that long unless it fails."""


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def data(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return self.data["error"]


class Client:
    """Sends requests, and any other bytes, to a port of this machine."""

    def __init__(self, port: int) -> None:
        self.port = port

    def ask(self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None) -> Answer:
        """One request over a connection of its own. Bytes are sent as they are, anything else as JSON."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)) as connection:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            kind = {} if body is None else {"Content-Type": "application/json"}
            connection.request(method, path, sent, kind | (headers or {}))
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())

    def post(self, path: str, body: Any, **headers: str) -> Answer:
        return self.ask("POST", path, body, {name.replace("_", "-"): value for name, value in headers.items()})

    def get(self, path: str, **headers: str) -> Answer:
        return self.ask("GET", path, None, {name.replace("_", "-"): value for name, value in headers.items()})

    def connect(self, *, receive_buffer: int | None = None) -> socket.socket:
        """A connection of one's own, to be closed by the test."""
        sock = socket.socket()
        if receive_buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
        sock.settimeout(PATIENCE)
        sock.connect(("127.0.0.1", self.port))
        return sock

    def raw(self, data: bytes) -> bytes:
        """What comes back for some bytes until the server closes the connection."""
        with self.connect() as sock:
            sock.sendall(data)
            return read_all(sock)

    def head(self, method: str, path: str, *lines: str) -> bytes:
        """The bytes of a request's head."""
        return "\r\n".join([f"{method} {path} HTTP/1.1", f"Host: 127.0.0.1:{self.port}", *lines, "", ""]).encode()


class Running(Client):
    """A server that runs, in this process."""

    def __init__(self, server: Server, thread: threading.Thread, client: Any = None) -> None:
        super().__init__(server.port)
        self.server, self.thread, self.client = server, thread, client
        """`client` is that of the engine, if there is one."""

    @property
    def base_url(self) -> str:
        return self.server.url

    @property
    def state(self) -> ServerState:
        return self.server.state

    def call(self, act: Callable[[], Any]) -> None:
        """Do something on the server's own thread."""
        loop = self.server.loop
        assert loop is not None
        loop.call_soon_threadsafe(act)

    def eventually(self, condition: Callable[[], bool]) -> None:
        """Wait for something that happens on the server's side."""
        wait_for(condition)

    def engine_idle(self) -> None:
        """Wait until the engine has nothing left: no sequence, and every block free."""

        worker = getattr(self.client, "worker", None)

        def idle() -> bool:
            # The snapshot may be older than a request that was left at once.
            now, rests = self.client.snapshot, worker is None or worker.engine.idle
            return rests and not now["running"] and not now["waiting"] and now["free_blocks"] == now["num_blocks"]

        wait_for(idle)
        if worker is not None:
            worker.engine.check()


def wait_for(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError("the server did not get there")
        time.sleep(0.005)


def read_all(sock: socket.socket) -> bytes:
    """All that comes until the other side closes; a reset counts as that."""
    parts = []
    with contextlib.suppress(ConnectionResetError):
        while part := sock.recv(65536):
            parts.append(part)
    return b"".join(parts)


def read_until(sock: socket.socket, end: bytes) -> bytes:
    """All that comes up to and with some bytes, or until the other side closes."""
    found = b""
    while not found.endswith(end) and (part := sock.recv(1)):
        found += part
    return found


def status_of(answer: bytes) -> int:
    """The status of an answer's bytes."""
    return int(answer.split(b" ", 2)[1])


def error_of(answer: bytes) -> dict[str, Any]:
    """The error object of an answer's bytes."""
    return json.loads(answer.split(b"\r\n\r\n", 1)[1])["error"]


def config_of(limits: dict[str, Any] | None = None, **changes: Any) -> ServeConfig:
    """Settings for a test: any port, one thread, no log."""
    usual = ServeConfig(model="none", port=0, threads=1, log="none", limits=Limits(**(limits or {})))
    return dataclasses.replace(usual, **changes)


@contextlib.contextmanager
def in_thread(
    config: ServeConfig, client: Any, main: Callable[[ServeConfig, socket.socket, Any], Coroutine[Any, Any, int]]
) -> Iterator[Running]:
    """Run a server's coroutine in a thread; what still runs in the end is ended."""
    ready = threading.Event()
    found: list[Server] = []
    failures: list[BaseException] = []

    def on_ready(server: Server) -> None:
        found.append(server)
        ready.set()

    with bind(config.host, config.port, keys=bool(config.keys)) as sock:
        config = dataclasses.replace(config, port=sock.getsockname()[1])

        def work() -> None:
            try:
                with asyncio.Runner(loop_factory=loop_factory()) as runner:
                    runner.run(main(config, sock, on_ready))
            except BaseException as error:
                failures.append(error)
            finally:
                ready.set()

        thread = threading.Thread(target=work, name="server")
        thread.start()
        try:
            ready.wait()
            if failures:
                raise failures[0]
            yield Running(found[0], thread, client)
        finally:
            for server in found:
                server.stop()
                server.stop()
            thread.join()
    if failures:
        raise failures[0]


def serving_routes(
    routes: RouteTable | Callable[[ServerState], RouteTable], config: ServeConfig | None = None
) -> contextlib.AbstractContextManager[Running]:
    """A server without an engine."""
    state = ServerState()
    table = routes(state) if callable(routes) else routes

    async def main(config: ServeConfig, sock: socket.socket, on_ready: Any) -> int:
        return await Server(App(table, config, state), sock, on_ready).until_stopped()

    return in_thread(config or config_of(), None, main)


def serving_engine(config: ServeConfig) -> contextlib.AbstractContextManager[Running]:
    """A server with the engine of a model."""
    from anyformer.serve.engine.client import open_engine

    client = open_engine(config)

    async def main(config: ServeConfig, sock: socket.socket, on_ready: Any) -> int:
        return await serve_engine(config, client, sock, on_ready)

    return in_thread(config, client, main)
