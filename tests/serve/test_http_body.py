"""Strict JSON: every body has one meaning or none."""

import json

import pytest

from anyformer.serve.config import Limits
from anyformer.serve.errors import ApiError
from anyformer.serve.http.body import DEPTH, check_content, parse_json


def refusal(body: bytes) -> ApiError:
    with pytest.raises(ApiError) as caught:
        parse_json(body)
    assert caught.value.status == 400
    assert caught.value.code == "invalid_json"
    return caught.value


@pytest.mark.parametrize(
    "value",
    [
        {},
        {"a": [1, 2.5, -3e10, True, None, "\u00e9\U0001f600", {"b": ""}]},
        [],
        7,
        "x",
        {"": {"": {}}},
        {"n": 10**4000},
    ],
)
@pytest.mark.parametrize("escaped", [True, False])
def test_json_that_is_sound_is_read_as_python_reads_it(value, escaped: bool):
    assert parse_json(json.dumps(value, ensure_ascii=escaped).encode()) == value


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "Expecting value"),
        (b"{", "Expecting property name"),
        (b'{"a": 1,}', "line 1"),
        (b"{'a': 1}", "Expecting property name"),
        (b'{"a": 1} {}', "Extra data"),
        (b'{"a": "\x01"}', "Invalid control character"),
        (b"\xef\xbb\xbf{}", "BOM"),
        (b'{"a": "\xff"}', "not UTF-8 (byte 7)"),
        (b'{"a": "\xed\xa0\x80"}', "not UTF-8"),
        ('{"a": 1}'.encode("utf-16"), "not UTF-8"),
        ('{"a": 1}'.encode("utf-16-le"), "Expecting property name"),
        ('{"a": 1}'.encode("utf-32"), "not UTF-8"),
        (b'{"n": 1, "n": 1000000}', "the key 'n' occurs twice"),
        (b'{"a": [{"b": 1, "c": 2, "b": 1}]}', "the key 'b' occurs twice"),
        (b'{"a\\n\\u001b[31m": 1, "a\\n\\u001b[31m": 1}', r"the key 'a\n\x1b[31m' occurs twice"),
        (b'{"n": ' + b"9" * 5000 + b"}", "digits"),
        (b"[" * 100_000, "levels deep"),
        (b'{"a":' * 100_000, "levels deep"),
        (b"[" * (DEPTH + 2) + b"]" * (DEPTH + 2), "levels deep"),
    ],
)  # fmt: skip
def test_json_that_is_unsound_is_refused_with_the_reason(body: bytes, says: str):
    assert says in refusal(body).message


def test_json_as_deep_as_allowed_is_read():
    assert parse_json(b"[" * (DEPTH + 1) + b"]" * (DEPTH + 1)) is not None
    wide = {"messages": [{"role": "user", "content": "{[" * 100}] * 300}
    assert parse_json(json.dumps(wide).encode()) == wide


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999", "-1e400", "9" * 400 + ".0"])
@pytest.mark.parametrize(
    ("body", "path"),
    [('{"temperature": %s}', "temperature"), ('{"a": [1, {"b": [0, %s]}]}', "a[1].b[1]"), ("[%s]", "[0]")],
)
def test_json_number_that_is_not_finite_is_refused_with_its_place(number: str, body: str, path: str):
    error = refusal((body % number).encode())
    assert error.param == path
    assert f"{path}: is not a finite number" in error.message


@pytest.mark.parametrize("half", ["\\ud800", "\\uDFFF", "\\uD83D", "a\\udc00b", "\\ude00\\ud83d"])
@pytest.mark.parametrize(
    ("body", "path"),
    [
        ('{"prompt": "%s"}', "prompt"),
        ('{"messages": [{"role": "user"}, {"content": "x%s"}]}', "messages[1].content"),
        ('{"stop": ["a", "%s"]}', "stop[1]"),
        ('{"logit_bias": {"%s": 1}}', "a key in logit_bias"),
    ],
)
def test_json_with_a_lone_surrogate_is_refused_with_its_place(half: str, body: str, path: str):
    error = refusal((body % half).encode())
    assert error.param == path
    assert "lone surrogate" in error.message
    # What is told must itself be sendable.
    json.dumps(error.body(), ensure_ascii=False).encode()


@pytest.mark.parametrize(
    "kind",
    ["application/json", "Application/JSON", "application/json; charset=utf-8", 'application/json;charset="UTF-8"'],
)
def test_content_type_of_json_in_utf8_is_taken(kind: str):
    check_content({"content-type": kind, "content-encoding": "identity", "content-length": "10"}, Limits())


@pytest.mark.parametrize(
    "kind",
    [None, "", "text/plain", "application/jsonp", "application/json; charset=utf-16", "application/json, text/plain",
     "multipart/form-data; boundary=x", "application/x-www-form-urlencoded", "application/json; charset=utf-8; x=y"],
)  # fmt: skip
def test_content_type_of_anything_else_is_refused(kind: str | None):
    with pytest.raises(ApiError) as caught:
        check_content({} if kind is None else {"content-type": kind}, Limits())
    assert caught.value.status == 415


@pytest.mark.parametrize("encoding", ["gzip", "br", "deflate", "identity, gzip", "x"])
def test_content_encoding_is_refused(encoding: str):
    with pytest.raises(ApiError) as caught:
        check_content({"content-type": "application/json", "content-encoding": encoding}, Limits())
    assert caught.value.status == 415
