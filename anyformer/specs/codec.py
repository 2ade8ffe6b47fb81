"""Spec nodes <-> plain data (what TOML and JSON can hold), driven by the dataclasses' own type hints.

Reading collects problems instead of raising, so that one message can name them all. A node of an open axis is a
table with a `kind`, or the kind alone as a string.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal, cast, get_args, get_origin

from anyformer.errors import nearest
from anyformer.registry import OpenAxis
from anyformer.specs.patterns import Pattern, PatternTextError, parse

MISSING = dataclasses.MISSING
Table = dict[str, Any]


class OwnForm:
    """A node with a written form of its own (layers, overrides)."""

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> Any:
        """The node from plain data."""
        raise TypeError(f"{cls.__name__} defines no read()")

    def written(self) -> Any:
        """The node as plain data."""
        raise TypeError(f"{type(self).__name__} defines no written()")


class Problems:
    """Problems found so far, and the paths that can't be trusted any more because of them."""

    def __init__(self) -> None:
        self.found: list[str] = []
        self.paths: set[str] = set()

    def add(self, path: str, message: str) -> None:
        """Note one problem."""
        self.paths.add(path)
        line = f"{path}: {message}" if path else message
        if line not in self.found:
            self.found.append(line)

    def touches(self, path: str) -> bool:
        """Whether a problem was found at, above or below this path."""
        return any(
            path == known or path.startswith(f"{known}.") or known.startswith(f"{path}.") for known in self.paths
        )


@functools.cache
def fields_of(node: type[Any]) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Field name -> (type hint, field) of a dataclass."""
    hints = typing.get_type_hints(node)
    return {f.name: (hints[f.name], f) for f in dataclasses.fields(node)}


def inline_of(node: type[Any]) -> str | None:
    """The field whose keys are written in the node's own table."""
    return next((name for name, (_, f) in fields_of(node).items() if f.metadata.get("inline")), None)


def optional(hint: Any) -> tuple[Any, bool]:
    """The hint without None, and whether None was allowed."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        rest = [h for h in get_args(hint) if h is not type(None)]
        if len(rest) < len(get_args(hint)):
            return (rest[0] if len(rest) == 1 else typing.Union[tuple(rest)]), True  # noqa: UP007
    return hint, False


def is_axis(hint: Any) -> bool:
    """Whether a hint is the base of an open axis."""
    return isinstance(hint, type) and issubclass(hint, OpenAxis)


def join(path: str, name: str) -> str:
    """One step down a dotted path."""
    return f"{path}.{name}" if path else name


# --- writing -------------------------------------------------------------------------------------------------


def write(value: Any) -> Any:
    """Plain data for a node. Unset (None) and empty fields are left out, so derived sizes stay derived."""
    if isinstance(value, Pattern):
        return str(value)
    if isinstance(value, OwnForm):
        return value.written()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        node = type(value)
        table: Table = {"kind": value.kind} if isinstance(value, OpenAxis) else {}
        for name in fields_of(node):
            data = write(getattr(value, name))
            if name == inline_of(node):
                table = {**data, **table}
            elif data is not None and data != "" and data != [] and data != {}:
                table[name] = data
        return table
    if isinstance(value, tuple | list):
        return [write(v) for v in cast("tuple[Any, ...]", value)]
    return value


# --- reading -------------------------------------------------------------------------------------------------


def read(hint: Any, data: Any, path: str, problems: Problems) -> Any:
    """A value of type `hint` from plain data; MISSING, with problems noted, if it can't be read."""
    hint, may_be_none = optional(hint)
    if may_be_none and (data is None or (data is False and hint is not bool)):
        return None
    if may_be_none and data == "none" and not (is_axis(hint) and "none" in hint.kinds()):
        return None
    if may_be_none and data is True and hint is not bool and dataclasses.is_dataclass(hint):
        data = {}
    if is_axis(hint):
        return _read_axis(hint, data, path, problems)
    if isinstance(hint, type) and issubclass(hint, OwnForm):
        return data if isinstance(data, hint) else hint.read(data, path, problems)
    if dataclasses.is_dataclass(hint):
        return _read_node(cast("type[Any]", hint), data, path, problems)
    return _read_plain(hint, data, path, problems)


def _read_axis(axis: type[OpenAxis], data: Any, path: str, problems: Problems) -> Any:
    if isinstance(data, axis):
        return data
    if issubclass(axis, Pattern) and isinstance(data, str):
        try:
            return parse(data)
        except PatternTextError as error:
            problems.add(path, str(error))
            return MISSING
    if isinstance(data, str):
        data = {"kind": data}
    if not isinstance(data, Mapping) or not isinstance(data.get("kind"), str):
        problems.add(join(path, "kind"), f"is missing; pick one of {', '.join(axis.kinds())}")
        return MISSING
    leaf = axis.named(data["kind"])
    if leaf is None:
        problems.add(join(path, "kind"), f"{data['kind']!r} is unknown{nearest(data['kind'], axis.kinds())}")
        return MISSING
    return _read_node(leaf, {k: v for k, v in data.items() if k != "kind"}, path, problems)


def _read_node(node: type[Any], data: Any, path: str, problems: Problems) -> Any:
    if isinstance(data, node):
        return data
    values = read_fields(node, data, path, problems)
    return MISSING if values is None else _assemble(node, values)


def read_fields(node: type[Any], data: Any, path: str, problems: Problems) -> Table | None:
    """The fields of a node by name, MISSING where one can't be read; None if the data is no table at all."""
    inner_name = inline_of(node)
    if isinstance(data, str) and inner_name:
        data = {"kind": data}
    if not isinstance(data, Mapping):
        problems.add(path, f"{data!r} is not a table")
        return None
    table = dict(cast("Mapping[str, Any]", data))
    fields = fields_of(node)
    values: Table = {}
    if inner_name:
        own = {k: table.pop(k) for k in list(table) if k in fields and k != inner_name}
        hint, field = fields[inner_name]
        if table.keys() - {"kind"} and "kind" not in table:
            table["kind"] = field.default_factory().kind  # type: ignore[misc]
        if table:
            values[inner_name] = read(hint, table, path, problems)
        table = own
    for name in table.keys() - fields.keys():
        problems.add(join(path, name), f"is unknown{nearest(name, fields)}")
    for name, (hint, field) in fields.items():
        if name in table:
            values[name] = read(hint, table[name], join(path, name), problems)
        elif name not in values and field.default is MISSING and field.default_factory is MISSING:
            problems.add(join(path, name), "is missing; it has no default")
            values[name] = MISSING
    return values


def _assemble(node: type[Any], values: Table) -> Any:
    """The node, with defaults where a value could not be read; MISSING if a required one is."""
    good = {k: v for k, v in values.items() if v is not MISSING}
    for name, (_, field) in fields_of(node).items():
        if name not in good and field.default is MISSING and field.default_factory is MISSING:
            return MISSING
    return node(**good)


def _read_plain(hint: Any, data: Any, path: str, problems: Problems) -> Any:
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in get_args(hint):
            trial = Problems()
            value = read(option, data, path, trial)
            if not trial.found:
                return value
        problems.add(path, f"{data!r} is neither {' nor '.join(_words(h) for h in get_args(hint))}")
        return MISSING
    if origin is Literal:
        if data in get_args(hint) and isinstance(data, str):
            return data
        message = (
            f"{data!r} is unknown{nearest(data, get_args(hint))}"
            if isinstance(data, str)
            else f"{data!r} is not one of {', '.join(get_args(hint))}"
        )
        problems.add(path, message)
        return MISSING
    if origin is tuple:
        items = cast("Any", data)
        if not isinstance(items, tuple | list):
            problems.add(path, f"{data!r} is not {_words(hint)}")
            return MISSING
        read_items = [read(get_args(hint)[0], v, f"{path}[{i}]", problems) for i, v in enumerate(items)]
        return MISSING if MISSING in read_items else tuple(read_items)
    good = {
        int: isinstance(data, int) and not isinstance(data, bool),
        float: isinstance(data, int | float) and not isinstance(data, bool) and math.isfinite(data),
        bool: isinstance(data, bool),
        str: isinstance(data, str),
    }
    if hint not in good:
        raise TypeError(f"{path}: the codec has no rule for {hint!r}")
    if not good[hint]:
        problems.add(path, f"{data!r} is not {_words(hint)}")
        return MISSING
    return float(data) if hint is float else data


def _words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list of {_words(get_args(hint)[0])[2:]}s".replace("wholes", "whole numbers")
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}.get(hint, str(hint))


# --- merging -------------------------------------------------------------------------------------------------


def merge(hint: Any, base: Any, over: Any) -> Any:
    """Data with overrides applied. A new `kind` replaces the node by that kind's defaults; None unsets a key."""
    hint, _ = optional(hint)
    over = write(over)
    if is_axis(hint) and isinstance(over, str) and not issubclass(hint, Pattern):
        over = {"kind": over}
    if dataclasses.is_dataclass(hint) and isinstance(over, str) and inline_of(cast("type[Any]", hint)):
        over = {"kind": over}
    if not isinstance(over, Mapping):
        return over
    over = cast("Table", over)
    if is_axis(hint) and issubclass(hint, Pattern) and isinstance(base, str):
        base = write_table(parse_quietly(base))
    table: Table = dict(base) if isinstance(base, Mapping) else {}
    node = _node_of(hint, table, over)
    outer = fields_of(node) if node is not None else {}
    if "kind" in over and (is_axis(hint) or (node is not None and inline_of(node))):
        table = {} if is_axis(hint) else {k: v for k, v in table.items() if k in outer}
    for key, value in over.items():
        if value is None:
            table.pop(key, None)
        else:
            table[key] = merge(outer[key][0] if key in outer else Any, table.get(key), value)
    return table


def _node_of(hint: Any, table: Table, over: Table) -> type[Any] | None:
    if is_axis(hint):
        kind = over.get("kind", table.get("kind"))
        return hint.named(kind) if isinstance(kind, str) else None
    return hint if dataclasses.is_dataclass(hint) else None


def parse_quietly(text: str) -> Pattern | None:
    """A pattern, or None if the text is not one: reading it will say why."""
    try:
        return parse(text)
    except PatternTextError:
        return None


def write_table(pattern: Pattern | None) -> Table:
    """A single pattern leaf as a table, so that one of its fields can be set by its dotted name."""
    if pattern is None or not pattern.kind:
        return {}
    return {"kind": pattern.kind} | {name: getattr(pattern, name) for name in fields_of(type(pattern))}
