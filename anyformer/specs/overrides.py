"""Overrides: which fields differ in groups of layers and in stacks, and how dotted changes apply to a written spec.

Per-layer choices are a short order such as `"5 local, 1 global"` over named groups of overrides. An order written as text
is a cycle: it repeats until the depth is filled, so it follows a change of depth. `rest` takes what the counted items
leave over (`"3 dense, rest sparse"`) and then nothing repeats. An order written as a list names every layer. A group that
is a number overrides that one layer, after its named group.

A kind replaces its node by that kind's defaults. Fields that stand beside an inlined leaf (`norm.placement`) are no
part of the kind and stay.
"""

import copy
import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from anyformer.errors import nearest
from anyformer.specs import codec
from anyformer.specs.codec import OwnForm, Path, Problems, Table, fields_of, inline_of, is_axis, is_node, join, write
from anyformer.specs.layer import Layer
from anyformer.specs.patterns import Pattern, PatternTextError, parse

ITEM = re.compile(r"(?:(?P<count>[0-9]+)\s*\*?\s*|(?P<rest>rest)\s+)?(?P<name>[A-Za-z_][\w-]*)")
NUMBER = re.compile(r"0|[1-9][0-9]*")
ORDERS = ("order", "shared")
"""Fields of [layers] that say something of each layer, so that no group can be called that."""


@dataclass(frozen=True, kw_only=True)
class Overrides(OwnForm):
    """Some fields of a node as plain data: values by name, with Overrides for tables. None is as good as not given."""

    items: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, table: "Mapping[str, Any] | Overrides") -> "Overrides":
        """From nested tables or dotted names; nodes become plain data."""
        return table if isinstance(table, Overrides) else cast("Overrides", _frozen(codec.nest(table)))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> "Overrides":
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
        return any(codec.related(path, known) for known in self.paths())


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
    shared: str | tuple[str, ...] = ""
    """Names of sets of parameters, written as an order: layers with the same name share theirs (ALBERT). Empty: each layer
    has its own.
    """
    groups: Mapping[str, Any] | tuple[tuple[str, Overrides], ...] = ()

    def __post_init__(self) -> None:
        given = self.groups.items() if isinstance(self.groups, Mapping) else self.groups
        made = tuple(sorted((str(name), Overrides.of(over)) for name, over in given))
        object.__setattr__(self, "groups", made)
        for name in ORDERS:
            order = getattr(self, name)
            object.__setattr__(self, name, order if isinstance(order, str) else tuple(order))

    @classmethod
    def read(cls, data: Any, path: str, problems: Problems) -> "Layers":
        if not isinstance(data, Mapping):
            problems.add(path, f"{data!r} is not a table with an order and groups")
            return cls()
        table = dict(cast("Table", data))
        orders = {name: _read_order(table.pop(name, ""), join(path, name), problems) for name in ORDERS}
        groups = {name: Overrides.read(over, join(path, name), problems) for name, over in table.items()}
        return cls(**orders, groups=groups)

    def written(self) -> Table:
        orders = {"order": self.order, "shared": self.shared}
        given = {name: list(order) if isinstance(order, tuple) else order for name, order in orders.items() if order}
        return given | {name: over.written() for name, over in self.named().items()}

    def named(self) -> dict[str, Overrides]:
        """The groups by name."""
        return dict(self.groups)

    def expand(self, depth: int | None, path: str, problems: Problems) -> list[str | None]:
        """The group name of each layer (None: no group). If the depth is unknown: of one round of the order."""
        groups = {name for name in self.named() if not NUMBER.fullmatch(name)}
        if not self.order:
            return [None] * (depth or 1)
        names = _names(self.order, depth, path, problems)
        for name in sorted(set(names) - groups):
            problems.add(path, f"{name!r} is not a group{nearest(name, groups)}")
        found = [name if name in groups else None for name in names]
        return found[:depth] + [None] * ((depth or 1) - len(found))

    def sharing(self, depth: int | None, path: str, problems: Problems) -> tuple[int, ...]:
        """The number of the set of parameters that each layer has, counted by first use; empty if none is shared."""
        if not self.shared or depth is None:
            return ()
        names = _names(self.shared, depth, path, problems)
        first = list(dict.fromkeys(names))
        return tuple(map(first.index, names)) if len(first) < len(names) == depth else ()


def _read_order(order: Any, path: str, problems: Problems) -> str | tuple[str, ...]:
    names: tuple[Any, ...] = tuple(cast("list[Any]", order)) if isinstance(order, list | tuple) else (order,)
    if all(isinstance(name, str) for name in names):
        return cast("str | tuple[str, ...]", order)
    problems.add(path, f"{order!r} is neither a text such as '5 local, 1 global' nor a list of names")
    return ""


def _names(order: str | tuple[str, ...], depth: int | None, path: str, problems: Problems) -> list[str]:
    """The name that an order gives to each layer, whichever way it is written."""
    if isinstance(order, str):
        return cycle(order, depth, path, problems)
    if depth is not None and len(order) != depth:
        listed = f"lists {len(order)} layers but depth is {depth}"
        problems.add(path, f"{listed}; list each layer, or write a cycle as text")
    return list(order)


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
    # What lies beyond the depth is cut off, so no item needs more than that.
    left, most = (1, 1) if depth is None else (max(depth - counted, 0), depth)
    once = [name for count, name in items for _ in range(min(left if count is None else count, most))]
    if not once:
        problems.add(path, "names no layer; give at least one item a count above 0")
    if rests or depth is None or not once:
        return once
    return [once[i % len(once)] for i in range(depth)]


def merge(node: type[Any], data: Table, changes: Mapping[str, Any]) -> Table:
    """A copy of a node's data with changes applied; None unsets a name."""
    table = copy.deepcopy(data)
    for path, value in codec.listed(changes):
        _put(node, table, path, value)
    return table


def vary(root: type[Any], data: Table, changes: Mapping[str, Any]) -> Table:
    """As `merge` for a whole spec, where a bare path means every layer: no group or stack may still say otherwise."""
    table = copy.deepcopy(data)
    everywhere = {"depth", *fields_of(Layer)}
    for path, value in codec.listed(changes):
        if path[0] in everywhere:
            # Overrides of each stack, and of each group, in the spec and in its stacks.
            stacks = _tables(table, "encoder", "decoder")
            layers = [inner for scope in (table, *stacks) for inner in _tables(scope, "layers")]
            for scope in (*stacks, *(group for inner in layers for group in _tables(inner, *inner))):
                _spread(root, scope, path, value)
        _put(root, table, path, value)
    return table


def _tables(table: Table, *names: str) -> list[Table]:
    """Those of the named values that are tables: another change of the same call may have put anything there."""
    return [cast("Table", table[name]) for name in names if isinstance(table.get(name), dict)]


def _put(node: Any, table: Table, path: Path, value: Any) -> None:
    """Set one name below a node, whose table this is."""
    name, rest = path[0], path[1:]
    if name == "kind" and not rest:
        _renew(node, table)
    hint, may_be_none = codec.optional(_hint(node, table, name))
    if rest:
        table[name] = inner = _opened(hint, table.get(name))
        _put(_below(node, hint), inner, rest, value)
    elif value is None and (may_be_none or hint in (None, Overrides, Layers)):
        table.pop(name, None)
        leaf = node.named(table.get("kind", "")) if is_axis(node) else node
        fields = fields_of(leaf) if dataclasses.is_dataclass(leaf) else {}
        # A field that is left out has its default, if that is a value.
        if may_be_none and name in fields and codec.default_of(fields[name][1]) not in (None, codec.MISSING):
            table[name] = codec.unset(hint)
    elif isinstance(value, Mapping):
        # An empty table changes nothing that is there, and turns on what is not.
        table[name] = _opened(hint, table.get(name))
    elif not isinstance(value, str) or not is_node(hint) or (may_be_none and codec.is_unset(hint, value)):
        table[name] = write(value, whole=True)
    elif inline_of(hint):
        _put(node, table, (name, "kind"), value)
    else:
        table[name] = value


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
        hint, may_be_none = codec.optional(_hint(node, table, name))
        if may_be_none and codec.is_unset(hint, table[name]):
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


def _hint(node: Any, table: Table, name: str) -> Any:
    """The type of a field, by the kind that the table names; None if there is no such field."""
    if is_axis(node):
        kind = table.get("kind")
        leaf = node.named(kind) if isinstance(kind, str) else None
        return fields_of(leaf)[name][0] if leaf is not None and name in fields_of(leaf) else None
    if node is Layers:
        return None if name in ORDERS else Overrides
    if not is_node(node):
        return None
    fields = fields_of(node)
    if name in fields:
        return fields[name][0]
    inner = inline_of(node)
    return _hint(fields[inner][0], table, name) if inner else None


def _below(node: Any, hint: Any) -> Any:
    """What a field's table describes: overrides of a group describe a layer, those of a stack the spec itself."""
    return hint if hint is not Overrides else Layer if node is Layers else node


def _opened(hint: Any, data: Any) -> Table:
    """A field's data as a table in which one name can be set."""
    if codec.is_unset(hint, data):
        return {}
    if is_axis(hint) and issubclass(hint, Pattern) and isinstance(data, str):
        return _pattern_table(data)
    return codec.as_table(data)


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
