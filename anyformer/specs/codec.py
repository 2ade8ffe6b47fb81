"""Spec nodes <-> plain data (what TOML and JSON can hold), driven by the dataclasses' own type hints.

Reading collects problems instead of raising, so that one message can name them all. A node of an open axis is a
table with a `kind`, or the kind alone as a string.
"""

import dataclasses
import functools
import itertools
import math
import types
import typing
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Literal, TypeGuard, cast, get_args, get_origin

from anyformer.errors import nearest
from anyformer.registry import OpenAxis
from anyformer.specs.patterns import Pattern, PatternTextError, parse

Table = dict[str, Any]
Path = tuple[str, ...]
"""A dotted name such as `attention.qk_norm.scope`, step by step."""
MISSING = dataclasses.MISSING
LARGEST = 2**53
"""No whole number of a spec comes near it."""
STAND_INS: dict[Any, Any] = {int: 1, float: 1.0, str: "", bool: False}


def join(path: str, name: str) -> str:
    """One step down a dotted path; either side may be empty."""
    return f"{path}.{name}" if path and name else path or name


def related(a: str, b: str) -> bool:
    """Whether one path is the other, or leads to it."""
    return a == b or a.startswith(f"{b}.") or b.startswith(f"{a}.")


def listed(changes: Mapping[str, Any]) -> list[tuple[Path, Any]]:
    """Changes one by one, in the order in which they apply: outer before inner, a kind before its fields.

    A table stands for its keys; an empty one for itself.
    """

    def walk(table: Mapping[str, Any], above: Path) -> list[tuple[Path, Any]]:
        found: list[tuple[Path, Any]] = []
        for key, value in table.items():
            path = (*above, *str(key).split("."))
            inner = cast("Table", value) if isinstance(value, Mapping) else {}
            found += walk(inner, path) if inner else [(path, cast("Any", value))]
        return found

    return sorted(walk(changes, ()), key=lambda change: (len(change[0]), change[0][-1] != "kind"))


def nest(changes: Mapping[str, Any]) -> Table:
    """Nested tables from dotted names; a node given by its kind alone ("rope") may have fields beside it."""
    table: Table = {}
    for path, value in listed(changes):
        *parents, last = path
        node = table
        for parent in parents:
            node[parent] = node = as_table(node.get(parent))
        node[last] = {} if isinstance(value, Mapping) else value
    return table


def as_table(data: Any) -> Table:
    """A node's table: a copy of its own, one with the kind that was given alone, or an empty one."""
    if isinstance(data, Mapping):
        return dict(cast("Table", data))
    return {"kind": data} if isinstance(data, str) else {}


class OwnForm:
    """A node with a written form of its own (layers, overrides)."""

    @classmethod
    def read(cls, data: Any, path: str, problems: "Problems") -> Any:
        """The node from plain data."""
        raise TypeError(f"{cls.__name__} defines no read()")

    def written(self) -> Any:
        """The node as plain data."""
        raise TypeError(f"{type(self).__name__} defines no written()")


class Problems:
    """Problems found so far, as (path, message)."""

    def __init__(self, found: Iterable[tuple[str, str]] = ()) -> None:
        self.found = list(found)

    def add(self, path: str, message: str) -> Any:
        """Note one problem. Returns MISSING: what a reader then has."""
        if (path, message) not in self.found:
            self.found.append((path, message))
        return MISSING

    def touches(self, *paths: str) -> bool:
        """Whether a problem was found at, above or below one of these paths."""
        return any(related(path, known) for path in paths for known, _ in self.found)

    @property
    def lines(self) -> list[str]:
        """The problems as text."""
        return [f"{path}: {message}" if path else message for path, message in self.found]


@functools.cache
def fields_of(node: type[Any]) -> dict[str, tuple[Any, dataclasses.Field[Any]]]:
    """Field name -> (type hint, field) of a dataclass."""
    hints = typing.get_type_hints(node)
    return {f.name: (hints[f.name], f) for f in dataclasses.fields(node)}


@functools.cache
def inline_of(node: type[Any]) -> str | None:
    """The field whose keys are written in the node's own table."""
    return next((name for name, (_, f) in fields_of(node).items() if f.metadata.get("inline")), None)


@functools.cache
def optional(hint: Any) -> tuple[Any, bool]:
    """The hint without None, and whether None was allowed."""
    if get_origin(hint) in (typing.Union, types.UnionType):
        rest = [h for h in get_args(hint) if h is not type(None)]
        if len(rest) < len(get_args(hint)):
            return functools.reduce(lambda a, b: a | b, rest), True
    return hint, False


def is_axis(hint: Any) -> TypeGuard[type[OpenAxis]]:
    """Whether a hint is the base of an open axis."""
    return isinstance(hint, type) and issubclass(hint, OpenAxis)


def is_node(hint: Any) -> TypeGuard[type[Any]]:
    """Whether a hint is a dataclass."""
    return isinstance(hint, type) and dataclasses.is_dataclass(hint)


def required(field: dataclasses.Field[Any]) -> bool:
    """Whether a field has no default."""
    return field.default is MISSING and field.default_factory is MISSING


def default_of(field: dataclasses.Field[Any]) -> Any:
    """A field's default value; MISSING if it has none."""
    return field.default if field.default_factory is MISSING else field.default_factory()


def write(value: Any, *, whole: bool = False) -> Any:
    """Plain data for a node. Unset (None) fields are left out, so derived sizes stay derived.

    Among overrides a name that is left out means "as it was": there `whole` says of each unset field that it is unset.
    """
    if isinstance(value, Pattern):
        return str(value)
    if isinstance(value, OwnForm):
        return value.written()
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        node = type(value)
        table: Table = {"kind": value.kind} if isinstance(value, OpenAxis) else {}
        for name, (hint, field) in fields_of(node).items():
            data = write(getattr(value, name), whole=whole)
            if name == inline_of(node):
                table = {**data, **table}
            elif data is None:
                # Where the default is a value, leaving the name out would bring that back.
                if whole or default_of(field) not in (None, MISSING):
                    table[name] = unset(hint)
            elif data not in ("", [], {}) or data != write(default_of(field)):
                table[name] = data
        return table
    if isinstance(value, tuple | list):
        return [write(v, whole=whole) for v in cast("tuple[Any, ...]", value)]
    return value


def read(hint: Any, data: Any, path: str, problems: Problems) -> Any:
    """A value of type `hint` from plain data; MISSING, with problems noted, if it can't be read."""
    hint, may_be_none = optional(hint)
    if may_be_none and is_unset(hint, data):
        return None
    if may_be_none and data is True and is_node(hint):
        data = {}
    if is_axis(hint):
        return _read_axis(hint, data, path, problems)
    if isinstance(hint, type) and issubclass(hint, OwnForm):
        return data if isinstance(data, hint) else hint.read(data, path, problems)
    if is_node(hint):
        return data if isinstance(data, hint) else _read_node(hint, data, path, problems)
    return _read_plain(hint, data, path, problems)


def unset(hint: Any) -> Any:
    """How it is written that an optional field of this type has no value."""
    return "none" if is_unset(optional(hint)[0], "none") else False


def is_unset(hint: Any, data: Any) -> bool:
    """Whether data means "not there" for an optional field: None, false, or "none" unless that is a kind."""
    if data == "none":
        return hint is not str and "none" not in (hint.kinds() if is_axis(hint) else get_args(hint))
    return data is None or (data is False and hint is not bool)


def _read_axis(axis: type[OpenAxis], data: Any, path: str, problems: Problems, beside: Iterable[str] = ()) -> Any:
    if isinstance(data, axis):
        return data
    if isinstance(data, str):
        if issubclass(axis, Pattern):
            return _read_pattern(data, path, problems)
        data = {"kind": data}
    if not isinstance(data, Mapping):
        wanted = f"neither a kind nor a table with one; pick one of {', '.join(axis.kinds())}"
        return problems.add(path, f"{data!r} is {wanted}")
    table = cast("Mapping[str, Any]", data)
    kind = table.get("kind")
    if not isinstance(kind, str):
        return problems.add(join(path, "kind"), f"is missing; pick one of {', '.join(axis.kinds())}")
    leaf, rest = axis.named(kind), {name: value for name, value in table.items() if name != "kind"}
    if leaf is not None:
        return _read_node(leaf, rest, path, problems, beside)
    problems.add(join(path, "kind"), f"{kind!r} is unknown{nearest(kind, axis.kinds())}")
    # What else is wrong beside it: names that no kind has, values that none of them can read.
    leaves = _leaves(axis)
    for name, value in rest.items():
        trials = [(Problems(), fields[name][0]) for fields in leaves if name in fields]
        for trial, hint in trials:
            read(hint, value, join(path, name), trial)
        if not trials:
            problems.add(join(path, name), f"is unknown{nearest(name, {*itertools.chain(*leaves), *beside})}")
        elif all(trial.found for trial, _ in trials):
            for found in trials[0][0].found:
                problems.add(*found)
    return MISSING


def _leaves(axis: type[OpenAxis]) -> list[dict[str, tuple[Any, dataclasses.Field[Any]]]]:
    """The fields of every kind."""
    return [fields_of(leaf) for kind in axis.kinds() if (leaf := axis.named(kind)) is not None]


def _read_pattern(text: str, path: str, problems: Problems) -> Any:
    def make(leaf: type[Pattern], given: Table) -> Pattern:
        inner = Problems()
        pattern = _read_node(leaf, given, "", inner)
        if inner.found:
            raise PatternTextError(f"{leaf.kind} in {text!r}: " + "; ".join(f"{p} {m}" for p, m in inner.found))
        return pattern

    try:
        return parse(text, make)
    except PatternTextError as error:
        return problems.add(path, str(error))


def _read_node(node: type[Any], data: Any, path: str, problems: Problems, beside: Iterable[str] = ()) -> Any:
    values = read_fields(node, data, path, problems, beside)
    return MISSING if values is None else node(**draft(node, values))


def read_fields(node: type[Any], data: Any, path: str, problems: Problems, beside: Iterable[str] = ()) -> Table | None:
    """The fields of a node by name, MISSING where one can't be read; None if the data is no table at all.

    `beside` names the fields that share the table but belong to another node, for a hint at the right spelling.
    """
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
        if table:
            leaf_table = {"kind": default_of(field).kind, **table}
            values[inner_name] = _read_axis(hint, leaf_table, path, problems, beside=fields.keys() - {inner_name})
        table = own
    for name in table:
        if name not in fields:
            # The field one step down that is called so, or else the nearest one here.
            below = [f"{field}.{name}" for field, (hint, _) in fields.items() if name in _names_below(hint)]
            near = nearest(name, {*fields, *beside} - {inner_name or ""})
            right = f"; did you mean {' or '.join(map(repr, below))}?" if below else near
            problems.add(join(path, name), f"is unknown{right}")
    for name, (hint, field) in fields.items():
        if name in table:
            values[name] = read(hint, table[name], join(path, name), problems)
        elif name not in values and required(field):
            problems.add(join(path, name), "is missing; it has no default")
            values[name] = MISSING
    return values


def _names_below(hint: Any) -> set[str]:
    hint, _ = optional(hint)
    if is_axis(hint):
        return {*itertools.chain(*_leaves(hint))}
    if not is_node(hint) or issubclass(hint, OwnForm):
        return set()
    inner = inline_of(hint)
    return set(fields_of(hint)) | (_names_below(fields_of(hint)[inner][0]) if inner else set())


def draft(node: type[Any], values: Table) -> Table:
    """All fields of a node, with a default or a stand-in where a value could not be read.

    The rules can then look at the rest; what they would say about a stand-in is silenced by the problem noted there.
    """
    made: Table = {}
    for name, (hint, field) in fields_of(node).items():
        value = values.get(name, MISSING)
        value = default_of(field) if value is MISSING else value
        made[name] = _stand_in(hint) if value is MISSING else value
    return made


def _stand_in(hint: Any) -> Any:
    hint, may_be_none = optional(hint)
    if may_be_none or get_origin(hint) is tuple:
        return None if may_be_none else ()
    if get_origin(hint) is Literal:
        return get_args(hint)[0]
    if get_origin(hint) in (typing.Union, types.UnionType):
        return _stand_in(get_args(hint)[0])
    node = hint.named(hint.kinds()[0]) if is_axis(hint) else hint
    return node(**draft(node, {})) if is_node(node) else STAND_INS[hint]


def _read_plain(hint: Any, data: Any, path: str, problems: Problems) -> Any:
    origin = get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        for option in get_args(hint):
            trial = Problems()
            value = read(option, data, path, trial)
            if not trial.found:
                return value
        return problems.add(path, f"{data!r} is neither {' nor '.join(map(_words, get_args(hint)))}")
    if origin is Literal:
        if isinstance(data, str) and data in get_args(hint):
            return data
        unknown = f"is unknown{nearest(data, get_args(hint))}" if isinstance(data, str) else None
        return problems.add(path, f"{data!r} {unknown or 'is not one of ' + ', '.join(get_args(hint))}")
    if origin is tuple:
        if not isinstance(data, tuple | list):
            return problems.add(path, f"{data!r} is not {_words(hint)}")
        values = cast("list[Any]", data)
        items = [read(get_args(hint)[0], v, f"{path}[{i}]", problems) for i, v in enumerate(values)]
        return MISSING if MISSING in items else tuple(items)
    if hint not in STAND_INS:
        raise TypeError(f"{path}: the codec has no rule for {hint!r}")
    if not _fits(hint, data):
        return problems.add(path, f"{data!r} is not {_words(hint)}")
    if hint is int and abs(data) > LARGEST:
        # Python refuses to spell a number of many thousand digits.
        too_large = f"a number of {data.bit_length()} bits is beyond all sizes; at most {LARGEST} is read"
        return problems.add(path, too_large)
    return float(data) if hint is float else data


def _fits(hint: Any, data: Any) -> bool:
    if hint is bool or isinstance(data, bool):
        return hint is bool and isinstance(data, bool)
    if hint is float:
        # A whole number may be too large to be a float at all.
        return abs(data) < 2**1023 if isinstance(data, int) else isinstance(data, float) and math.isfinite(data)
    return isinstance(data, hint)


def _words(hint: Any) -> str:
    if get_origin(hint) is tuple:
        return f"a list, each item {_words(get_args(hint)[0])}"
    if is_node(hint):
        return "a table"
    return {int: "a whole number", float: "a finite number", bool: "true or false", str: "a text"}.get(hint, str(hint))


def flatten(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Plain data by dotted names, so that a difference has a name."""
    inside: Any = value
    if isinstance(value, Mapping) and inside:
        for name, inner in inside.items():
            yield from flatten(inner, f"{path}.{name}" if path else str(name))
    elif isinstance(value, list | tuple) and any(isinstance(inner, Mapping) for inner in inside):
        for i, inner in enumerate(inside):
            yield from flatten(inner, f"{path}[{i}]")
    else:
        yield path, list(inside) if isinstance(value, tuple) else value
