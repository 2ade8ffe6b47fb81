"""The engine in a process of its own, at the other end of a socket: the front end has an interpreter for itself."""

import asyncio
import signal
import socket
import subprocess
import sys
from collections.abc import Callable

from anyformer.errors import AnyformerError
from anyformer.serve.config import ServeConfig
from anyformer.serve.engine.client import LOGGER, EngineClient
from anyformer.serve.engine.messages import FrameError, FrameReader, Message, pack_config, to_frame

PROGRAM = "anyformer.serve.engine.process"
GONE = "the engine's process has ended"
KILLED = "if nobody else has ended it, memory has run out"
BUFFER = 2**20
"""Bytes of the socket: some steps of many sequences, so that a front end that is busy for a moment delays none."""
PATIENCE = 15.0
"""Seconds after which an engine that does not end is ended."""
POLL = 0.01


class Frames(asyncio.Protocol):
    """Messages from the socket."""

    def __init__(self, receive: Callable[[Message], None], lost: Callable[[], None]) -> None:
        self._receive, self._lost, self._reader = receive, lost, FrameReader()
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        try:
            for message in self._reader.push(data):
                self._receive(message)
        except FrameError:
            if self._transport is not None:
                self._transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        self._lost()


class RemoteEngine(EngineClient):
    """A worker in a child process, which ends with us, and whose end we notice."""

    def __init__(self, config: ServeConfig) -> None:
        super().__init__(config)
        self.process: subprocess.Popen[bytes] | None = None
        self._transport: asyncio.WriteTransport | None = None

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._ready = loop.create_future()
        ours, theirs = socket.socketpair()
        for each in (ours, theirs):
            each.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER)
        ours.setblocking(False)
        with theirs:
            fd = theirs.fileno()
            # -P: nothing is imported from the folder in which the server was started.
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", PROGRAM, str(fd)],
                pass_fds=(fd,), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, start_new_session=True,
            )  # fmt: skip
        try:
            transport, _ = await loop.create_unix_connection(
                lambda: Frames(self._receive, self._disconnected), sock=ours
            )
            self._transport = transport
            self._send(pack_config(self.config))
            await self._ready
        except BaseException:
            await self._end_process(0.0)
            raise

    async def close(self) -> None:
        if self.process is None:
            return
        if self._gone is None:
            self._send({"type": "close", "number": 0})
            self._lost("the server is shutting down")
        await self._end_process(PATIENCE)

    async def _end_process(self, patience: float) -> None:
        """Wait until the process has ended, and end it if that takes too long."""
        process, self.process = self.process, None
        if process is None:
            return
        try:
            deadline = asyncio.get_running_loop().time() + patience
            if self._transport is not None and not patience:
                self._transport.close()
            while process.poll() is None and asyncio.get_running_loop().time() < deadline:
                await asyncio.sleep(POLL)
        finally:
            if process.poll() is None:
                process.kill()
            elif patience and process.returncode == -signal.SIGKILL:
                LOGGER.error("the engine's process was ended by SIGKILL; %s", KILLED)
            process.wait()
            if self._transport is not None:
                self._transport.close()

    def _send(self, message: Message) -> None:
        # Where the socket is closing, all requests are about to hear of it.
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(to_frame(message))

    def _disconnected(self) -> None:
        self._closed.set()
        if self._ready is not None and not self._ready.done():
            words = f"{GONE} before it had read the model; {KILLED}"
            self._lost(words, error=AnyformerError(words))
        self._died(GONE)
