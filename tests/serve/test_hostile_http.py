"""Requests that mean harm, in bytes: each is answered or dropped, and the next client is served as before."""

import gzip
import json
import re
import socket

import pytest

from anyformer.errors import CapabilityError, InputError
from anyformer.serve import server
from anyformer.serve.config import ServeConfig
from anyformer.serve.http import exchange, protocol
from anyformer.serve.http.app import App, ServerState
from anyformer.serve.http.listen import Server, bind
from tests.serve.running import config_of, error_of, in_thread, read_all, read_until, serving_routes, status_of
from tests.serve.stub_routes import Stub

ROUTES = [(method, path.replace("/*", "/x")) for method, path in Stub().routes(None)]  # type: ignore[arg-type]
CLOSED = [path for _, path in ROUTES if path not in ("/health", "/ready", "/page.js")]
JSON = "Content-Type: application/json"


@pytest.fixture
def brief(monkeypatch):
    """Nobody waits long for a client that was refused."""
    monkeypatch.setattr(exchange, "LINGER_SECONDS", 0.05)
    monkeypatch.setattr(protocol, "LINGER_SECONDS", 0.05)


def nobody(*_) -> None:
    """Waits for a server that is never ready."""


def alive(running) -> None:
    """The server serves as before, and nothing is left of what came."""
    assert running.get("/health").status == 200
    running.eventually(lambda: running.state.active == 0)


def ask_all(running, headers: dict[str, str], body: bytes = b"{}"):
    for method, path in ROUTES:
        yield path, running.ask(method, path, body if method == "POST" else None, headers)


def test_host_of_another_is_refused_on_every_route(serving_stub):
    with serving_stub(keys=("k",)) as running:
        for path, answer in ask_all(running, {"Host": "evil.example", "Authorization": "Bearer k"}):
            assert (answer.status, answer.error["code"]) == (403, "host_not_allowed"), path
        lacking = running.raw(b"GET /health HTTP/1.1\r\nConnection: close\r\n\r\n")
        twice = running.raw(running.head("GET", "/health", "Host: evil.example", "Connection: close"))
        assert (status_of(lacking), status_of(twice)) == (403, 403)
        alive(running)


@pytest.mark.parametrize("origin", ["http://evil", "http://localhost.evil.com", "null", "https://127.0.0.1"])
def test_origin_of_another_is_refused_on_every_route(serving_stub, origin: str):
    with serving_stub() as running:
        for path, answer in ask_all(running, {"Origin": origin}):
            assert (answer.status, answer.error["code"]) == (403, "origin_not_allowed"), path
            assert not any(name.startswith("access-control") for name in answer.headers)
        simple = running.post("/echo", {}, Origin=origin, Content_Type="text/plain")
        assert simple.status == 403
        alive(running)


def test_origin_of_our_own_page_may_ask(serving_stub):
    with serving_stub() as running:
        assert running.post("/echo", {}, Origin=f"http://127.0.0.1:{running.port}").status == 200


@pytest.mark.parametrize(
    "headers", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "k"}, {"Cookie": "key=k"}, {"x-api-key": "K"}]
)
def test_key_is_asked_for_on_every_route_that_has_data(serving_stub, headers: dict[str, str]):
    with serving_stub(keys=("k",)) as running:
        for path, answer in ask_all(running, headers):
            if path in CLOSED:
                assert (answer.status, answer.error["code"]) == (401, "invalid_api_key"), path
                assert answer.headers["www-authenticate"] == "Bearer"
            else:
                assert answer.status == 200, path
        assert running.get("/v1/models?key=k&api_key=k&authorization=Bearer%20k", **headers).status == 401
        assert running.get("/v1/models", x_api_key="k").status == 200
        assert running.get("/nothing", **headers).status == 404


@pytest.mark.parametrize(
    "lines",
    [["X: " + "y" * 70_000], [f"X{i}: y" for i in range(5000)], [f"X{i}: " + "y" * 200 for i in range(90)],
     ["X" * 20_000 + ": y"], ["X:" + " " * 300_000 + "y"]],
)  # fmt: skip
def test_head_that_is_too_large_is_refused(serving_stub, lines: list[str]):
    with serving_stub() as running:
        answer = running.raw(running.head("GET", "/health", *lines))
        assert (status_of(answer), error_of(answer)["code"]) == (431, "head_too_large")
        alive(running)


def test_head_within_its_limits_is_read(serving_stub):
    with serving_stub() as running:
        fields = [f"X{i}: y" for i in range(98)]
        assert status_of(running.raw(running.head("GET", "/health", *fields, "Connection: close"))) == 200
        assert status_of(running.raw(running.head("GET", "/health", *fields, "X: y", "Connection: close"))) == 431
        assert status_of(running.raw(running.head("GET", "/health", "X: " + "y" * 16_000, "Connection: close"))) == 200


@pytest.mark.parametrize("start", [b"GET /health HTTP/1.1\r\nX: ", b"GET /", b"\r\n", b"GET /health HTTP/1.1\r\n"])
def test_head_without_end_is_refused_before_it_ends(serving_stub, start: bytes):
    with serving_stub() as running, running.connect() as sock:
        sock.sendall(start)
        more = b"\r\n" if start == b"\r\n" else b"X: y\r\n" if start.endswith(b"1.1\r\n") else b"y"
        for _ in range(40):
            sock.sendall(more * 500)
        assert status_of(read_all(sock)) == 431
        alive(running)


@pytest.mark.parametrize("start", [b"", b"G", b"GET /health HTTP/1.1\r\nHost: ", b"\r\n\r\n"])
def test_head_that_does_not_come_closes_the_connection(serving_stub, start: bytes):
    with serving_stub({"head_seconds": 0.1, "keep_alive_seconds": 60.0}) as running:
        assert running.raw(start) == b""
        with running.connect() as sock:
            # The same between requests.
            sock.sendall(running.head("GET", "/health"))
            assert status_of(read_until(sock, b'"ok"}')) == 200
            sock.sendall(start or b"G")
            assert read_all(sock) == b""
        alive(running)


def test_head_that_comes_byte_by_byte_has_one_time_limit_for_all(serving_stub):
    with serving_stub({"head_seconds": 0.2}) as running, running.connect() as sock:
        sock.settimeout(0.01)
        sent = 0
        for byte in running.head("GET", "/health", "X: " + "y" * 10_000):
            try:
                sock.sendall(bytes([byte]))
                if sock.recv(1) == b"":
                    break
            except TimeoutError:
                sent += 1
            except ConnectionError:
                break
        assert 0 < sent < 10_000
        alive(running)


def test_connection_that_stays_idle_is_closed(serving_stub):
    with serving_stub({"keep_alive_seconds": 0.05}) as running, running.connect() as sock:
        sock.sendall(running.head("GET", "/health"))
        assert read_all(sock).endswith(b'{"status":"ok"}')


def test_body_that_trickles_is_refused_when_its_time_is_over(serving_stub, brief):
    with serving_stub({"body_seconds": 0.1}) as running, running.connect() as sock:
        sock.sendall(running.head("POST", "/echo", JSON, "Content-Length: 100") + b"{")
        # Another is served meanwhile.
        assert running.post("/echo", {"a": 1}).status == 200
        answer = read_all(sock)
        assert (status_of(answer), error_of(answer)["code"]) == (408, "body_timeout")
        assert b"connection: close" in answer
        alive(running)


@pytest.mark.parametrize("length", ["10000000000", "9" * 19, "1001"])
def test_body_that_is_too_large_by_its_own_account_is_refused_unread(serving_stub, brief, length: str):
    with serving_stub({"body_bytes": 1000}) as running:
        answer = running.raw(running.head("POST", "/echo", JSON, f"Content-Length: {length}"))
        assert (status_of(answer), error_of(answer)["code"]) == (413, "body_too_large")
        alive(running)


def test_body_that_waits_to_be_asked_for_is_not_asked_for_in_vain(serving_stub, brief):
    with serving_stub({"body_bytes": 1000}) as running:
        expect = (JSON, "Expect: 100-continue")
        assert b"100 Continue" not in running.raw(running.head("POST", "/echo", *expect, "Content-Length: 1001"))
        with running.connect() as sock:
            sock.sendall(running.head("POST", "/echo", *expect, "Content-Length: 2", "Connection: close"))
            assert read_until(sock, b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(b"{}")
            assert status_of(read_all(sock)) == 200


def test_body_in_chunks_without_end_is_refused_when_it_is_too_large(serving_stub, brief):
    with serving_stub({"body_bytes": 1000}) as running, running.connect() as sock:
        sock.sendall(running.head("POST", "/echo", JSON, "Transfer-Encoding: chunked"))
        for _ in range(3):
            sock.sendall(b"200\r\n" + b"x" * 512 + b"\r\n")
        assert status_of(read_until(sock, b"}}")) == 413
        alive(running)


def test_body_that_is_sent_on_after_its_refusal_does_not_hide_the_answer(serving_stub):
    with serving_stub({"body_bytes": 1000}) as running:
        answer = running.post("/echo", b"x" * 3_000_000)
        assert answer.status == 413
        answer = running.post("/nothing", b"x" * 3_000_000)
        assert (answer.status, answer.headers["connection"]) == (404, "close")
        alive(running)


@pytest.mark.parametrize(
    "tail", [b"0\r\nX: " + b"y" * 40_000, b"0\r\n" + b"X: y\r\n" * 3000, b"2;" + b"e" * 40_000, b"zz\r\n", b"2\r\n{}x"]
)
def test_body_in_chunks_that_are_no_chunks_is_refused(serving_stub, brief, tail: bytes):
    with serving_stub({"body_seconds": 0.5}) as running, running.connect() as sock:
        sock.sendall(running.head("POST", "/echo", JSON, "Transfer-Encoding: chunked"))
        sock.sendall(b"1\r\n{\r\n")
        for at in range(0, len(tail), 10_000):
            sock.sendall(tail[at : at + 10_000])
        assert status_of(read_all(sock)) in (400, 408, 431)
        alive(running)


@pytest.mark.parametrize(
    "head",
    [
        b"GET /\r\n", b"GET /health\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 500,
        b"CONNECT evil.example:443 HTTP/1.1\r\nHost: evil.example:443\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", b"GET /health HTTP/9.9\r\nHost: localhost\r\n\r\n",
        b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET * HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET health HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /health#x HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", b"GET /a\x00b HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"MAKE /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", b"GET /health HTTP/1.1\r\n folded: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: local\x00host\r\n\r\n", b"\x00\x01\x02\x03", b"{}\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1_0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 99999999999999999999999\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\nContent-Length: 2\r\n\r\n0\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: xchunked\r\n\r\n0\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
        b"Sec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n\r\n",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c, WebSocket\r\nContent-Length: 2\r\n\r\n{}",
        b"POST /echo HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n"
        b"Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ],
)  # fmt: skip
def test_bytes_that_are_no_request_of_ours_are_refused_quietly(serving_stub, capfd, head: bytes):
    with serving_stub() as running:
        answer = running.raw(head)
        assert status_of(answer) == 400
        assert error_of(answer).keys() == {"message", "type", "param", "code"}
        assert b"connection: close" in answer
        assert b"x-request-id: " in answer
        alive(running)
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("step", [1, 7, 1000])
@pytest.mark.parametrize(
    "body", [("Content-Length: 7", b'{"a":1}'), ("Transfer-Encoding: chunked", b'4\r\n{"a"\r\n3\r\n:1}\r\n0\r\n\r\n')]
)
def test_offer_of_http_2_is_answered_by_http_1_1_with_its_whole_body(serving_stub, body, step: int):
    length, content = body
    offer = ("Connection: Upgrade, HTTP2-Settings", "Upgrade: h2c", "HTTP2-Settings: AAMAAABkAAQAoAAAAAIAAAAA")
    with serving_stub() as running, running.connect() as sock:
        for last in ((), ("Connection: close",)):
            sent = running.head("POST", "/echo", *offer, *last, JSON, length) + content
            for at in range(0, len(sent), step):
                sock.sendall(sent[at : at + step])
            answer = read_all(sock) if last else read_until(sock, b'"a":1}')
            assert (status_of(answer), answer.count(b"HTTP/1.1")) == (200, 1)
            assert b'"a":1}' in answer
        alive(running)


def test_requests_behind_an_offer_of_http_2_are_not_served(serving_stub, stub):
    offer = ("Connection: Upgrade", "Upgrade: h2c", JSON, "Content-Length: 2")
    with serving_stub() as running, running.connect() as sock:
        sock.sendall((running.head("POST", "/wait", *offer) + b"{}") * 3)
        running.eventually(lambda: stub.begun == 1)
        running.call(stub.go.set)
        answer = read_all(sock)
        assert (status_of(answer), answer.count(b"HTTP/1.1"), stub.begun) == (200, 1, 1)


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (b"GET /health HTTP/1.1\r\nHost : localhost\r\n\r\n", "malformed HTTP request: "),
        (b"POST /echo HTTP/1.1\r\nHost: localhost\r\nContent-Length: x\r\n\r\n", "malformed HTTP request: "),
        (b"GET /h\xc3\xa9 HTTP/1.1\r\nHost: localhost\r\n\r\n", "malformed HTTP request: "),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", "no TLS"),
        (b"GET /health\r\n\r\n", "not HTTP/1.1"),
        (b"GET /health HTTP/2.0\r\nHost: localhost\r\n\r\n", "not HTTP/1.1"),
        (b"GET http://evil.example/health HTTP/1.1\r\nHost: localhost\r\n\r\n", "another host than its Host header"),
    ],
)
def test_malformed_request_is_told_what_is_wrong_with_it(serving_stub, head: bytes, words: str):
    with serving_stub() as running:
        message = error_of(running.raw(head))["message"]
        assert words in message
        assert ("not HTTP/1.1" in message) == (words == "not HTTP/1.1")


def test_target_with_the_host_before_its_path_is_served_by_the_rules_for_hosts(serving_stub):
    lines = b"Host: %b\r\nConnection: close\r\n\r\n"
    with serving_stub() as running:
        ours, theirs = (
            running.raw(b"GET http://%b/health?a=b HTTP/1.1\r\n" % host + lines % host)
            for host in (b"localhost", b"evil.example")
        )
        assert (status_of(ours), status_of(theirs)) == (200, 403)
        assert error_of(theirs)["code"] == "host_not_allowed"


def test_bytes_after_a_request_do_not_spoil_its_answer(serving_stub, stub):
    with serving_stub() as running, running.connect() as sock:
        sock.sendall(running.head("POST", "/wait", JSON, "Content-Length: 2") + b"{}")
        running.eventually(lambda: stub.begun == 1)
        sock.sendall(b"\x00garbage\r\n\r\n" * 100)
        running.call(stub.go.set)
        answer = read_all(sock)
        assert (status_of(answer), answer.count(b"HTTP/1.1")) == (200, 1)
        assert answer.endswith(b'{"waited":true}')


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Content-Encoding": "gzip"}, gzip.compress(b" " * 10_000_000), 415),
        ({"Content-Type": "multipart/form-data; boundary=x"}, b"--x", 415),
        ({"Content-Type": "text/plain"}, b"{}", 415),
        ({"Content-Type": ""}, b"{}", 415),
        ({}, b"[" * 100_000, 400),
        ({}, b'{"a": NaN}', 400),
        ({}, b'{"a": 1e999}', 400),
        ({}, b'{"n": ' + b"9" * 5000 + b"}", 400),
        ({}, b'{"prompt": "\\ud800"}', 400),
        ({}, '{"a": 1}'.encode("utf-16"), 400),
        ({}, b'{"n":1,"n":1000000}', 400),
        ({}, b"", 400),
    ],
)
def test_body_that_is_no_plain_json_is_refused_on_every_route(serving_stub, headers, body: bytes, status: int):
    with serving_stub() as running:
        for method, path in ROUTES:
            if method == "POST":
                answer = running.ask("POST", path, body, headers)
                assert answer.status == status, path
                assert set(answer.error) == {"message", "type", "param", "code"}
        alive(running)


def test_body_without_a_content_type_is_refused(serving_stub, brief):
    with serving_stub() as running:
        assert status_of(running.raw(running.head("POST", "/echo", "Content-Length: 2") + b"{}")) == 415


def test_body_of_a_get_is_not_read(serving_stub, brief):
    with serving_stub() as running:
        answer = running.raw(running.head("GET", "/health", "Content-Length: 1000000000") + b"x" * 1000)
        assert status_of(answer) == 200
        assert b"connection: close" in answer
        alive(running)


def test_client_that_goes_away_in_its_body_leaves_nothing(serving_stub, stub):
    with serving_stub() as running:
        for part in (b"", b"{", b'{"a": '):
            with running.connect() as sock:
                sock.sendall(running.head("POST", "/wait", JSON, "Content-Length: 1000") + part)
        running.eventually(lambda: not running.server.server_state.connections)
        assert stub.begun == 0
        alive(running)


def test_connections_beyond_the_limit_of_an_address_are_refused(serving_stub, brief):
    with serving_stub({"connections_per_address": 3}) as running:
        held = [running.connect() for _ in range(3)]
        running.eventually(lambda: len(running.server.server_state.connections) == 3)
        answer = running.raw(b"")
        assert (status_of(answer), error_of(answer)["code"]) == (429, "too_many_connections")
        assert b"retry-after: 1" in answer
        held.pop().close()
        running.eventually(lambda: len(running.server.server_state.connections) == 2)
        alive(running)
        for sock in held:
            sock.close()
        running.eventually(lambda: not running.server.config.by_address)


def test_connections_beyond_the_limit_of_all_are_refused_and_many_more_dropped(serving_stub):
    with serving_stub({"connections": 2}) as running:
        held = [running.connect() for _ in range(8)]
        answers = [read_all(sock) if i > 1 else b"" for i, sock in enumerate(held)]
        assert [status_of(answer) for answer in answers[2:4]] == [503, 503]
        assert answers[4:] == [b""] * 4
        for sock in held:
            sock.close()
        running.eventually(lambda: not running.server.server_state.connections)
        alive(running)


def test_reply_that_nobody_reads_does_not_stay(stub):
    async def large(request):
        return protocol.error_reply(protocol.malformed("x" * 20_000_000))

    routes = stub.routes(None)
    routes[("POST", "/echo")] = type(routes[("POST", "/echo")])(large)
    with serving_routes(routes, config_of({"keep_alive_seconds": 0.05})) as running:
        for line in ("Connection: close", "Connection: keep-alive"):
            with running.connect(receive_buffer=4096) as sock:
                sock.sendall(running.head("POST", "/echo", JSON, "Content-Length: 2", line) + b"{}")
                running.eventually(lambda: len(running.server.server_state.connections) == 1)
                running.eventually(lambda: not running.server.server_state.connections)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"host": "0.0.0.0"}, "API keys"), ({"host": "::"}, "API keys"), ({"host": ""}, "API keys"),
        ({"host": "no.such.host.invalid"}, "no address or name"), ({"host": "203.0.113.7", "keys": ("k",)}, "no such address"),
        ({"port": -1}, "0 .any that is free. to 65535"), ({"port": 70_000}, "65535"),
        ({"cors_origins": ("*",)}, "whole origins"), ({"cors_origins": ("https://a.example/",)}, "whole origins"),
        ({"keys": (" ",)}, "key is empty"),
    ],
)  # fmt: skip
def test_server_that_can_not_be_is_refused_before_its_model_is_read(changes, says: str):
    with pytest.raises(InputError, match=says):
        server.serve(config_of(**({"model": "no/such/model"} | changes)), nobody)


def test_server_on_a_port_in_use_is_refused_with_advice():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=rf"127\.0\.0\.1:{port}: Address already in use; .*give another --port"):
            server.serve(config_of(model="no/such/model", port=port), nobody)


def test_server_whose_port_is_taken_while_its_model_is_read_is_refused():
    async def main(config: ServeConfig, sock: socket.socket, on_ready) -> int:
        # Two sockets may have one port until one of them listens.
        with bind("127.0.0.1", config.port, keys=False) as other:
            other.listen()
            return await Server(App({}, config, ServerState()), sock, on_ready).until_stopped()

    with pytest.raises(InputError, match="Address already in use"), in_thread(config_of(), None, main):
        pass


def test_server_without_its_packages_says_what_to_install(monkeypatch):
    def missing(package: str):
        raise ImportError(package)

    monkeypatch.setattr(server, "installed", missing)
    with pytest.raises(CapabilityError, match=r"pip install 'anyformer\[serve\]'"):
        server.serve(config_of(), nobody)


OPEN = re.compile(r"/|/health|/ready|/page/.*")


def real_routes(running) -> list[tuple[str, str]]:
    app = running.server.app
    exact = [(method, path) for path, methods in app._exact.items() for method in methods]
    below = [(method, f"{path}x") for path, methods in app._below.items() for method in methods]
    assert len(exact) > 15
    return exact + below


def test_every_route_of_the_server_is_behind_its_doors(serving):
    with serving(keys=("k",)) as running:
        for method, path in real_routes(running):
            body = b"{}" if method == "POST" else None
            for headers, status, code in (
                ({"Host": "evil.example", "Authorization": "Bearer k"}, 403, "host_not_allowed"),
                ({"Origin": "http://evil", "Authorization": "Bearer k"}, 403, "origin_not_allowed"),
                ({}, 401, "invalid_api_key"), ({"Authorization": "Bearer wrong"}, 401, "invalid_api_key"),
            ):  # fmt: skip
                if status == 401 and OPEN.fullmatch(path):
                    assert running.ask(method, path, body, headers).status == 200, path
                else:
                    answer = running.ask(method, path, body, headers)
                    assert (answer.status, answer.error["code"]) == (status, code), path
            if method == "POST":
                key = {"Authorization": "Bearer k"}
                plain = running.ask(method, path, b"{}", key | {"Content-Type": "text/plain"})
                assert plain.status == 415, path
                assert running.ask(method, path, b'{"a": NaN}', key).error["param"] == "a", path
                assert running.ask(method, path, b"[" * 100_000, key).error["code"] == "invalid_json", path
        running.engine_idle()


def test_slots_and_metrics_are_told_to_those_who_may_know(serving):
    with serving(keys=("k",)) as running:
        assert running.get("/metrics").status == running.get("/slots").status == 401
        assert running.get("/metrics", Authorization="Bearer k").status == 200
        assert running.get("/slots", Authorization="Bearer k").status == 501
    with serving(metrics=False) as running:
        assert running.get("/metrics").status == 501


@pytest.mark.parametrize("name", ["../../etc/passwd", "..%2f..%2fetc%2fpasswd", "x" * 10_000, "%00", "*"])
def test_model_that_is_asked_for_by_path_is_one_of_our_own(serving, name: str):
    with serving() as running:
        answer = running.get(f"/v1/models/{name}")
        assert (answer.status, answer.error["code"]) == (404, "model_not_found")


def test_client_that_goes_away_frees_its_slot(serving):
    with serving() as running:
        for stream in (True, False):
            for _ in range(3):
                with running.connect() as sock:
                    asked = {"prompt": "the cat", "max_tokens": 200, "ignore_eos": True, "stream": stream}
                    data = json.dumps(asked).encode()
                    sock.sendall(running.head("POST", "/v1/completions", JSON, f"Content-Length: {len(data)}") + data)
                    if stream:
                        read_until(sock, b"data: ")
                    else:
                        state = running.server.server_state
                        done = state.total_requests
                        running.eventually(lambda: running.state.active == 1 or state.total_requests > done)
                running.eventually(lambda: running.state.active == 0)
                running.engine_idle()


def test_error_objects_are_json_whatever_they_quote(serving_stub):
    with serving_stub() as running:
        answer = running.post("/echo", b'{"\\u202e\\u0000":1,"\\u202e\\u0000":2}')
        assert "\\u202e" in json.loads(answer.body)["error"]["message"]
