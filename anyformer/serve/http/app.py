"""The ASGI application: what every request goes through before and after its handler."""

import asyncio
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer.errors import DataError, InputError, SpecError
from anyformer.serve.config import ServeConfig
from anyformer.serve.errors import ApiError, bad_request, draining
from anyformer.serve.http.access import Access
from anyformer.serve.http.body import (
    LARGE,
    Disconnected,
    Receive,
    announces_body,
    check_content,
    invalid,
    parse_body,
    read_body,
)
from anyformer.serve.http.exchange import Exchange, Send
from anyformer.serve.http.logs import LOGGER, RequestLog
from anyformer.serve.http.reply import EventStream, HttpRequest, Reply, Route, RouteTable, new_request_id

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
ABORT = "anyformer.abort"
"""The ASGI extension by which our protocol lets a connection be cut."""


@dataclass
class ServerState:
    """What the server is doing."""

    draining: bool = False
    """Whether it is about to end: what runs may finish, nothing new begins."""
    started: float = field(default_factory=time.time)
    running: set[Exchange] = field(default_factory=set)
    """Those that are in handlers."""

    @property
    def active(self) -> int:
        """How many are in handlers."""
        return len(self.running)


class App:
    """A server's routes behind its doors."""

    def __init__(self, routes: RouteTable, config: ServeConfig, state: ServerState) -> None:
        self.config, self.state, self.limits = config, state, config.limits
        self.access = Access(config)
        self.log = RequestLog(config.log)
        self._exact: dict[str, dict[str, Route]] = defaultdict(dict)
        self._below: dict[str, dict[str, Route]] = defaultdict(dict)
        for (method, path), route in routes.items():
            table, key = (self._below, path[:-1]) if path.endswith("/*") else (self._exact, path)
            table[key][method] = route

    async def __call__(self, scope: Mapping[str, Any], receive: Receive, send: Send) -> None:
        """Serve one request."""
        request = read_head(scope)
        abort = scope.get("extensions", {}).get(ABORT, {}).get("abort", lambda: None)
        exchange = Exchange(request, receive, send, self.limits, abort)
        try:
            route = self._admit(exchange)
            await self._read(exchange, route)
            await self._run(exchange, route)
        except Disconnected:
            pass
        except BaseException as error:
            await exchange.fail(self._fault(error, request))
        finally:
            self.log.request(request, exchange.status, exchange.error)

    def _admit(self, exchange: Exchange) -> Route:
        """The route of a request that may ask for it."""
        request = exchange.request
        exchange.unread = announces_body(request.headers)
        if self.state.draining:
            exchange.headers["connection"] = "close"
        self.access.check_host(request.headers)
        exchange.headers.update(self.access.check_origin(request.headers))
        if request.method == "OPTIONS":
            return Route(self._preflight, open=True)
        route = self._route(request)
        exchange.error_frame = route.error_frame
        if not route.open:
            request.key_id = self.access.key_id(request.headers)
        return route

    def _route(self, request: HttpRequest) -> Route:
        methods = self._exact.get(request.path) or next(
            (m for prefix, m in self._below.items() if request.path.startswith(prefix) and request.path != prefix), None
        )
        if methods is None:
            raise ApiError(404, "there is nothing at this path", code="not_found")
        route = methods.get("GET" if request.method == "HEAD" else request.method)
        if route is None:
            allowed = ", ".join(allowed_methods(methods))
            raise ApiError(
                405, f"{request.method}: this path takes {allowed}", code="method_not_allowed",
                headers={"allow": allowed},
            )  # fmt: skip
        return route

    async def _preflight(self, request: HttpRequest) -> Reply:
        return Reply(b"", 204, self.access.preflight(request.headers))

    async def _read(self, exchange: Exchange, route: Route) -> None:
        request = exchange.request
        if request.method == "POST" if route.reads_body is None else route.reads_body:
            check_content(request.headers, self.limits)
            body = await read_body(exchange.receive, self.limits)
            exchange.unread = False
            data = await parse_body(body)
            if not isinstance(data, dict):
                raise invalid("the body has to be an object, {...}")
            if route.fields is not None:
                read = route.fields.read
                data = await asyncio.to_thread(read, data) if len(body) > LARGE else read(data)
            request.data = data
        if self.state.draining and route.drains and request.method == "POST":
            raise draining(self.limits.grace_seconds)

    async def _run(self, exchange: Exchange, route: Route) -> None:
        """Let the handler work until it is done, its time is over or its client is gone."""
        loop = asyncio.get_running_loop()
        late = ApiError(
            408, f"the request took longer than {self.limits.request_seconds:g} s, which is this server's limit",
            code="request_timeout", headers={"x-should-retry": "false"},
        )  # fmt: skip
        exchange.task = loop.create_task(self._work(exchange, route))
        timer = loop.call_later(self.limits.request_seconds, exchange.end, late)
        self.state.running.add(exchange)
        try:
            await exchange.gone()
            exchange.leave()
            if not exchange.task.done():
                await asyncio.wait({exchange.task})
        finally:
            timer.cancel()
            self.state.running.discard(exchange)

    async def _work(self, exchange: Exchange, route: Route) -> None:
        request = exchange.request
        try:
            try:
                answer = await route.handler(request)
                await (exchange.stream(answer) if isinstance(answer, EventStream) else exchange.reply(answer))
            finally:
                # Before the client is told, which may take it a while to read.
                for each in request.at_end:
                    each()
        except asyncio.CancelledError:
            # Without a reason the client is gone, and there is nobody to be told.
            if exchange.ending is not None:
                await exchange.fail(exchange.ending)
        except BaseException as error:
            await exchange.fail(self._fault(error, request))

    def _fault(self, error: BaseException, request: HttpRequest) -> ApiError:
        """What a client is told of an exception. Tokenizers panic beside `Exception`, hence the wider type."""
        if isinstance(error, ApiError):
            return error
        if isinstance(error, InputError | DataError | SpecError):
            return bad_request(str(error))
        LOGGER.error("request %s failed", request.id, exc_info=error)
        return ApiError(
            500, f"internal error, request id {request.id}", code="internal_error",
            headers={"x-should-retry": "false"},
        )  # fmt: skip


def read_head(scope: Mapping[str, Any]) -> HttpRequest:
    """A request as its head tells it."""
    headers: dict[str, str] = {}
    for raw, value in scope["headers"]:
        name, text = raw.decode("latin-1"), value.decode("latin-1")
        headers[name] = f"{headers[name]}, {text}" if name in headers else text
    given = headers.get("x-request-id", "")
    client = scope.get("client")
    return HttpRequest(
        id=given if REQUEST_ID.fullmatch(given) else new_request_id(),
        method=scope["method"], path=scope["raw_path"].decode("latin-1"), query=scope["query_string"].decode("latin-1"),
        headers=headers, client=client[0] if client else "", key_id=None, data=None, arrived=time.monotonic(),
    )  # fmt: skip


def allowed_methods(methods: Iterable[str]) -> list[str]:
    """The methods of a path, with HEAD where there is GET."""
    return sorted({*methods, *(("HEAD",) if "GET" in methods else ())})
