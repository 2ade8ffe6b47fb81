"""Per-layer choices: a short order such as `"5 local, 1 global"` over named groups of overrides.

An order written as text is a cycle: it repeats until the depth is filled, so it follows a change of depth.
`rest` takes what the counted items leave over (`"3 dense, rest sparse"`) and then nothing repeats. An order written
as a list names every layer. A group that is a number overrides that one layer, after its named group.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from anyformer.errors import nearest
from anyformer.specs.codec import OwnForm, Problems, Table, join, write

ITEM = re.compile(r"^(?:(?P<count>\d+)\s*\*?\s*|(?P<rest>rest)\s+)?(?P<name>[A-Za-z_][\w-]*)$")


def flatten(table: Mapping[str, Any], prefix: str = "") -> Table:
    """Nested tables as dotted paths."""
    flat: Table = {}
    for key, value in table.items():
        data = write(value)
        path = join(prefix, key)
        if isinstance(data, Mapping):
            flat |= flatten(cast("Table", data), path)
        else:
            flat[path] = tuple(cast("list[Any]", data)) if isinstance(data, list) else data
    return flat


def nest(flat: Mapping[str, Any]) -> Table:
    """Dotted paths as nested tables; paths may also lead into given tables."""
    table: Table = {}
    for path, value in flat.items():
        *parents, last = path.split(".")
        node = table
        for parent in parents:
            inner = node.setdefault(parent, {})
            # A node given as a bare kind ("rope") beside one of its fields ("rope.theta").
            node[parent] = node = {"kind": inner} if isinstance(inner, str) else inner
        if isinstance(node.get(last), dict) and isinstance(value, Mapping):
            node[last] |= nest(cast("Table", value))
        else:
            node[last] = nest(cast("Table", value)) if isinstance(value, Mapping) else value
    return table


@dataclass(frozen=True)
class Overrides(OwnForm):
    """Some fields of a node, by dotted path, as plain data."""

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any] | Overrides) -> Overrides:
        """From nested tables or dotted paths; nodes become plain data."""
        if isinstance(table, Overrides):
            return table
        return cls(tuple(sorted(flatten(nest(table)).items())))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> Overrides:
        if not isinstance(data, Mapping):
            problems.add(path, f"{data!r} is not a table of overrides")
            return cls()
        return cls.of(cast("Table", data))

    def written(self) -> Table:
        return nest({k: list(v) if isinstance(v, tuple) else v for k, v in self.items})


@dataclass(frozen=True, kw_only=True)
class Layers(OwnForm):
    """[layers]: the order of the groups, and what each group overrides."""

    order: str | tuple[str, ...] = ""
    groups: tuple[tuple[str, Overrides], ...] = field(default=())

    def __post_init__(self) -> None:
        groups = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
        made = tuple(sorted((str(name), Overrides.of(over)) for name, over in groups))
        object.__setattr__(self, "groups", made)
        if isinstance(self.order, list):
            object.__setattr__(self, "order", tuple(self.order))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> Layers:
        if not isinstance(data, Mapping):
            problems.add(path, f"{data!r} is not a table with an order and groups")
            return cls()
        table = dict(cast("Table", data))
        order = table.pop("order", "")
        if not isinstance(order, str) and not (
            isinstance(order, list | tuple) and all(isinstance(n, str) for n in order)
        ):
            problems.add(
                join(path, "order"), f"{order!r} is neither a text such as '5 local, 1 global' nor a list of names"
            )
            order = ""
        groups = {name: Overrides.read(over, join(path, name), problems) for name, over in table.items()}
        return cls(order=order, groups=cast("Any", groups))

    def written(self) -> Table:
        order = list(self.order) if isinstance(self.order, tuple) else self.order
        return ({"order": order} if order else {}) | {name: over.written() for name, over in self.groups}

    def named(self) -> dict[str, Overrides]:
        """The groups by name."""
        return dict(self.groups)

    def expand(self, depth: int, path: str, problems: Problems) -> list[str | None]:
        """The group name of each layer (None: no group)."""
        groups = {name for name, _ in self.groups if not name.isdigit()}
        for name, _ in self.groups:
            if name.isdigit() and int(name) >= depth:
                problems.add(join(path, name), f"there is no layer {name}; layers are 0 to {depth - 1}")
        if not self.order:
            for name in sorted(groups):
                problems.add(join(path, name), "is a group that no order names; set layers.order or number a layer")
            return [None] * depth
        if isinstance(self.order, tuple):
            names = list(self.order)
            if len(names) != depth:
                problems.add(
                    join(path, "order"),
                    f"lists {len(names)} layers but depth is {depth}; list each layer, or write a cycle as text",
                )
        else:
            names = cycle(self.order, depth, join(path, "order"), problems)
        for name in sorted(set(names) - groups):
            problems.add(join(path, "order"), f"{name!r} is not a group{nearest(name, groups)}")
        for name in sorted(groups - set(names)):
            problems.add(join(path, name), "is a group that layers.order does not reach; name it there or remove it")
        return [name if name in groups else None for name in names][:depth] + [None] * (depth - len(names))


def cycle(order: str, depth: int, path: str, problems: Problems) -> list[str]:
    """The names that an order written as text gives to `depth` layers."""
    items: list[tuple[int | None, str]] = []
    for part in re.split(r"[,+]", order):
        match = ITEM.match(part.strip())
        if match is None:
            problems.add(
                path,
                f"{part.strip()!r} can't be read; write items such as '5 local', 'global' or 'rest local', with commas between",
            )
            return []
        items.append((None if match["rest"] else int(match["count"] or 1), match["name"]))
    counted = sum(count or 0 for count, _ in items)
    if sum(count is None for count, _ in items) > 1:
        problems.add(path, "has more than one 'rest'; only one item can take what is left over")
        return []
    if any(count is None for count, _ in items):
        if counted > depth:
            problems.add(path, f"counts {counted} layers but depth is {depth}")
        left = max(depth - counted, 0)
        return [name for count, name in items for _ in range(left if count is None else count)]
    once = [name for count, name in items for _ in range(count or 0)]
    if not once:
        problems.add(path, "names no layer; give at least one item a count above 0")
        return []
    return [once[i % len(once)] for i in range(depth)]
