"""Routes that need no engine: they answer, stream, wait, and fail in every way that a handler can."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from anyformer.errors import InputError
from anyformer.serve.errors import ApiError
from anyformer.serve.http.app import ServerState
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route, RouteTable


class Panic(BaseException):
    """Such as tokenizers raise."""


@dataclass
class Stub:
    """What the handlers saw."""

    state: ServerState | None = None
    go: asyncio.Event = field(default_factory=asyncio.Event)
    begun: int = 0
    cancelled: int = 0
    closed: int = 0
    events_made: int = 0

    def routes(self, state: ServerState) -> RouteTable:
        self.state = state
        return {
            ("GET", "/health"): Route(self.health, open=True, drains=False),
            ("GET", "/ready"): Route(self.ready, open=True, drains=False),
            ("GET", "/page.js"): Route(self.page, open=True, drains=False),
            ("GET", "/v1/models"): Route(self.models),
            ("GET", "/v1/models/*"): Route(self.models),
            ("GET", "/boom"): Route(self.boom),
            ("POST", "/echo"): Route(self.echo),
            ("POST", "/wait"): Route(self.wait),
            ("POST", "/stream"): Route(self.stream),
            ("POST", "/boom"): Route(self.boom),
        }

    async def health(self, request: HttpRequest) -> Reply:
        return Reply({"status": "ok"})

    async def ready(self, request: HttpRequest) -> Reply:
        if self.state is not None and self.state.draining:
            raise ApiError(503, "draining", headers={"retry-after": "1"})
        return Reply({"status": "ok"})

    async def page(self, request: HttpRequest) -> Reply:
        return Reply(b"1;", content_type="text/javascript", headers={"Cache-Control": "no-cache"})

    async def models(self, request: HttpRequest) -> Reply:
        return Reply({"path": request.path, "query": request.query, "key": request.key_id, "id": request.id})

    async def echo(self, request: HttpRequest) -> Reply:
        return Reply(request.data)

    async def wait(self, request: HttpRequest) -> Reply:
        self.begun += 1
        try:
            await self.go.wait()
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        return Reply({"waited": True})

    async def stream(self, request: HttpRequest) -> EventStream:
        return EventStream(self._events(**request.data))

    async def _events(
        self, count: int = 3, size: int = 1, wait_at: int = -1, fail_at: int = -1, code: int = 400
    ) -> AsyncIterator[bytes]:
        """Some events; one that is waited for, or one that fails."""
        self.begun += 1
        try:
            for i in range(count):
                if i == wait_at:
                    await self.go.wait()
                if i == fail_at and code == 500:
                    raise ZeroDivisionError("secret")
                if i == fail_at:
                    raise ApiError(code, "as asked", code="as_asked")
                await asyncio.sleep(0)
                self.events_made += 1
                yield b"data: %b\n\n" % (b"%d" % i).rjust(size, b"x")
        except asyncio.CancelledError:
            self.cancelled += 1
            raise
        finally:
            self.closed += 1

    async def boom(self, request: HttpRequest) -> Reply:
        match (request.data or {}).get("kind"):
            case "input":
                raise InputError("temperature: is -1")
            case "panic":
                raise Panic("secret")
            case "nan":
                return Reply({"value": float("nan")})
            case "api":
                raise ApiError(429, "later", code="rate_limit_exceeded", headers={"retry-after": "3"}, waiting=7)
        raise RuntimeError("secret")
