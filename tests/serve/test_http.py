"""What every request goes through: routes, replies, streams, time limits and clients that go away."""

import http.client
import json
import logging
import socket

import pytest

from anyformer.serve.errors import ApiError
from anyformer.serve.http.logs import LOGGER, LogFormat
from anyformer.serve.http.reply import Route
from tests.serve.running import read_all, read_until, serving_routes, status_of

ALWAYS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


def send_post(running, sock: socket.socket, path: str, body: dict, *lines: str) -> None:
    data = json.dumps(body).encode()
    sock.sendall(
        running.head("POST", path, "Content-Type: application/json", f"Content-Length: {len(data)}", *lines) + data
    )


def test_answers_of_every_kind_have_the_security_headers(serving_stub):
    with serving_stub() as running:
        for answer in (
            running.get("/health"), running.get("/nothing"), running.post("/echo", {"a": 1}), running.post("/echo", b"{"),
            running.post("/stream", {}), running.ask("PUT", "/echo"), running.get("/health", Host="evil"),
            running.ask("HEAD", "/health"),
        ):  # fmt: skip
            assert answer.headers.items() >= ALWAYS.items(), answer
            assert answer.headers["x-request-id"]
            assert "server" not in answer.headers
            assert not any(name.startswith("access-control") for name in answer.headers)


def test_reply_may_have_headers_of_its_own(serving_stub):
    with serving_stub() as running:
        answer = running.get("/page.js")
        assert (answer.body, answer.headers["content-type"]) == (b"1;", "text/javascript")
        assert answer.headers["cache-control"] == "no-cache"


def test_request_id_is_the_clients_own_if_it_is_well_formed(serving_stub):
    with serving_stub() as running:
        assert running.get("/v1/models", x_request_id="My.id_1-2").headers["x-request-id"] == "My.id_1-2"
        assert running.get("/v1/models", x_request_id="My.id_1-2").data["id"] == "My.id_1-2"
        made = [
            running.get("/v1/models", x_request_id=bad).headers["x-request-id"] for bad in ("a b", "x" * 65, "é", "")
        ]
        assert len({*made, "a b", "x" * 65, "é", ""}) == 8


@pytest.mark.parametrize(
    "path",
    ["//v1/models", "/v1/../health", "/./health", "/V1/models", "/v1/models/", "/health/", "/%68ealth", "/health%00",
     "/%2e%2e/health", "/health;x", "/v1//models", "/healthz", "/healt", "/*", "/v1/models*", "/health%3f"],
)  # fmt: skip
def test_path_that_is_not_exactly_a_route_is_not_found(serving_stub, path: str):
    with serving_stub() as running:
        answer = running.get(path)
        assert (answer.status, answer.error["code"]) == (404, "not_found")


def test_path_below_a_route_is_taken_literally(serving_stub):
    with serving_stub() as running:
        for rest in ("a", "org/name", "org%2Fname", "../../etc/passwd", "%2e%2e%2fetc", "*", "a//b"):
            assert running.get(f"/v1/models/{rest}?x=%20").data["path"] == f"/v1/models/{rest}"
        assert running.get("/v1/models?key=a%20b").data["query"] == "key=a%20b"


def test_method_that_a_path_does_not_take_is_refused_with_those_that_it_does(serving_stub):
    with serving_stub() as running:
        for method, path, allow in (
            ("GET", "/echo", "POST"), ("POST", "/health", "GET, HEAD"), ("DELETE", "/boom", "GET, HEAD, POST"),
            ("TRACE", "/v1/models/x", "GET, HEAD"), ("HEAD", "/echo", "POST"),
        ):  # fmt: skip
            answer = running.ask(method, path)
            assert (answer.status, answer.headers["allow"]) == (405, allow)


def test_head_is_get_without_its_body(serving_stub):
    with serving_stub() as running:
        answer = running.ask("HEAD", "/health")
        assert (answer.status, answer.body) == (200, b"")
        assert int(answer.headers["content-length"]) == len(running.get("/health").body)


def test_options_is_answered_for_named_origins_only(serving_stub):
    with serving_stub(cors_origins=("https://app.example",), keys=("k",)) as running:
        asked = {"Origin": "https://app.example", "Access-Control-Request-Method": "POST"}
        answer = running.ask("OPTIONS", "/echo", headers=asked)
        assert (answer.status, answer.body) == (204, b"")
        assert answer.headers["access-control-allow-origin"] == "https://app.example"
        assert answer.headers["vary"] == "origin"
        allowed = running.post("/echo", {}, Origin="https://app.example", Authorization="Bearer k")
        assert (allowed.status, allowed.headers["access-control-allow-origin"]) == (200, "https://app.example")
        # A page has to see errors too.
        assert "access-control-allow-origin" in running.post("/echo", {}, Origin="https://app.example").headers
        for headers in ({}, {"Origin": f"http://127.0.0.1:{running.port}"}, {"Origin": "https://evil.example"}):
            refused = running.ask("OPTIONS", "/echo", headers=headers)
            assert refused.status == 403
            assert "access-control-allow-origin" not in refused.headers


def test_reply_of_an_error_has_all_keys_and_headers(serving_stub):
    with serving_stub() as running:
        answer = running.post("/boom", {"kind": "api"})
        assert answer.status == 429
        assert answer.headers["retry-after"] == "3"
        assert answer.data == {
            "error": {
                "message": "later", "type": "rate_limit_error", "param": None, "code": "rate_limit_exceeded",
                "waiting": 7,
            }
        }  # fmt: skip


def test_fields_of_a_route_read_its_body(serving_stub, stub):
    class Fields:
        def read(self, body):
            if "n" not in body:
                raise ApiError(400, "n: is missing", param="n", code="missing_parameter")
            return {"n": body["n"] * 2}

    with serving_routes({("POST", "/double"): Route(stub.echo, Fields())}) as running:  # type: ignore[arg-type]
        assert running.post("/double", {"n": 4}).data == {"n": 8}
        answer = running.post("/double", {})
        assert (answer.status, answer.error["param"]) == (400, "n")


@pytest.mark.parametrize("body", [[], 1, "x", None, b"null"])
def test_body_that_is_no_object_is_refused(serving_stub, body):
    with serving_stub() as running:
        answer = running.post("/echo", b"null" if body is None else body)
        assert (answer.status, answer.error["code"]) == (400, "invalid_json")


def test_body_that_is_large_is_read_the_same_way(serving_stub):
    with serving_stub() as running:
        data = {"texts": ["\u00e9\U0001f600" * 1000] * 100}
        assert running.post("/echo", data).data == data
        assert running.post("/echo", b'{"x": [' + b"1," * 300_000 + b"1e999]}").error["param"] == "x[300000]"


def test_body_in_chunks_is_read_the_same_way(serving_stub):
    with serving_stub() as running, running.connect() as sock:
        kind = ("Content-Type: application/json", "Transfer-Encoding: chunked", "Connection: close")
        sock.sendall(running.head("POST", "/echo", *kind) + b'5\r\n{"a":\r\n')
        sock.sendall(b"3;ext=1\r\n1}\n\r\n0\r\nTrailer: x\r\n\r\n")
        assert read_all(sock).endswith(b'{"a":1}')


def test_connection_is_kept_for_the_next_request(serving_stub):
    with serving_stub() as running:
        connection = http.client.HTTPConnection("127.0.0.1", running.port, timeout=60)
        for i in range(5):
            connection.request("POST", "/echo", json.dumps({"i": i}), {"Content-Type": "application/json"})
            assert json.loads(connection.getresponse().read()) == {"i": i}
            connection.request("POST", "/stream", "{}", {"Content-Type": "application/json"})
            assert connection.getresponse().read().count(b"data:") == 3
        assert len(running.server.server_state.connections) == 1
        connection.close()


def test_stream_sends_every_event_and_ends(serving_stub, stub):
    with serving_stub() as running:
        answer = running.post("/stream", {"count": 500})
        assert answer.body == b"".join(b"data: %d\n\n" % i for i in range(500))
        assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
        assert answer.headers["x-accel-buffering"] == "no"
        assert running.post("/stream", {"count": 0}).body == b""
        assert stub.closed == 2


def test_stream_that_fails_at_its_first_event_has_a_status(serving_stub):
    with serving_stub() as running:
        answer = running.post("/stream", {"fail_at": 0, "code": 429})
        assert (answer.status, answer.error["code"]) == (429, "as_asked")


def test_stream_that_fails_later_ends_with_an_error_event(serving_stub):
    with serving_stub() as running:
        answer = running.post("/stream", {"fail_at": 2})
        assert answer.status == 200
        head, tail = answer.body.split(b"data: 1\n\n")
        assert head == b"data: 0\n\n"
        assert json.loads(tail.removeprefix(b"data: "))["error"]["code"] == "as_asked"
        assert tail.endswith(b"\n\n")
        assert running.get("/health").status == 200


def test_stream_in_silence_sends_comments_and_its_head(serving_stub, stub):
    with serving_stub({"ping_seconds": 0.02}) as running, running.connect() as sock:
        send_post(running, sock, "/stream", {"wait_at": 0}, "Connection: close")
        head = read_until(sock, b"\r\n\r\n")
        assert status_of(head) == 200
        for _ in range(3):
            assert read_until(sock, b": ping\n\n\r\n") == b"8\r\n: ping\n\n\r\n"
        running.call(stub.go.set)
        rest = read_all(sock).replace(b"8\r\n: ping\n\n\r\n", b"")
        assert rest == b"".join(b"9\r\ndata: %d\n\n\r\n" % i for i in range(3)) + b"0\r\n\r\n"


@pytest.mark.parametrize("path", ["/wait", "/stream"])
def test_client_that_goes_away_cancels_its_handler(serving_stub, stub, path: str):
    with serving_stub() as running:
        for i in range(5):
            with running.connect() as sock:
                send_post(running, sock, path, {"wait_at": 1} if path == "/stream" else {})
                running.eventually(lambda i=i: stub.begun == i + 1)
                assert running.state.active == 1
            running.eventually(lambda: running.state.active == 0)
            assert stub.cancelled == i + 1


def test_client_that_goes_away_behind_a_second_request_cancels_the_first(serving_stub, stub):
    with serving_stub() as running:
        with running.connect() as sock:
            send_post(running, sock, "/wait", {})
            running.eventually(lambda: stub.begun == 1)
            send_post(running, sock, "/wait", {})
            sock.sendall(b"x" * 100_000)
        running.eventually(lambda: running.state.active == 0)
        assert (stub.begun, stub.cancelled) == (1, 1)


def test_requests_at_once_on_one_connection_get_the_first_answer_and_its_end(serving_stub):
    with serving_stub() as running:
        answer = running.raw(running.head("GET", "/health") * 3)
        assert answer.count(b"HTTP/1.1 200 OK") == 1
        assert b"connection: close" in answer
        assert answer.endswith(b'{"status":"ok"}')


@pytest.mark.parametrize("path", ["/wait", "/stream"])
def test_request_that_takes_too_long_is_ended(serving_stub, stub, path: str):
    with serving_stub({"request_seconds": 0.05}) as running:
        answer = running.post(path, {"wait_at": 0} if path == "/stream" else {})
        assert (answer.status, answer.error["code"]) == (408, "request_timeout")
        assert answer.headers["x-should-retry"] == "false"
        assert stub.cancelled == 1
        streamed = running.post("/stream", {"wait_at": 2})
        assert streamed.status == 200
        assert b'"code":"request_timeout"' in streamed.body.split(b"data: 1\n\n")[1]
        assert stub.closed == stub.begun - (path == "/wait")


def test_reader_that_is_too_slow_is_dropped_with_a_bounded_buffer(serving_stub, stub):
    with serving_stub({"ping_seconds": 0.2}) as running, running.connect(receive_buffer=4096) as sock:
        send_post(running, sock, "/stream", {"count": 100_000, "size": 1000})
        sock.recv(1)
        (connection,) = running.server.server_state.connections
        largest = 0

        def dropped() -> bool:
            nonlocal largest
            largest = max(largest, connection.transport.get_write_buffer_size())
            return running.state.active == 0

        running.eventually(dropped)
        assert 0 < largest <= 64 * 1024
        assert (stub.cancelled + stub.closed > 0, stub.events_made < 100_000) == (True, True)
        running.eventually(lambda: not running.server.server_state.connections)


@pytest.mark.parametrize("kind", [None, "panic", "nan"])
def test_handler_that_fails_tells_the_id_and_nothing_else(serving_stub, kind):
    lines = Lines()
    with serving_stub() as running, lines:
        answer = running.post("/boom", {"kind": kind}, x_request_id="the-id")
        assert answer.status == 500
        assert answer.headers["x-should-retry"] == "false"
        assert answer.error["message"] == "internal error, request id the-id"
        assert b"secret" not in answer.body
        assert running.get("/health").status == 200
        running.eventually(lambda: running.state.active == 0)
    (logged,) = [line for line in lines.text if "failed" in line]
    assert "the-id" in logged
    assert "Traceback" in logged


def test_stream_that_fails_tells_nothing_of_why(serving_stub):
    with serving_stub() as running, Lines():
        answer = running.post("/stream", {"fail_at": 1, "code": 500})
        assert b"secret" not in answer.body
        assert b"internal error, request id" in answer.body


def test_handler_that_finds_the_input_wrong_says_so(serving_stub):
    with serving_stub() as running:
        answer = running.post("/boom", {"kind": "input"})
        assert (answer.status, answer.error["message"]) == (400, "temperature: is -1")


class Lines(logging.Handler):
    """What is logged meanwhile."""

    def __init__(self, kind: str = "text") -> None:
        super().__init__()
        self.setFormatter(LogFormat(kind))
        self.text: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.text.append(self.format(record))

    def __enter__(self) -> "Lines":
        self.before = LOGGER.level, LOGGER.propagate
        LOGGER.addHandler(self)
        LOGGER.setLevel(logging.INFO)
        LOGGER.propagate = False
        return self

    def __exit__(self, *_: object) -> None:
        LOGGER.removeHandler(self)
        LOGGER.setLevel(self.before[0])
        LOGGER.propagate = self.before[1]


@pytest.mark.parametrize("kind", ["text", "json"])
def test_log_has_one_line_for_each_request_and_no_secret(serving_stub, kind: str):
    asked = {"prompt": "sesame"}
    with Lines(kind) as lines:
        with serving_stub(log=kind, keys=("sesame",)) as running:
            for i, ask in enumerate((
                lambda: running.post("/echo?key=sesame", asked, Authorization="Bearer sesame", x_request_id="one"),
                lambda: running.post("/echo?key=sesame", asked, x_request_id="two"),
                lambda: running.raw(b"\x1b[31m\r\n\r\n"),
                lambda: running.get("/v1/models/" + "x" * 300 + "%1b", Authorization="Bearer sesame"),
            )):  # fmt: skip
                ask()
                # A line may come after its answer.
                running.eventually(lambda i=i: len(lines.text) == i + 1)
        assert not any("sesame" in line or "\x1b" in line for line in lines.text)
        if kind == "json":
            first, second, third, last = map(json.loads, lines.text)
            assert first["request"] == "one"
            assert (first["method"], first["path"], first["status"]) == ("POST", "/echo", 200)
            assert (first["client"], len(first["key"])) == ("127.0.0.1", 16)
            assert first["seconds"] >= 0
            assert (second["status"], second["error"], second["key"]) == (401, "invalid_api_key", None)
            assert (third["status"], third["error"]) == (400, "malformed_request")
            assert len(last["path"]) == 200
        else:
            assert "request=one method=POST path=/echo status=200" in lines.text[0]


def test_log_spells_out_control_characters():
    record = logging.LogRecord("anyformer.serve", logging.INFO, "", 0, "request", None, None)
    record.fields = {"path": "/a\nb\x1b[31m\u202e"}
    assert LogFormat("text").format(record).endswith(r"path=/a\nb\x1b[31m\u202e")
    assert "\\u001b" in LogFormat("json").format(record)


def test_log_of_nothing_writes_nothing(serving_stub):
    with Lines() as lines, serving_stub(log="none") as running:
        running.get("/health")
    assert lines.text == []
