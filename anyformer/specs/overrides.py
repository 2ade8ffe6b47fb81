"""Dotted overrides applied to the written form of a spec: what `vary`, groups of layers and stacks share.

A kind replaces its node by that kind's defaults. Fields that stand beside an inlined leaf (`norm.placement`) are no
part of the kind and stay.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Any, cast

from anyformer.specs.codec import (
    MISSING,
    default_of,
    fields_of,
    inline_of,
    is_axis,
    is_node,
    is_unset,
    optional,
    unset,
    write,
)
from anyformer.specs.layer import Layer
from anyformer.specs.layers import Layers, Overrides
from anyformer.specs.paths import Path, Table, as_table, listed
from anyformer.specs.patterns import Pattern, PatternTextError, parse


def merge(node: type[Any], data: Table, changes: Mapping[str, Any]) -> Table:
    """A copy of a node's data with changes applied; None unsets a name."""
    table = copy.deepcopy(data)
    for path, value in listed(changes):
        _put(node, table, path, value)
    return table


def vary(root: type[Any], data: Table, changes: Mapping[str, Any]) -> Table:
    """As `merge` for a whole spec, where a bare path means every layer: no group or stack may still say otherwise."""
    table = copy.deepcopy(data)
    everywhere = {"depth", *fields_of(Layer)}
    for path, value in listed(changes):
        if path[0] in everywhere:
            for scope in _scopes(table):
                _spread(root, scope, path, value)
        _put(root, table, path, value)
    return table


def _scopes(table: Table) -> list[Table]:
    """The tables of overrides: of each stack, and of each group, in the spec and in its stacks."""
    stacks = _tables(table, "encoder", "decoder")
    layers = [table for scope in (table, *stacks) for table in _tables(scope, "layers")]
    return [*stacks, *(group for table in layers for group in _tables(table, *table))]


def _tables(table: Table, *names: str) -> list[Table]:
    """Those of the named values that are tables: another change of the same call may have put anything there."""
    return [cast("Table", table[name]) for name in names if isinstance(table.get(name), dict)]


def _put(node: Any, table: Table, path: Path, value: Any) -> None:
    """Set one name below a node, whose table this is."""
    name, rest = path[0], path[1:]
    if name == "kind" and not rest:
        _renew(node, table)
    hint, may_be_none = optional(_hint(node, table, name))
    if rest:
        table[name] = inner = _opened(hint, table.get(name))
        _put(_below(node, hint), inner, rest, value)
    elif value is None and (may_be_none or hint in (None, Overrides, Layers)):
        table.pop(name, None)
        if may_be_none and _comes_back(node, table, name):
            table[name] = unset(hint)
    elif isinstance(value, Mapping):
        # An empty table changes nothing that is there, and turns on what is not.
        table[name] = _opened(hint, table.get(name))
    elif isinstance(value, str) and is_node(hint) and inline_of(hint) and not (may_be_none and is_unset(hint, value)):
        _put(node, table, (name, "kind"), value)
    else:
        table[name] = write(value, whole=True)


def _spread(node: Any, table: Table, path: Path, value: Any) -> None:
    """Make overrides agree with a change that is to hold everywhere.

    What they say at or below the path goes. If they have a kind of their own, its field is set instead, where that
    kind has such a field.
    """
    name, rest = path[0], path[1:]
    if name == "kind" and not rest:
        _renew(node, table)
    elif not rest:
        if "kind" not in table or name in _outer(node):
            table.pop(name, None)
        elif name in table or _hint(node, table, name) is not None:
            _put(node, table, path, value)
    elif name in table:
        hint, may_be_none = optional(_hint(node, table, name))
        if may_be_none and is_unset(hint, table[name]):
            return
        inner = _opened(hint, table[name])
        _spread(_below(node, hint), inner, rest, value)
        if inner:
            table[name] = inner
        else:
            del table[name]


def _renew(node: Any, table: Table) -> None:
    """Forget a node's kind and all fields that belong to it."""
    for key in [key for key in table if key not in _outer(node)]:
        del table[key]


def _outer(node: Any) -> set[str]:
    """The fields of a node that are no part of its kind."""
    return set(fields_of(node)) if is_node(node) and not is_axis(node) and "kind" not in fields_of(node) else set()


def _comes_back(node: Any, table: Table, name: str) -> bool:
    """Whether a field that is left out has a value: that of its default."""
    leaf = node.named(table.get("kind", "")) if is_axis(node) else node
    fields = fields_of(leaf) if dataclasses.is_dataclass(leaf) else {}
    return name in fields and default_of(fields[name][1]) not in (None, MISSING)


def _hint(node: Any, table: Table, name: str) -> Any:
    """The type of a field, by the kind that the table names; None if there is no such field."""
    if is_axis(node):
        kind = table.get("kind")
        leaf = node.named(kind) if isinstance(kind, str) else None
        return fields_of(leaf)[name][0] if leaf is not None and name in fields_of(leaf) else None
    if node is Layers:
        return None if name == "order" else Overrides
    if not is_node(node):
        return None
    fields = fields_of(node)
    if name in fields:
        return fields[name][0]
    inner = inline_of(node)
    return _hint(fields[inner][0], table, name) if inner else None


def _below(node: Any, hint: Any) -> Any:
    """What a field's table describes: overrides of a group describe a layer, those of a stack the spec itself."""
    if hint is Overrides:
        return Layer if node is Layers else node
    return hint


def _opened(hint: Any, data: Any) -> Table:
    """A field's data as a table in which one name can be set."""
    if is_unset(hint, data):
        return {}
    if is_axis(hint) and issubclass(hint, Pattern) and isinstance(data, str):
        return _pattern_table(data)
    return as_table(data)


def _pattern_table(text: str) -> Table:
    """A single pattern as a table. A composite has no fields; reading what comes of it will say so."""
    found: list[Table] = []

    def make(leaf: type[Pattern], given: Table) -> Pattern:
        found.append({"kind": leaf.kind} | given)
        return leaf.__new__(leaf)

    try:
        pattern = parse(text, make)
    except PatternTextError:
        return {}
    return found[0] if pattern.kind else {}
