"""The OpenAPI document says of every route what the server does with it."""

import json

import pytest

from anyformer.serve.fields.openapi import openapi
from tests.serve.schema_values import fits, inside, outside


@pytest.fixture
def document(serving):
    with serving(keys=("secret",)) as server:
        answer = server.get("/openapi.json", Authorization="Bearer secret")
        assert answer.headers["content-type"] == "application/json"
        return answer.data


def test_openapi_lists_every_route_that_is_there(serving, document):
    with serving() as server:
        for path, methods in document["paths"].items():
            shown = path.replace("{id}", "tiny")
            for method in methods:
                # What is there answers a GET, or a POST without a body, with anything but "no such path".
                answer = server.ask(method.upper(), shown, {} if method == "post" else None)
                assert answer.status not in (404, 405), (method, path)
    for path in ("/v1/completions", "/v1/chat/completions", "/v1/embeddings", "/completion", "/tokenize", "/openapi.json", "/"):  # fmt: skip
        assert path in document["paths"]


def test_openapi_operations_have_names_summaries_and_errors(document):
    names = []
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            names.append(operation["operationId"])
            assert operation["summary"], (method, path)
            assert "200" in operation["responses"]
            assert ("413" in operation["responses"]) == ("requestBody" in operation) == (method == "post")
            opened = path in ("/", "/health", "/ready") or path.startswith("/page/")
            assert ("401" in operation["responses"]) == ("security" in operation) == (not opened), path
            assert all(len(name) > 1 for name in operation["operationId"].split("_")[:1])
    assert len(set(names)) == len(names)
    error = document["components"]["schemas"]["Error"]
    assert error["properties"]["error"]["required"] == ["message", "type", "param", "code"]


def test_openapi_bounds_are_those_of_the_tables(document):
    schema = document["paths"]["/v1/completions"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert schema["additionalProperties"] is False
    assert schema["required"] == ["prompt"]
    for good in ({"prompt": "a"}, {"prompt": [1], "logprobs": 20, "seed": None}):
        assert fits(schema, good)
    for bad in ({}, {"prompt": "a", "logprobs": 21}, {"prompt": "a", "max_token": 1}, {"prompt": None}):
        assert not fits(schema, bad)


def test_openapi_without_keys_has_no_security(serving):
    with serving() as server:
        found = server.get("/openapi.json").data
    assert "securitySchemes" not in found["components"]
    assert not any("security" in each for methods in found["paths"].values() for each in methods.values())
    assert json.dumps(found, allow_nan=False)


def test_openapi_of_no_routes_is_empty():
    assert openapi({})["paths"] == {}


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "integer", "minimum": 1, "maximum": 3},
        {"type": "number", "exclusiveMinimum": 0, "maximum": 1},
        {"type": "string", "minLength": 1, "maxLength": 4},
        {"type": "boolean"},
        {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 9}, "minItems": 1, "maxItems": 2},
        {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"], "additionalProperties": False},
        {"anyOf": [{"type": "boolean"}, {"type": "integer", "minimum": 0, "maximum": 1}]},
        {"enum": ["a", 1]},
    ],
)
def test_values_made_from_a_schema_are_on_the_right_side_of_it(schema):
    good, bad = list(inside(schema)), list(outside(schema))
    assert good
    assert bad
    assert all(fits(schema, value) for value in good)
    assert not any(fits(schema, value) for value in bad)
