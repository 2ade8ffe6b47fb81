"""Who may ask: names, origins and keys, compared whole."""

import hashlib

import pytest

from anyformer.serve.errors import ApiError
from anyformer.serve.http.access import Access
from tests.serve.running import config_of


def access(**changes) -> Access:
    return Access(config_of(**({"port": 8000} | changes)))


def status(call) -> int:
    try:
        call()
    except ApiError as error:
        return error.status
    return 200


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.1:8000", "localhost", "LOCALHOST:8000", "[::1]", "[::1]:8000"])
def test_host_that_is_ours_may_ask(host: str):
    assert status(lambda: access().check_host({"host": host})) == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:8000", "localhost.evil.example", "localhost:8001", "127.0.0.1:80000", "127.0.0.2",
     "localhost.", "", "127.0.0.1, evil.example", "127.0.0.1:8000@evil.example", "xlocalhost", "::1", "0.0.0.0",
     "192.168.1.7", "2130706433"],
)  # fmt: skip
def test_host_that_is_not_ours_is_refused(host: str):
    assert status(lambda: access().check_host({"host": host})) == 403


def test_host_that_is_missing_is_refused():
    assert status(lambda: access().check_host({})) == 403


def test_host_that_the_user_named_may_ask():
    door = access(allowed_hosts=("API.example.org", "box:9000"))
    for host, right in {
        "api.example.org": 200, "api.example.org:8000": 200, "api.example.org:9000": 403, "x.api.example.org": 403,
        "box:9000": 200, "box": 403,
    }.items():  # fmt: skip
        assert status(lambda host=host: door.check_host({"host": host})) == right, host


def test_host_of_a_server_that_listens_everywhere_is_an_address_and_no_name():
    door = access(host="0.0.0.0", keys=("k",), allowed_hosts=("box",))
    for host, right in {
        "192.168.1.7:8000": 200, "10.0.0.1": 200, "192.168.1.7:32768": 200, "[fe80::1]:8000": 200, "localhost:9": 200,
        "box": 200, "evil.example": 403, "1.2.3": 403, "1.2.3.4.evil.example": 403, "[::1": 403, "300.1.1.1": 403,
        "localhost.evil": 403, "[12]": 403, "0x7f.1": 403,
    }.items():  # fmt: skip
        assert status(lambda host=host: door.check_host({"host": host})) == right, host


def test_host_of_one_address_is_that_address():
    assert status(lambda: access(host="192.168.1.7").check_host({"host": "192.168.1.7:8000"})) == 200
    assert status(lambda: access(host="::1").check_host({"host": "[::1]:8000"})) == 200
    assert status(lambda: access(host="fe80::2").check_host({"host": "[fe80::2]"})) == 200


@pytest.mark.parametrize(
    ("origin", "right"),
    [
        ("http://localhost:8000", 200), ("HTTP://LOCALHOST:8000", 200), ("http://localhost", 403),
        ("http://localhost:3000", 403), ("https://localhost:8000", 403), ("http://localhost.evil.com", 403),
        ("http://localhost:8000.evil.com", 403), ("http://127.0.0.1:8000", 403), ("http://evil", 403), ("null", 403),
        ("", 403), ("file://", 403), ("http://localhost:8000, http://evil", 403), ("http://localhost:8000/", 403),
    ],
)  # fmt: skip
def test_origin_is_compared_whole_with_our_own(origin: str, right: int):
    assert status(lambda: access().check_origin({"host": "localhost:8000", "origin": origin})) == right


def test_origin_of_a_named_host_may_have_tls():
    door = access(allowed_hosts=("api.example.org",))
    headers = {"host": "api.example.org", "origin": "https://api.example.org"}
    assert status(lambda: door.check_origin(headers)) == 200
    assert status(lambda: door.check_origin(headers | {"origin": "https://www.api.example.org"})) == 403


def test_origin_that_is_missing_may_ask_and_says_nothing_of_cors():
    assert access().check_origin({"host": "localhost:8000"}) == {}


def test_origin_that_the_user_named_is_told_so_and_no_other():
    door = access(cors_origins=("https://app.example",))
    told = door.check_origin({"host": "localhost:8000", "origin": "https://app.example"})
    assert told["access-control-allow-origin"] == "https://app.example"
    assert told["vary"] == "origin"
    assert "access-control-allow-credentials" not in told
    assert door.check_origin({"host": "localhost:8000"}) == {"vary": "origin"}
    for other in ("https://app.example.evil", "http://app.example", "null"):
        assert status(lambda o=other: door.check_origin({"host": "localhost:8000", "origin": o})) == 403


@pytest.mark.parametrize(
    ("given", "sent"),
    [
        ("https://App.Example", "https://app.example"),
        ("https://app.example:443", "https://app.example"),
        ("http://app.example:80", "http://app.example"),
        ("http://app.example:443", "http://app.example:443"),
        ("HTTP://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_origin_that_the_user_named_is_known_as_browsers_write_it(given: str, sent: str):
    told = access(cors_origins=(given,)).check_origin({"host": "localhost:8000", "origin": sent})
    assert told["access-control-allow-origin"] == sent


def test_preflight_answers_named_origins_only():
    door = access(cors_origins=("https://app.example",))
    asked = {"origin": "https://app.example", "access-control-request-headers": "content-type, x-stainless-os"}
    assert door.preflight(asked)["access-control-allow-headers"] == "content-type, x-stainless-os"
    odd = door.preflight(asked | {"access-control-request-headers": "a\x7fb"})
    assert odd["access-control-allow-headers"] == "authorization, content-type, x-api-key"
    assert status(lambda: door.preflight({})) == 403
    assert status(lambda: access().preflight(asked)) == 403


@pytest.mark.parametrize(
    ("headers", "right"),
    [
        ({"authorization": "Bearer second"}, 200), ({"authorization": "bearer  second "}, 200),
        ({"x-api-key": "first"}, 200), ({"authorization": "Basic x", "x-api-key": "first"}, 200),
        ({"authorization": "Bearer secone"}, 401), ({"authorization": "second"}, 401), ({}, 401),
        ({"authorization": "Bearer "}, 401), ({"authorization": "Basic second"}, 401), ({"x-api-key": ""}, 401),
        ({"authorization": "Bearer second, Bearer x"}, 401), ({"authorization": "Bearer \xff"}, 401),
        ({"authorization": "Bearer wrong", "x-api-key": "first"}, 401),
    ],
)  # fmt: skip
def test_key_is_compared_whole(headers: dict[str, str], right: int):
    assert status(lambda: access(keys=("first", "second")).key_id(headers)) == right


def test_key_has_an_id_that_does_not_tell_it():
    door = access(keys=("first", "k\u00e9y"))
    assert door.key_id({"authorization": "Bearer first"}) == hashlib.sha256(b"first").hexdigest()[:16]
    # Headers are bytes: those of UTF-8 arrive as if they were Latin-1.
    assert door.key_id({"x-api-key": "k\u00e9y".encode().decode("latin-1")}) is not None


def test_key_is_not_asked_for_where_there_is_none():
    assert access().key_id({"authorization": "Bearer whatever"}) is None


def test_key_that_is_wrong_by_one_byte_is_refused_every_time():
    right = "k" * 40
    door = access(keys=(right,))
    for i in range(40):
        for other in ("j", "\x00", "K"):
            wrong = right[:i] + other + right[i + 1 :]
            assert status(lambda wrong=wrong: door.key_id({"authorization": f"Bearer {wrong}"})) == 401
