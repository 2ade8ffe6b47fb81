"""Connections: uvicorn's protocol on httptools, with the limits that it lacks on heads, time and numbers."""

import asyncio
import re
from collections import Counter
from typing import Any, NoReturn

import httptools
import uvicorn
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol
from uvicorn.server import ServerState

from anyformer.serve.errors import ApiError
from anyformer.serve.http.app import ABORT, App
from anyformer.serve.http.exchange import LINGER_SECONDS
from anyformer.serve.http.reply import error_reply, head, new_request_id

WRITE_BUFFER = 32 * 1024
"""Bytes that wait for a slow reader before a stream does; with one more event they are below 64 KiB."""
VERSION = "this is not HTTP/1.1, which is all that the server speaks"
ABSOLUTE = re.compile(rb"(?i:http)://([^/?#]+)(/[^#]*)")
"""A target with the host before the path, as clients send that take this server for a proxy."""
RETRY = {"retry-after": "1"}


class HttpConfig(uvicorn.Config):
    """uvicorn's settings for an application of ours, and what its connections share."""

    def __init__(self, application: App) -> None:
        super().__init__(
            application, http=HttpProtocol, ws="none", lifespan="off", interface="asgi3", loop="auto", workers=1,
            log_config=None, access_log=False, proxy_headers=False, server_header=False,
        )  # fmt: skip
        self.limits, self.log = application.limits, application.log
        self.by_address: Counter[str] = Counter()


class HttpProtocol(HttpToolsProtocol):
    """One connection.

    It waits for a head no longer than `head_seconds`, for a next request no longer than `keep_alive_seconds`, and
    reads one request at a time: a second one that comes before the first has its answer is not read, and the
    connection ends with that answer. So a client that goes away is always noticed.
    """

    config: HttpConfig
    parser: httptools.HttpRequestParser

    def __init__(
        self,
        config: HttpConfig,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.limits = config.limits
        self.address = ""
        self.deaf = False
        """Whether nothing more is read from this client."""
        self.fault: ApiError | None = None
        self.timer: asyncio.TimerHandle | None = None
        self.idle = False
        """Whether the next byte begins a request."""
        self.unsent = 0
        self.fields = self.head_size = 0
        self.unparsed = 0
        """Bytes since the parser had something to tell."""
        self.offered = False
        """Whether the head that was read offers another protocol, so that the parser takes it for the last of HTTP."""

    def connection_made(self, transport: asyncio.Transport) -> None:
        super().connection_made(transport)
        transport.set_write_buffer_limits(high=WRITE_BUFFER)
        self.address = self.client[0] if self.client else ""
        self.config.by_address[self.address] += 1
        limits, own, every = self.limits, self.config.by_address[self.address], len(self.connections)
        if own > 2 * limits.connections_per_address or every > 2 * limits.connections:
            # Those that are being told so are many already.
            transport.abort()
        elif every > limits.connections:
            self._refuse(ApiError(503, "too many connections", code="too_many_connections", headers=RETRY))
        elif own > limits.connections_per_address:
            message = f"more than {limits.connections_per_address} connections from one address"
            self._refuse(ApiError(429, message, code="too_many_connections", headers=RETRY))
        else:
            self._arm(limits.head_seconds)

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._disarm()
        counts = self.config.by_address
        counts[self.address] -= 1
        if not counts[self.address]:
            del counts[self.address]

    def data_received(self, data: bytes) -> None:
        if self.deaf:
            return
        if self.idle:
            self.idle = False
            self._arm(self.limits.head_seconds)
        self.unparsed += len(data)
        try:
            self._feed(data)
            if self.parser.get_http_version() == "0.0" and b"\n" in data.lstrip():
                # A line without a version is a whole request of HTTP/0.9; the parser would wait for its headers.
                self._stop(malformed(VERSION))
            if self.unparsed > self.limits.head_bytes:
                self._stop(head_too_large(f"{self.limits.head_bytes:,} bytes"))
        except (httptools.HttpParserError, ApiError) as error:
            self._refuse(self.fault or unreadable(error))

    def _feed(self, data: bytes) -> None:
        try:
            self.parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            # The parser leaves the body to the new protocol; without the offer it reads the same request to its end.
            fields = b"".join(b"%b: %b\r\n" % line for line in self.headers if line[0] != b"upgrade")
            version = self.parser.get_http_version().encode()
            head = b"%b %b HTTP/%b\r\n%b\r\n" % (self.parser.get_method(), self.url, version, fields)
            # After `Connection: close` this parser would read nothing more.
            self.parser = httptools.HttpRequestParser(self)
            self._feed(head + data[upgrade.args[0] :])

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self.fields = self.head_size = 0
        self.offered = False

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self.fields += 1
        self._count(len(name) + len(value) + 4)
        if self.fields > self.limits.head_fields:
            self._stop(head_too_large(f"{self.limits.head_fields} fields"))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        if self.busy:
            self._stop(malformed("requests have to wait for the answer before"))
        if self.parser.get_http_version() not in ("1.1", "1.0"):
            self._stop(malformed(VERSION))
        if self.parser.should_upgrade():
            self._check_offer()
            self.offered = True
            return
        self.url = self._path()
        self._disarm()
        self.unparsed = 0
        super().on_headers_complete()
        self.scope["extensions"] = {ABORT: {"abort": self.transport.abort}}

    def on_body(self, body: bytes) -> None:
        self.unparsed = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self.unparsed = 0
        if not self.offered:
            super().on_message_complete()

    def on_response_complete(self) -> None:
        """Wait for the next request, or for what is still to be written."""
        self.server_state.total_requests += 1
        self.unsent = self.transport.get_write_buffer_size()
        self.idle = True
        if not self.transport.is_closing():
            self.flow.resume_reading()
        if self.unsent or not self.transport.is_closing():
            self._arm(self.limits.keep_alive_seconds)

    @property
    def busy(self) -> bool:
        """Whether a request has no whole answer yet."""
        return self.cycle is not None and not self.cycle.response_complete

    def _check_offer(self) -> None:
        """Clients that offer HTTP/2 are content with HTTP/1.1; those that want a tunnel or a WebSocket are not."""
        offers = {
            each.strip().lower() for name, value in self.headers if name == b"upgrade" for each in value.split(b",")
        }
        if self.parser.get_method() == b"CONNECT" or b"websocket" in offers:
            self._stop(malformed("this server speaks HTTP/1.1 and nothing else; send the request without Upgrade"))

    def _path(self) -> bytes:
        """The target of a request, without the host that may stand before it."""
        found, hosts = ABSOLUTE.fullmatch(self.url), [value for name, value in self.headers if name == b"host"]
        if found and [found[1].lower()] != [host.lower() for host in hosts]:
            self._stop(malformed("the target of the request names another host than its Host header"))
        path = found[2] if found else self.url
        if not path.startswith(b"/") or b"#" in path:
            self._stop(malformed("the target of a request has to be a path"))
        return path

    def _count(self, size: int) -> None:
        self.head_size += size
        if self.head_size > self.limits.head_bytes:
            self._stop(head_too_large(f"{self.limits.head_bytes:,} bytes"))

    def _stop(self, fault: ApiError) -> NoReturn:
        """Make the parser stop, which shows no exception but its own."""
        self.fault = fault
        raise fault

    def _refuse(self, error: ApiError) -> None:
        """Read nothing more, and say why if the client waits for an answer that was not begun."""
        self.deaf = True
        if self.busy:
            self.cycle.keep_alive = False
            if not self.cycle.more_body:
                return
            if self.cycle.response_started:
                self.transport.close()
                return
            # Its application waits for the rest of a body that can't come.
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        self._write_error(error)
        # Closed at once with bytes unread, the connection would be reset before the client saw the answer.
        self.transport.write_eof()
        self._arm(LINGER_SECONDS)

    def _write_error(self, error: ApiError) -> None:
        name = new_request_id()
        reply = error_reply(error)
        kind, body = reply.encode()
        content = {"content-type": kind, "content-length": str(len(body)), "connection": "close"}
        lines = [*self.server_state.default_headers, *head(name, reply.headers, content)]
        fields = b"".join(b"%b: %b\r\n" % line for line in lines)
        self.transport.write(STATUS_LINE[error.status] + fields + b"\r\n" + body)
        self.config.log.refused(self.address, name, error.status, error.code)

    def _arm(self, seconds: float) -> None:
        self._disarm()
        self.timer = self.loop.call_later(seconds, self._late, seconds)

    def _disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _late(self, seconds: float) -> None:
        """Close the connection. While a slow reader takes something of what is left, it has more time."""
        unsent, before = self.transport.get_write_buffer_size(), self.unsent
        if not unsent:
            self.transport.close()
        elif unsent < before:
            self.unsent = unsent
            self._arm(seconds)
        else:
            self.transport.abort()


def malformed(message: str) -> ApiError:
    """400, before there is a request."""
    return ApiError(400, message, code="malformed_request")


def unreadable(error: Exception) -> ApiError:
    """400, by what the parser says. Its words are fixed ones, and hold nothing of what was sent."""
    if isinstance(error, httptools.HttpParserInvalidMethodError):
        # So begins a TLS handshake, and whatever else is sent to the wrong port.
        return malformed("malformed HTTP request: it begins with no method of HTTP/1.1; there is no TLS here")
    known = isinstance(error, httptools.HttpParserError) and not isinstance(error, httptools.HttpParserCallbackError)
    return malformed(f"malformed HTTP request: {error}" if known else "malformed HTTP request")


def head_too_large(limit: str) -> ApiError:
    """431."""
    return ApiError(431, f"the head of the request is larger than {limit}", code="head_too_large")
