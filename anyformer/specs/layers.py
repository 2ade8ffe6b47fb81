"""Per-layer choices: a short order such as `"5 local, 1 global"` over named groups of overrides.

An order written as text is a cycle: it repeats until the depth is filled, so it follows a change of depth.
`rest` takes what the counted items leave over (`"3 dense, rest sparse"`) and then nothing repeats. An order written
as a list names every layer. A group that is a number overrides that one layer, after its named group.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, cast

from anyformer.errors import nearest
from anyformer.specs.codec import OwnForm, Problems, write
from anyformer.specs.paths import Table, join, nest, related

ITEM = re.compile(r"(?:(?P<count>[0-9]+)\s*\*?\s*|(?P<rest>rest)\s+)?(?P<name>[A-Za-z_][\w-]*)")
NUMBER = re.compile(r"0|[1-9][0-9]*")


@dataclass(frozen=True, kw_only=True)
class Overrides(OwnForm):
    """Some fields of a node as plain data: values by name, with Overrides for tables. None is as good as not given."""

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, table: Mapping[str, Any] | Overrides) -> Overrides:
        """From nested tables or dotted names; nodes become plain data."""
        return table if isinstance(table, Overrides) else cast("Overrides", _frozen(nest(table)))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> Overrides:
        if not isinstance(data, Mapping):
            problems.add(path, f"{data!r} is not a table of overrides")
            return cls()
        return cls.of(cast("Table", data))

    def written(self) -> Table:
        return {name: _thawed(value) for name, value in self.items}

    def paths(self) -> list[str]:
        """The dotted names of all that is set."""
        inner = [(name, value.paths() if isinstance(value, Overrides) else []) for name, value in self.items]
        return [join(name, path) for name, paths in inner for path in paths or [""]]

    def touch(self, path: str) -> bool:
        """Whether something at, above or below this path is set."""
        return any(related(path, known) for known in self.paths())


def _frozen(value: Any) -> Any:
    data = write(value, whole=True)
    if isinstance(data, Mapping):
        table = cast("Table", data)
        return Overrides(items=tuple((name, _frozen(table[name])) for name in sorted(table) if table[name] is not None))
    return tuple(map(_frozen, cast("list[Any]", data))) if isinstance(data, list) else data


def _thawed(value: Any) -> Any:
    if isinstance(value, Overrides):
        return value.written()
    return list(map(_thawed, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else value


@dataclass(frozen=True, kw_only=True)
class Layers(OwnForm):
    """[layers]: the order of the groups, and what each group overrides (given by name, kept as sorted pairs)."""

    order: str | tuple[str, ...] = ""
    groups: Mapping[str, Any] | tuple[tuple[str, Overrides], ...] = ()

    def __post_init__(self) -> None:
        given = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
        made = tuple(sorted((str(name), Overrides.of(over)) for name, over in given))
        object.__setattr__(self, "groups", made)
        object.__setattr__(self, "order", self.order if isinstance(self.order, str) else tuple(self.order))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> Layers:
        if not isinstance(data, Mapping):
            problems.add(path, f"{data!r} is not a table with an order and groups")
            return cls()
        table = dict(cast("Table", data))
        given: Any = table.pop("order", "")
        names: list[Any] = list(cast("list[Any]", given)) if isinstance(given, list | tuple) else [given]
        order: Any = given if isinstance(given, str) else tuple(names)
        if not all(isinstance(name, str) for name in names):
            wanted = "neither a text such as '5 local, 1 global' nor a list of names"
            problems.add(join(path, "order"), f"{given!r} is {wanted}")
            order = ""
        groups = {name: Overrides.read(over, join(path, name), problems) for name, over in table.items()}
        return cls(order=order, groups=groups)

    def written(self) -> Table:
        order = list(self.order) if isinstance(self.order, tuple) else self.order
        return ({"order": order} if order else {}) | {name: over.written() for name, over in self.named().items()}

    def named(self) -> dict[str, Overrides]:
        """The groups by name."""
        return dict(self.groups)

    def expand(self, depth: int | None, path: str, problems: Problems) -> list[str | None]:
        """The group name of each layer (None: no group). If the depth is unknown: of one round of the order."""
        groups = {name for name in self.named() if not NUMBER.fullmatch(name)}
        if not self.order:
            return [None] * (depth or 1)
        if isinstance(self.order, str):
            names = cycle(self.order, depth, path, problems)
        else:
            names = list(self.order)
            if depth is not None and len(names) != depth:
                listed = f"lists {len(names)} layers but depth is {depth}"
                problems.add(path, f"{listed}; list each layer, or write a cycle as text")
        for name in sorted(set(names) - groups):
            problems.add(path, f"{name!r} is not a group{nearest(name, groups)}")
        found = [name if name in groups else None for name in names]
        return found[:depth] + [None] * ((depth or 1) - len(found))


def runs(indices: Iterable[int]) -> list[tuple[int, int]]:
    """First and last of each run of consecutive layers."""
    found: list[tuple[int, int]] = []
    for i in sorted(indices):
        if found and found[-1][1] == i - 1:
            found[-1] = found[-1][0], i
        else:
            found.append((i, i))
    return found


def cycle(order: str, depth: int | None, path: str, problems: Problems) -> list[str]:
    """The names that an order written as text gives to `depth` layers, or in one round if the depth is unknown."""
    items: list[tuple[int | None, str]] = []
    for part in re.split(r"[,+]", order):
        match = ITEM.fullmatch(part.strip())
        if match is None:
            example = "write items such as '5 local', 'global' or 'rest local', with commas between"
            problems.add(path, f"{part.strip()!r} can't be read; {example}")
            return []
        items.append((None if match["rest"] else int(match["count"] or 1), match["name"]))
    counted = sum(count or 0 for count, _ in items)
    rests = sum(count is None for count, _ in items)
    if rests > 1:
        problems.add(path, "has more than one 'rest'; only one item can take what is left over")
        return []
    if rests and depth is not None and counted > depth:
        problems.add(path, f"counts {counted} layers but depth is {depth}")
    left = 1 if depth is None else max(depth - counted, 0)
    # What lies beyond the depth is cut off, so no item needs more than that.
    most = 1 if depth is None else depth
    once = [name for count, name in items for _ in range(min(left if count is None else count, most))]
    if not once:
        problems.add(path, "names no layer; give at least one item a count above 0")
    if rests or depth is None or not once:
        return once
    return [once[i % len(once)] for i in range(depth)]
