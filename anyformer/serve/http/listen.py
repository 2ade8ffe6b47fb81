"""The listening socket, and the server on it: from the first connection to the last."""

import asyncio
import contextlib
import errno
import ipaddress
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Generator
from types import FrameType

import uvicorn

from anyformer.errors import InputError
from anyformer.serve.errors import ApiError, draining
from anyformer.serve.http.access import WILDCARDS, bracketed
from anyformer.serve.http.app import App
from anyformer.serve.http.protocol import HttpConfig

SIGNALS = (signal.SIGINT, signal.SIGTERM)
LAST_SECONDS = 2.0
"""Time for clients to be told that their requests were ended."""
ADVICE = {
    errno.EADDRINUSE: "something else listens there; give another --port, or 0 for any that is free",
    errno.EACCES: "this user may not listen there; give a --port from 1024 on",
    errno.EADDRNOTAVAIL: "this machine has no such address; give one of its own as --host",
}


def bind(host: str, port: int, *, keys: bool) -> socket.socket:
    """A socket of that address, on which nothing listens yet. Without keys it has to be one of this machine only."""
    try:
        found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except (socket.gaierror, UnicodeError) as error:
        raise InputError(f"--host {host}: is no address or name that this machine knows ({error})") from None
    # A name may have addresses of both kinds.
    family, kind, protocol, _, address = min(found, key=lambda each: each[0] != socket.AF_INET)
    if not keys and not ipaddress.ip_address(str(address[0]).partition("%")[0]).is_loopback:
        raise InputError(
            f"--host {host}: everybody who reaches this machine could use the server; "
            "give it API keys (--api-key-file, or $ANYFORMER_API_KEY), or let it listen on 127.0.0.1"
        )
    sock = socket.socket(family, kind, protocol)
    try:
        if os.name == "posix":
            # A port whose last connections have just been closed is free.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        sock.close()
        raise unusable(host, port, error) from None
    return sock


def unusable(host: str, port: int, error: OSError) -> InputError:
    """Why there can't be a server at this address."""
    advice = ADVICE.get(error.errno or 0, "give another --host or --port")
    return InputError(f"{bracketed(host)}:{port}: {os.strerror(error.errno or 0)}; {advice}")


class Server(uvicorn.Server):
    """Serves an application until it is told to stop, and then until its last request is done."""

    config: HttpConfig

    def __init__(self, app: App, sock: socket.socket, on_ready: Callable[["Server"], None] | None = None) -> None:
        super().__init__(HttpConfig(app))
        self.app, self.state, self.limits = app, app.state, app.limits
        self.sock, self.on_ready = sock, on_ready
        self.port: int = sock.getsockname()[1]
        self.loop: asyncio.AbstractEventLoop | None = None
        self.until = 0.0
        self.failure: ApiError | None = None
        """Why it can't go on, if it can't."""

    @property
    def url(self) -> str:
        """Where it is reached from this machine."""
        host = self.app.config.host
        near = "127.0.0.1" if self.sock.family == socket.AF_INET else "::1"
        return f"http://{bracketed(near if host in WILDCARDS else host)}:{self.port}"

    async def until_stopped(self) -> int:
        """Serve; the exit status."""
        self.loop = asyncio.get_running_loop()
        await self.serve([self.sock])
        return 1 if self.force_exit or self.failure is not None else 0

    def stop(self) -> None:
        """Take no more work, and end when the rest is done; a second time: end now. From any thread."""
        if self.loop is not None:
            # A loop that is closed has stopped already.
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(self._stop)

    def fail(self, why: str) -> None:
        """There is nothing to serve any more: tell whoever waits, and end with status 1. From the loop's own thread."""
        self.failure = ApiError(503, why, code="engine_gone")
        # Handlers have heard of it already, and are about to answer.
        self._drain(LAST_SECONDS)

    def _stop(self) -> None:
        if self.state.draining:
            self.force_exit = True
            return
        self._drain(self.limits.grace_seconds)

    def _drain(self, seconds: float) -> None:
        """Take no more work, and give the rest so long to end."""
        self.state.draining = True
        self.until = time.monotonic() + seconds
        for connection in list(self.server_state.connections):
            connection.shutdown()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen, and say so."""
        try:
            # uvloop would not say that another came first.
            self.sock.listen(self.config.backlog)
            await super().startup(sockets)
        except OSError as error:
            raise unusable(self.app.config.host, self.port, error) from None
        if self.on_ready is not None:
            self.on_ready(self)

    async def on_tick(self, counter: int) -> bool:
        """Whether it is time to end."""
        await super().on_tick(counter)
        if not self.state.draining:
            return False
        return self.force_exit or not self.state.active or time.monotonic() >= self.until

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End what still runs, tell its clients, and close all connections."""
        for server in self.servers:
            server.close()
        for exchange in list(self.state.running):
            exchange.end(self.failure or draining(self.limits.grace_seconds))
        for connection in list(self.server_state.connections):
            connection.shutdown()
        if not self.force_exit:
            await self._tasks_end()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self._tasks_end()
        for server in self.servers:
            await server.wait_closed()

    async def _tasks_end(self) -> None:
        if self.server_state.tasks:
            await asyncio.wait(set(self.server_state.tasks), timeout=LAST_SECONDS)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None, None, None]:
        """SIGINT and SIGTERM stop the server; elsewhere than in the main thread there are no signals."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in SIGNALS}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """A signal came."""
        self.stop()
