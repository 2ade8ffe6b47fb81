"""The body of a request: read within a time and a size, and as strict JSON."""

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from anyformer.serve.config import Limits
from anyformer.serve.errors import ApiError

Receive = Callable[[], Awaitable[Any]]
DEPTH = 128
"""Levels of nesting. Python's parser takes more, and what reads the result step by step would not."""
LARGE = 128 * 1024
"""Bytes beyond which a body is parsed in a thread, so that nobody else waits for it."""
SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
CONTENT_TYPE = re.compile(r'\s*application/json\s*(;\s*charset\s*=\s*"?utf-8"?\s*)?', re.IGNORECASE)


class Disconnected(Exception):
    """The client is gone."""


def announces_body(headers: Mapping[str, str]) -> bool:
    """Whether more than a head is to come."""
    return headers.get("content-length", "0") != "0" or "transfer-encoding" in headers


def check_content(headers: Mapping[str, str], limits: Limits) -> None:
    """Refuse what is not JSON, or is too large by its own account, before anything is read."""
    kind = headers.get("content-type")
    if kind is None or not CONTENT_TYPE.fullmatch(kind):
        given = "has none" if kind is None else "is another one"
        raise ApiError(415, f"Content-Type: has to be application/json (UTF-8); the request {given}", code="not_json")
    if headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise ApiError(415, "Content-Encoding: bodies are read as they are; send it uncompressed", code="encoded_body")
    # Its digits were checked by the parser of the head.
    if int(headers.get("content-length", 0)) > limits.body_bytes:
        raise too_large(limits)


async def read_body(receive: Receive, limits: Limits) -> bytes:
    """The whole body."""
    parts: list[bytes] = []
    size = 0
    try:
        async with asyncio.timeout(limits.body_seconds):
            while True:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise Disconnected
                part = message["body"]
                size += len(part)
                if size > limits.body_bytes:
                    raise too_large(limits)
                parts.append(part)
                if not message["more_body"]:
                    return parts[0] if len(parts) == 1 else b"".join(parts)
    except TimeoutError:
        raise ApiError(
            408, f"the body took longer than {limits.body_seconds:g} s to arrive", code="body_timeout"
        ) from None


def too_large(limits: Limits) -> ApiError:
    """413."""
    return ApiError(
        413, f"the body is larger than {limits.body_bytes:,} bytes, which is this server's limit", code="body_too_large"
    )


async def parse_body(body: bytes) -> Any:
    """The JSON of a body, without keeping others waiting."""
    return parse_json(body) if len(body) <= LARGE else await asyncio.to_thread(parse_json, body)


def parse_json(body: bytes) -> Any:
    """JSON that has one meaning only; raises ApiError(400)."""
    odd = False

    def number(text: str) -> float:
        nonlocal odd
        value = float(text)
        odd = odd or not math.isfinite(value)
        return value

    try:
        found = json.loads(body.decode(), object_pairs_hook=_object, parse_float=number, parse_constant=number)
    except UnicodeDecodeError as error:
        raise invalid(f"the body is not UTF-8 (byte {error.start:,})") from None
    except RecursionError:
        raise too_deep() from None
    except json.JSONDecodeError as error:
        raise invalid(f"{error.msg} (line {error.lineno:,}, column {error.colno:,})") from None
    except ValueError:
        raise invalid("an integer has more digits than any field allows") from None
    if body.count(b"[") + body.count(b"{") > DEPTH:
        _check_depth(found)
    if odd or SURROGATE.search(body):
        _check_values(found)
    return found


def invalid(message: str, param: str | None = None) -> ApiError:
    """400: the body is not what we take for JSON."""
    return ApiError(400, f"invalid JSON: {message}", param=param, code="invalid_json")


def too_deep() -> ApiError:
    """400: nested beyond reason."""
    return invalid(f"nested more than {DEPTH} levels deep")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) != len(pairs):
        seen: set[str] = set()
        again = next(name for name, _ in pairs if name in seen or seen.add(name))
        raise invalid(f"the key {shown(again)} occurs twice in one object")
    return made


def _check_depth(root: Any) -> None:
    level = [root]
    for _ in range(DEPTH + 1):
        level = [
            child
            for node in level
            if isinstance(node, dict | list)
            for child in (node.values() if isinstance(node, dict) else node)
            if isinstance(child, dict | list)
        ]
        if not level:
            return
    raise too_deep()


def _check_values(root: Any) -> None:
    """Find a number that is not finite, or half a character."""
    todo: list[tuple[str, Any]] = [("", root)]
    while todo:
        path, value = todo.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise invalid(f"{path or 'the body'}: is not a finite number", path or None)
        if isinstance(value, str):
            _check_text(path, value)
        elif isinstance(value, dict):
            for name in value:
                _check_text(f"a key in {path or 'the body'}", name)
            todo += [(f"{path}.{name}" if path else name, each) for name, each in value.items()]
        elif isinstance(value, list):
            todo += [(f"{path}[{i}]", each) for i, each in enumerate(value)]


def _check_text(path: str, text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise invalid(f"{path or 'the body'}: holds a lone surrogate, half a character", path or None) from None


def shown(name: str) -> str:
    """A key of a client, fit for a message."""
    return ascii(name if len(name) <= 40 else f"{name[:37]}...")
