"""Every field of every table: what its schema allows is read, and what is just beyond is refused by name."""

import json
from collections.abc import Iterator
from typing import Any

import pytest

from anyformer.serve.api.routes import make_routes
from anyformer.serve.errors import ApiError
from anyformer.serve.fields.kinds import Field
from anyformer.serve.fields.table import Table
from anyformer.serve.http.app import ServerState
from tests.serve.running import Running, config_of, serving_engine
from tests.serve.schema_values import inside, outside

FEW = {"max_tokens": 1, "n_predict": 1, "max_completion_tokens": 1, "max_output_tokens": 1}
"""So that a request that is right is answered soon."""
SENT = 50_000
"""Bytes of the largest bodies that are sent; larger ones are only read."""
PLENTY = 40
"""Of the values of one field at most so many are sent."""


@pytest.fixture(scope="module")
def server(model_folder) -> Iterator[Running]:
    with serving_engine(config_of(model=str(model_folder), slots=True)) as running:
        yield running


@pytest.fixture(scope="module")
def tables(server: Running) -> dict[str, Table]:
    """By path."""
    routes = make_routes(config_of(model="tiny"), server.client, ServerState())
    return {path: route.fields for (_, path), route in routes.items() if route.fields is not None}


def base_of(table: Table) -> dict[str, Any]:
    """The least that is right."""
    names = {each.name for each in table.record.fields}
    needed = {
        each.name: next(value for value in inside(each.kind.schema()) if value not in ("", []))
        for each in table.record.fields
        if each.required
    }
    return needed | {name: value for name, value in FEW.items() if name in names}


def fields_of(tables: dict[str, Table]) -> Iterator[tuple[str, Table, Field]]:
    for path, table in tables.items():
        for field in table.record.fields:
            yield path, table, field


def refusal(table: Table, body: Any) -> ApiError | None:
    try:
        table.read(body)
    except ApiError as error:
        return error
    return None


def test_every_table_reads_all_that_its_schema_allows(tables: dict[str, Table]):
    wrong = []
    for path, table, field in fields_of(tables):
        for value in inside(field.kind.schema()):
            if value is not None and (error := refusal(table, base_of(table) | {field.name: value})):
                wrong.append(f"{path} {field.name}: {json.dumps(value)[:80]}: {error.message[:200]}")
    assert "\n".join(wrong) == ""


def test_every_table_refuses_all_that_its_schema_does_not_allow(tables: dict[str, Table]):
    wrong = []
    for path, table, field in fields_of(tables):
        for value in outside(field.kind.schema()):
            error = refusal(table, base_of(table) | {field.name: value})
            if error is None or error.status != 400 or not (error.param or "").startswith(field.name):
                told = None if error is None else (error.status, error.param, error.message[:80])
                wrong.append(f"{path} {field.name}: {json.dumps(value)[:80]}: {told}")
            elif field.name not in error.message or not error.code:
                wrong.append(f"{path} {field.name}: {error.message[:100]}")
    assert "\n".join(wrong) == ""


def test_every_table_takes_null_for_what_need_not_be_there(tables: dict[str, Table]):
    for path, table, field in fields_of(tables):
        error = refusal(table, base_of(table) | {field.name: None})
        assert (error is not None) == field.required, (path, field.name)
        assert error is None or (error.code, error.param) == ("missing_required_parameter", field.name)


def test_every_table_refuses_unknown_names_with_the_nearest(tables: dict[str, Table]):
    for path, table, field in fields_of(tables):
        error = refusal(table, base_of(table) | {f"{field.name}_x": 1})
        assert error is not None, path
        assert (error.status, error.code, error.param) == (400, "unknown_parameter", f"{field.name}_x")
        # Two letters more than a short name are no likeness.
        assert "did you mean" in error.message or len(field.name) < 4, (path, field.name)


def test_every_table_refuses_what_is_no_object(tables: dict[str, Table]):
    for table in tables.values():
        for body in ([], "a", 1, None, True):
            error = refusal(table, body)
            assert error is not None
            assert (error.status, error.param) == (400, "body")


def test_every_default_is_allowed_by_its_own_field(tables: dict[str, Table]):
    for path, table, field in fields_of(tables):
        if field.default is not None:
            assert refusal(table, base_of(table) | {field.name: field.default}) is None, (path, field.name)


def test_server_answers_every_wrong_field_with_400_and_its_name(server: Running, tables: dict[str, Table]):
    wrong = []
    for path, table, field in fields_of(tables):
        for value in list(outside(field.kind.schema()))[:PLENTY]:
            sent = json.dumps(base_of(table) | {field.name: value}).encode()
            if len(sent) > SENT:
                continue
            answer = server.post(path, sent)
            param = answer.error["param"] if answer.status == 400 else None
            # Integers of more digits than any field has are refused before fields are looked at.
            if answer.status != 400 or not (param is None or param.startswith(field.name)):
                wrong.append(f"{path} {field.name}: {json.dumps(value)[:60]}: {answer.status} {answer.body[:120]!r}")
    assert "\n".join(wrong) == ""
    server.engine_idle()


def test_server_never_fails_on_a_field_at_its_bounds(server: Running, tables: dict[str, Table]):
    wrong = []
    for path, table, field in fields_of(tables):
        for value in list(inside(field.kind.schema()))[:PLENTY]:
            sent = json.dumps(base_of(table) | {field.name: value}).encode()
            if len(sent) > SENT:
                continue
            answer = server.post(path, sent)
            if answer.status not in (200, 400, 404, 501):
                wrong.append(f"{path} {field.name}: {json.dumps(value)[:60]}: {answer.status} {answer.body[:120]!r}")
    assert "\n".join(wrong) == ""
    server.engine_idle()
