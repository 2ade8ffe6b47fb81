"""Values just inside and just outside of a JSON Schema, made from the schema alone."""

from collections.abc import Iterator
from typing import Any

SMALL = 20_000
"""Longer texts and lists are not made."""
STEP = 2.0**-20


def inside(schema: dict[str, Any]) -> Iterator[Any]:
    """Values at the bounds."""
    if "const" in schema:
        yield schema["const"]
    elif "enum" in schema:
        yield from schema["enum"]
    elif kinds := schema.get("anyOf") or schema.get("oneOf"):
        for kind in kinds:
            yield from inside(kind)
    elif "type" not in schema:
        yield from (1, "a", [], {})
    else:
        yield from INSIDE[schema["type"]](schema)


def outside(schema: dict[str, Any]) -> Iterator[Any]:
    """Values just beyond the bounds, and of other types; none of them fits."""
    for value in _candidates(schema):
        if not fits(schema, value):
            yield value


def fits(schema: dict[str, Any], value: Any) -> bool:
    """Whether a value is one that the schema describes."""
    if "const" in schema:
        return value == schema["const"] and type(value) is type(schema["const"])
    if "enum" in schema:
        return any(value == one and type(value) is type(one) for one in schema["enum"])
    if kinds := schema.get("anyOf") or schema.get("oneOf"):
        return any(fits(kind, value) for kind in kinds)
    match schema.get("type"):
        case "integer":
            return type(value) is int and schema["minimum"] <= value <= schema["maximum"]
        case "number":
            low = schema.get("minimum", schema.get("exclusiveMinimum"))
            above = "exclusiveMinimum" not in schema or value != low
            return type(value) in (int, float) and low <= value <= schema["maximum"] and above
        case "null":
            return value is None
        case "boolean":
            return isinstance(value, bool)
        case "string":
            return isinstance(value, str) and schema.get("minLength", 0) <= len(value) <= schema["maxLength"]
        case "array":
            return _fits_array(schema, value)
        case "object":
            return _fits_object(schema, value)
        case _:
            return True


def _fits_array(schema: dict[str, Any], value: Any) -> bool:
    if not isinstance(value, list) or not schema.get("minItems", 0) <= len(value) <= schema["maxItems"]:
        return False
    kinds = schema.get("prefixItems") or [schema["items"]] * len(value)
    return all(fits(kind, one) for kind, one in zip(kinds, value, strict=True))


def _fits_object(schema: dict[str, Any], value: Any) -> bool:
    if not isinstance(value, dict) or len(value) > schema.get("maxProperties", len(value)):
        return False
    known, others = schema.get("properties", {}), schema.get("additionalProperties", True)
    if any(value.get(name) is None for name in schema.get("required", ())):
        return False
    for name, one in value.items():
        if name in known:
            if one is not None and not fits(known[name], one):
                return False
        elif others is False or (isinstance(others, dict) and not fits(others, one)):
            return False
    return True


def _numbers(schema: dict[str, Any]) -> Iterator[Any]:
    yield schema["minimum"] if "minimum" in schema else schema["exclusiveMinimum"] + STEP
    yield schema["maximum"]


def _texts(schema: dict[str, Any]) -> Iterator[Any]:
    yield "a" * schema.get("minLength", 0)
    yield "a" * min(schema["maxLength"], SMALL)


def _arrays(schema: dict[str, Any]) -> Iterator[Any]:
    if "prefixItems" in schema:
        yield [next(inside(kind)) for kind in schema["prefixItems"]]
        return
    few, item = schema.get("minItems", 0), schema["items"]
    yield [next(inside(item))] * few
    for one in inside(item):
        yield [one] * max(1, few)


def _objects(schema: dict[str, Any]) -> Iterator[Any]:
    known = schema.get("properties", {})
    needed = {name: next(inside(known[name])) for name in schema.get("required", ())}
    yield needed
    for name, kind in known.items():
        for one in inside(kind):
            yield needed | {name: one}


INSIDE = {
    "integer": _numbers, "number": _numbers, "boolean": lambda schema: iter((True, False)), "string": _texts,
    "array": _arrays, "object": _objects,
}  # fmt: skip
OTHERS: list[Any] = [True, 7, -7, 1.5, 10**30, "no such word", "", [], [[]], [{}], {}, {"no_such_name": 1}, [None]]
"""Values of every type."""


def _candidates(schema: dict[str, Any]) -> Iterator[Any]:
    yield from OTHERS
    for kind in schema.get("anyOf") or schema.get("oneOf") or ():
        yield from _candidates(kind)
    match schema.get("type"):
        case "integer":
            yield from (schema["minimum"] - 1, schema["maximum"] + 1)
        case "number":
            yield from (schema.get("minimum", schema.get("exclusiveMinimum")) - STEP, schema["maximum"] + STEP)
            yield schema.get("exclusiveMinimum", "x")
        case "string" if "maxLength" in schema:
            yield from ("a" * (size + 1) for size in (schema["maxLength"],) if size <= SMALL)
        case "array" if "prefixItems" not in schema:
            yield from ([one] * max(1, schema.get("minItems", 0)) for one in _candidates(schema["items"]))
            if schema["maxItems"] <= SMALL:
                yield [next(inside(schema["items"]))] * (schema["maxItems"] + 1)
        case "array":
            good = [next(inside(kind)) for kind in schema["prefixItems"]]
            yield from ([*good[:i], one, *good[i + 1 :]] for i, kind in enumerate(schema["prefixItems"]) for one in _candidates(kind))  # fmt: skip
        case "object":
            known = schema.get("properties", {})
            needed = {name: next(inside(known[name])) for name in schema.get("required", ())}
            yield from ({k: v for k, v in needed.items() if k != name} for name in needed)
            yield from (needed | {name: one} for name, kind in known.items() for one in _candidates(kind))
        case _:
            pass
