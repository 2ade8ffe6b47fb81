"""Requests that are wrong in every way, made from the server's own description of its fields, the same for the same seed."""

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.serve.schema_values import fits, inside, outside

FEW = {"max_tokens": 2, "n_predict": 2, "max_completion_tokens": 2, "max_output_tokens": 2}
"""So that what happens to be right is answered soon."""
HOSTILE: list[Any] = [
    None, True, False, 0, -1, 1, 2**31, 2**63, -(2**63) - 1, 10**30, 0.5, -0.0, 1e308, "", "0", "a" * 5000, "\x00", "\ud800", "\U0001f63a" * 50,
    "\u202e\u2028\x1b[31m", "{{ 7 * 7 }}", "<|im_end|>", "../../etc/passwd", "http://169.254.169.254/", [], {}, [[]], [{}], [None], {"": None},
    [0] * 3000, ["a"] * 100, {"a": {"a": {"a": {}}}}, {"$ref": "#"}, {"type": "object"}, {"type": "string", "pattern": "(a+)+$"}, [1, "a", None, {}],
]  # fmt: skip
"""Values that no field expects, or few do."""
DEEP = ["[" * 200 + "]" * 200, '{"a":' * 150 + "1" + "}" * 150, "[" * 20_000]
CONSTANTS = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    "-1e999",
    "1" * 5000,
    "0x10",
    "01",
    "+1",
    ".5",
    "1.",
    "tru",
    "nul",
    "'a'",
]
HEADERS = [
    {"Content-Type": "text/plain"}, {"Content-Type": "multipart/form-data; boundary=x"}, {"Content-Type": "application/json; charset=latin-1"},
    {"Content-Type": ""}, {"Content-Encoding": "gzip"}, {"Content-Encoding": "identity"}, {"Transfer-Encoding": "gzip"}, {"Expect": "100-continue"},
    {"Origin": "http://evil.example"}, {"Origin": "null"}, {"Host": "evil.example"}, {"Host": ""}, {"x-request-id": "a b"}, {"x-request-id": "x" * 500},
    {"x-request-id": "fine-1.2_3"}, {"Accept": "text/event-stream"}, {"Authorization": "Bearer " + "x" * 300}, {"Connection": "upgrade", "Upgrade": "websocket"},
    {"Content-Length": "-1"}, {"Content-Length": "1e3"}, {"Content-Length": "3"}, {"Range": "bytes=0-1"}, {"X": "y" * 20_000}, {"X\x00": "y"}, {"X": "\xff"},
]  # fmt: skip
METHODS = ["GET", "HEAD", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "post", "BREW", ""]
PATHS = [
    "/", "//v1/models", "/v1/../metrics", "/V1/models", "/%2e%2e/etc/passwd", "/v1/completions/", "/v1/completions?x=1", "/v1/models/" + "x" * 3000,
    "/v1/models/%00", "/v1/models/%ff%fe", "*", "http://evil.example/", "/page/../main.js", "/v1", "/\u00e9", "/ HTTP/1.1\r\nX: y", "/slots", "/metrics", "/props",
]  # fmt: skip
RAW = [
    b"", b"\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"GET /health\r\n\r\n", b"GET /health HTTP/3.0\r\n\r\n",
    b"\x00" * 100, b"GET / HTTP/1.1\nHost: x\n\n", b"GET  /  HTTP/1.1\r\n\r\n", b"G" * 20_000, b"\xff\xfe\xfd\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nContent-Length: 6\r\n\r\nabcdef",
    b"POST /v1/completions HTTP/1.1\r\nContent-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    b"POST /v1/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: application/json\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
]  # fmt: skip


@dataclass(frozen=True)
class Made:
    """One request, as bytes, and what kind of harm it means."""

    kind: str
    data: bytes
    path: str = ""


@dataclass
class Tally:
    """What came back."""

    requests: int = 0
    statuses: Counter[int] = field(default_factory=Counter)
    """0: the connection was closed without an answer."""
    kinds: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    """Answers that should not be."""

    def add(self, made: Made, answer: bytes) -> None:
        """Count an answer, and look at it."""
        self.requests += 1
        status = status_of(answer)
        self.statuses[status] += 1
        self.kinds[made.kind] += 1
        why = self._why(made, status, answer)
        if why:
            self.wrong.append(f"{why}: {made.kind}: {made.data[:600]!r} -> {answer[:600]!r}")

    def _why(self, made: Made, status: int, answer: bytes) -> str | None:
        if status >= 500 and not (status == 505 and made.kind in ("raw", "path")):
            return "a server error"
        if b"server_error" in answer or b"Traceback" in answer:
            return "an error of the server in an answer"
        if status == 0 and made.kind != "raw":
            return "no answer"
        _, _, body = answer.partition(b"\r\n\r\n")
        if status >= 400 and made.kind in ("right", "field", "bytes") and not made.data.startswith(b"HEAD"):
            error = json.loads(body)["error"]
            if not error.keys() >= {"message", "type"} or len(body) > 20_000:
                return "an error of another form"
        return None


def status_of(answer: bytes) -> int:
    """The status of an answer's bytes; 0: there is none."""
    parts = answer.removeprefix(b"HTTP/1.1 100 Continue\r\n\r\n").split(b" ", 2)
    return int(parts[1]) if len(parts) > 2 and parts[0].startswith(b"HTTP/") else 0


def without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """An object's schema without the null that any field may be."""
    bare = {
        name: each["anyOf"][0]
        if each.get("anyOf", [None])[-1] == {"type": "null"} and len(each["anyOf"]) == 2
        else each
        for name, each in schema["properties"].items()
    }
    return schema | {"properties": bare}


class Malformer:
    """Makes requests for a server, given its OpenAPI document."""

    def __init__(self, document: dict[str, Any], host: str, seed: int) -> None:
        self.rng, self.host = random.Random(seed), host
        self.schemas = {
            path: without_null(methods["post"]["requestBody"]["content"]["application/json"]["schema"])
            for path, methods in document["paths"].items()
            if "requestBody" in methods.get("post", {})
        }
        self.all_paths = list(document["paths"])
        self._values: dict[str, dict[str, tuple[list[Any], list[Any]]]] = {
            path: self._known(s) for path, s in self.schemas.items()
        }

    def __iter__(self) -> Iterator[Made]:
        kinds = {"right": 20, "field": 40, "bytes": 20, "header": 8, "path": 6, "raw": 6}
        while True:
            kind = self.rng.choices(list(kinds), list(kinds.values()))[0]
            yield getattr(self, f"_{kind}")()

    def _known(self, schema: dict[str, Any]) -> dict[str, tuple[list[Any], list[Any]]]:
        """By field, values that fit and values that don't; very long ones are left out."""
        found = {}
        for name, kind in schema["properties"].items():
            good = [value for value in inside(kind) if len(repr(value)) < 4000][:60]
            bad = [value for value in outside(kind) if len(repr(value)) < 4000][:200]
            found[name] = (good, bad)
        return found

    def _base(self, path: str) -> dict[str, Any]:
        schema, values = self.schemas[path], self._values[path]
        body = {name: value for name, value in FEW.items() if name in schema["properties"]}
        for name in schema.get("required", ()):
            body[name] = self._pick([value for value in values[name][0] if value not in ("", [])] or ["a"])
        usual = {
            "prompt": "the cat",
            "input": "the cat",
            "content": "the cat",
            "messages": [{"role": "user", "content": "the cat"}],
        }
        for name, value in usual.items():
            if name in schema["properties"] and self.rng.random() < 0.8 and fits(schema["properties"][name], value):
                body[name] = value
        return body

    def _pick(self, values: list[Any]) -> Any:
        return self.rng.choice(values)

    def _some(self, path: str, body: dict[str, Any], most: int) -> None:
        """Add fields that are right, each by itself."""
        for name in self.rng.sample(list(self._values[path]), min(self.rng.randint(0, most), len(self._values[path]))):
            if self._values[path][name][0]:
                body[name] = self._pick(self._values[path][name][0])

    def _right(self) -> Made:
        path = self._pick(list(self.schemas))
        body = self._base(path)
        self._some(path, body, 4)
        return self._post("right", path, body)

    def _field(self) -> Made:
        path = self._pick(list(self.schemas))
        body = self._base(path)
        self._some(path, body, 3)
        for _ in range(self.rng.choice((1, 1, 1, 2, 3))):
            name = self._pick([*self._values[path], "no_such_field"])
            bad = self._values[path].get(name, ([], []))[1]
            body[name] = self._pick(bad) if bad and self.rng.random() < 0.6 else self._pick(HOSTILE)
        if self.rng.random() < 0.3:
            body = self._changed(body)
        return self._post("field", path, body)

    def _changed(self, value: Any) -> Any:
        """The same with something else somewhere inside."""
        if isinstance(value, dict) and value and self.rng.random() < 0.85:
            name = self._pick(list(value))
            what = self.rng.random()
            if what < 0.15:
                return {key: each for key, each in value.items() if key != name}
            if what < 0.3:
                return value | {self._pick(["x", "", "type", "__class__", "\u0130"]): value[name]}
            return value | {name: self._changed(value[name])}
        if isinstance(value, list) and value and self.rng.random() < 0.85:
            at = self.rng.randrange(len(value))
            return [*value[:at], self._changed(value[at]), *value[at + 1 :]]
        return self._pick(HOSTILE)

    def _bytes(self) -> Made:
        path = self._pick(list(self.schemas))
        text = json.dumps(self._base(path))
        data = text.encode()
        match self.rng.randrange(9):
            case 0:
                data = data[: self.rng.randrange(len(data))]
            case 1:
                at = self.rng.randrange(len(data))
                data = data[:at] + self.rng.randbytes(self.rng.randint(1, 8)) + data[at + self.rng.randint(0, 3) :]
            case 2:
                data = text[:-1].encode() + b', "prompt": "again", "prompt": 1}'
            case 3:
                name = self._pick(list(self.schemas[path]["properties"]))
                data = text[:-1].encode() + f', "{name}": {self._pick(CONSTANTS)}}}'.encode()
            case 4:
                data = f'{{"prompt": {self._pick(DEEP)}}}'.encode()
            case 5:
                data = text.encode(self._pick(["utf-16", "utf-32", "utf-8-sig"]))
            case 6:
                data = self._pick(
                    [b"", b"null", b"[]", b'"a"', b"1", b"{", b"}", b"\xff", text.encode() * 2, b" " * 5000]
                )
            case 7:
                data = text.replace(":", self._pick([";", "::", "=", ""]), 1).encode()
            case _:
                data = (
                    text[:-1].encode()
                    + b', "prompt": "'
                    + self._pick([b"\\ud800", b"\\u0000", b"\\x", b"\n", b"\xc3\x28"])
                    + b'"}'
                )
        return self._post("bytes", path, data)

    def _header(self) -> Made:
        path = self._pick(list(self.schemas))
        return self._post("header", path, self._base(path), self._pick(HEADERS))

    def _path(self) -> Made:
        path = self._pick([*PATHS, *self.all_paths])
        if self.rng.random() < 0.3:
            at = self.rng.randrange(len(path) + 1)
            path = path[:at] + self._pick(["/", "%2f", ".", "..", "\\", "\x00", "?", "#", "%", " "]) + path[at:]
        return Made("path", self._head(self._pick([*METHODS, "GET", "GET", "POST"]), path, {}), path)

    def _raw(self) -> Made:
        data = self._pick([*RAW, self.rng.randbytes(self.rng.randint(1, 300))])
        return Made("raw", data)

    def _post(self, kind: str, path: str, body: Any, headers: dict[str, str] | None = None) -> Made:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        known = {"Content-Type": "application/json", "Content-Length": str(len(data))} | (headers or {})
        return Made(kind, self._head("POST", path, known) + data, path)

    def _head(self, method: str, path: str, headers: dict[str, str]) -> bytes:
        lines = [f"{method} {path} HTTP/1.1"]
        for name, value in ({"Host": self.host, "Connection": "close"} | headers).items():
            lines.append(f"{name}: {value}")
        return "\r\n".join([*lines, "", ""]).encode("latin-1", "replace")
