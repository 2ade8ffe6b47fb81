"""What handlers are given and what they give back, and the routes that lead to them."""

import json
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from anyformer.serve.errors import ApiError
from anyformer.serve.fields.table import Table

Headers = list[tuple[bytes, bytes]]
ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""Headers of every answer, unless a reply says otherwise."""
SLICE = 4096
"""Numbers of a list that are written at once."""


@dataclass(slots=True)
class HttpRequest:
    """One request, after all that HTTP asks of it was checked."""

    id: str
    """The x-request-id: the client's own if it is well-formed, else a new one."""
    method: str
    path: str
    """As it was sent: percent signs are not decoded."""
    query: str
    headers: Mapping[str, str]
    """By lower-case name; values of a name that occurs twice are joined by a comma."""
    client: str
    """Its address."""
    key_id: str | None
    """The beginning of the API key's digest; None where no keys are asked for."""
    data: Any
    """The JSON of the body, or what the route's fields made of it."""
    arrived: float
    """By time.monotonic()."""
    log: dict[str, Any] = field(default_factory=dict)
    """What a handler adds to the request's line in the log: counts, never text."""
    at_end: list[Callable[[], None]] = field(default_factory=list)
    """Called when the handler is done with it, however that went."""


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer at once."""

    body: Any
    """A dict or list is sent as JSON, a str as plain text, bytes as they are; a function makes a large dict or list beside
    the event loop, so that nobody else waits for it.
    """
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    content_type: str | None = None

    def encode(self) -> tuple[str, bytes]:
        """Content type and bytes."""
        body = self.body
        if callable(body):
            return self.content_type or "application/json", b"".join(json_pieces(body()))
        if isinstance(body, bytes):
            return self.content_type or "application/octet-stream", body
        if isinstance(body, str):
            return self.content_type or "text/plain; charset=utf-8", body.encode("utf-8", "replace")
        return self.content_type or "application/json", to_json(body)


@dataclass(frozen=True, slots=True)
class EventStream:
    """An answer bit by bit, as server-sent events."""

    events: AsyncIterator[bytes]
    """Whole events, possibly several at once. If it has an `aclose`, that is called in the end."""
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[HttpRequest], Awaitable[Reply | EventStream]]


@dataclass(frozen=True, slots=True)
class Route:
    """What is done with the requests of one method and path."""

    handler: Handler
    fields: Table | None = None
    """Reads the body; `HttpRequest.data` is its result."""
    open: bool = False
    """Whether it needs no API key."""
    reads_body: bool | None = None
    """None: if its method is POST."""
    drains: bool = True
    """Whether new requests (POST) are refused while the server shuts down."""
    error_frame: Mapping[str, Any] = field(default_factory=dict)
    """What the body of an error has beside the error object."""


RouteTable = Mapping[tuple[str, str], Route]
"""By method and exact path. A path that ends in "/*" is that of everything below it, taken literally."""


def to_json(value: Any) -> bytes:
    """Compact JSON. No NaN: there is no such thing in JSON, and clients choke on it."""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode("utf-8", "replace")


def json_pieces(value: Any, depth: int = 5) -> Iterator[bytes]:
    """The same JSON in pieces: between them other threads may run, while one call for all of it would hold them up."""
    if not depth or not isinstance(value, dict | list) or not value:
        yield to_json(value)
        return
    if isinstance(value, list) and not isinstance(value[0], dict | list):
        yield b"["
        for start in range(0, len(value), SLICE):
            yield b"," * bool(start) + to_json(value[start : start + SLICE])[1:-1]
        yield b"]"
        return
    begin, end = (b"{", b"}") if isinstance(value, dict) else (b"[", b"]")
    each = value.items() if isinstance(value, dict) else ((None, one) for one in value)
    for i, (name, one) in enumerate(each):
        yield b"," if i else begin
        if name is not None:
            yield to_json(name) + b":"
        yield from json_pieces(one, depth - 1)
    yield end


def error_reply(error: ApiError, frame: Mapping[str, Any] | None = None) -> Reply:
    """The answer of a request that can't be served."""
    return Reply({**(frame or {}), **error.body()}, error.status, error.headers)


def error_event(error: ApiError, frame: Mapping[str, Any] | None = None) -> bytes:
    """The last event of a stream that fails; one with a type is told by it."""
    frame = frame or {}
    kind = f"event: {frame['type']}\n".encode() if "type" in frame else b""
    return kind + b"data: " + to_json({**frame, **error.body()}) + b"\n\n"


def head(request_id: str, *own: Mapping[str, str]) -> Headers:
    """The headers of an answer; later ones take the place of earlier ones."""
    found: dict[str, str] = {"x-request-id": request_id} | ALWAYS
    for each in own:
        found.update({name.lower(): value for name, value in each.items()})
    return [(name.encode("latin-1"), value.encode("latin-1")) for name, value in found.items()]


def new_request_id() -> str:
    """A request id of our own."""
    return secrets.token_hex(12)
