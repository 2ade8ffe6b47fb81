"""One request and its answer: a head, then a body or events, each sent once."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from anyformer.serve.config import Limits
from anyformer.serve.errors import ApiError
from anyformer.serve.http.body import Receive
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, error_event, error_reply, head

Send = Callable[[Any], Awaitable[None]]
LINGER_SECONDS = 1.0
"""How long what a client still sends is read after its answer. A socket closed with bytes unread is reset, and the
client would see that instead of the answer."""
PING = b": ping\n\n"
EVENTS = {"content-type": "text/event-stream; charset=utf-8", "x-accel-buffering": "no"}
GONE = 499
"""The status in the log where the client went before there was one."""


class Exchange:
    """The answer of one request. Its own `task` is that of the handler, from the handler's start to its end."""

    def __init__(
        self, request: HttpRequest, receive: Receive, send: Send, limits: Limits, abort: Callable[[], None]
    ) -> None:
        self.request, self.receive, self.limits = request, receive, limits
        self._send, self._abort = send, abort
        self.headers: dict[str, str] = {}
        """Of the answer, whatever it is."""
        self.error_frame: Mapping[str, Any] = {}
        """What the body of an error has beside the error object."""
        self.unread = False
        """Whether some of the request's body may still be on its way."""
        self.status = GONE
        self.error: str | None = None
        self.task: asyncio.Task[None] | None = None
        self.ending: ApiError | None = None
        """Why the handler was cancelled, where the client is still there to be told."""
        self._begun = self._complete = self._blocked = False
        self._sent = 0
        self._ping: asyncio.Task[None] | None = None

    def end(self, error: ApiError) -> None:
        """Cancel the handler; the client is told why."""
        if self.task is not None and self.ending is None and not self._complete:
            self.ending = error
            self.task.cancel()

    async def gone(self) -> None:
        """Wait until the client is gone, or has its whole answer."""
        while (await self.receive())["type"] != "http.disconnect":
            pass

    def leave(self) -> None:
        """Cancel the handler, if there is still something to do: the client is gone."""
        if self.task is not None and not self._complete:
            self.task.cancel()

    async def reply(self, reply: Reply) -> None:
        """Send an answer at once."""
        kind, body = await asyncio.to_thread(reply.encode) if callable(reply.body) else reply.encode()
        empty = reply.status == 204
        content = {} if empty else {"content-type": kind, "content-length": str(len(body))}
        await self._begin(reply.status, content, reply.headers)
        if self.unread:
            await self._write(body, more=True)
            await self._linger()
            body = b""
        await self._write(body, more=False)

    async def fail(self, error: ApiError) -> None:
        """Say that the request can't be served, in the way that is left."""
        self.error = error.code or error.type
        if self._blocked:
            # Who has not read what came before won't read this either.
            self._complete = True
            self._abort()
            await self.gone()
        elif not self._begun:
            await self.reply(error_reply(error, self.error_frame))
        elif not self._complete:
            await self._write(error_event(error, self.error_frame), more=False)

    async def stream(self, stream: EventStream) -> None:
        """Send events as they come, and a comment where none come for a while.

        The head waits for the first event, so that a request that is refused only then still gets a status.
        """
        loop = asyncio.get_running_loop()
        every = self.limits.ping_seconds / 2
        seen = idle = 0

        def tick() -> None:
            nonlocal seen, idle, timer
            idle = idle + 1 if self._sent == seen else 0
            seen = self._sent
            if self._blocked and idle > 1:
                self.end(ApiError(408, "the client does not read what it asked for", code="slow_client"))
            elif idle and not self._blocked and self._ping is None:
                self._ping = loop.create_task(self._write_ping(stream.headers))
            timer = loop.call_later(every, tick)

        timer = loop.call_later(every, tick)
        send = self._send
        try:
            async for event in stream.events:
                if self._ping is not None:
                    await self._ping
                if not self._begun:
                    await self._begin(200, EVENTS, stream.headers)
                self._blocked = True
                await send({"type": "http.response.body", "body": event, "more_body": True})
                self._blocked = False
                self._sent += 1
            if not self._begun:
                await self._begin(200, EVENTS, stream.headers)
        finally:
            timer.cancel()
            if self._ping is not None:
                self._ping.cancel()
            await _close(stream.events)
        await self._write(b"", more=False)

    async def _write_ping(self, headers: Mapping[str, str]) -> None:
        try:
            if not self._begun:
                await self._begin(200, EVENTS, headers)
            await self._write(PING, more=True)
        finally:
            self._ping = None

    async def _begin(self, status: int, *headers: Mapping[str, str]) -> None:
        self._begun, self.status = True, status
        close = {"connection": "close"} if self.unread else {}
        lines = head(self.request.id, self.headers, *headers, close)
        self._blocked = True
        await self._send({"type": "http.response.start", "status": status, "headers": lines})
        self._blocked = False

    async def _write(self, body: bytes, *, more: bool) -> None:
        self._blocked = True
        await self._send({"type": "http.response.body", "body": body, "more_body": more})
        self._blocked, self._complete = False, not more

    async def _linger(self) -> None:
        try:
            async with asyncio.timeout(LINGER_SECONDS):
                while (message := await self.receive())["type"] != "http.disconnect" and message["more_body"]:
                    pass
        except TimeoutError:
            pass


async def _close(events: AsyncIterator[bytes]) -> None:
    """Let a generator run its `finally` now, and not when it is collected."""
    close = getattr(events, "aclose", None)
    if close is not None:
        await close()
