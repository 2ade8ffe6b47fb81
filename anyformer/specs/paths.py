"""Dotted names: how nested tables and paths such as `attention.qk_norm.scope` stand for each other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

Table = dict[str, Any]
Path = tuple[str, ...]


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
