"""Layers that differ in a published config: by sliding windows, and by whatever else goes with a kind of layer."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

from anyformer.families.config_keys import Key, KeyGroup, flag, texts, whole
from anyformer.families.config_values import Values
from anyformer.families.rope_keys import ROPE_KEYS, read_ropes, write_ropes
from anyformer.specs.axes import Position
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST, pattern_of

FULL, LOCAL = "full_attention", "sliding_attention"


def each_layer(c: Values, kind: Callable[[int], str]) -> list[str]:
    """The type of every layer by its number. A depth beyond reason is left to the spec's rules to refuse."""
    return [kind(i) for i in range(min(c["num_hidden_layers"], DEEPEST))]


def arranged(names: Sequence[str], groups: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Layers of named groups as changes of a spec: one kind for all, a cycle, or a list of every layer.

    `groups` gives what the layers of each name have otherwise than the base, by dotted names.
    """
    used = sorted(set(names))
    if len(used) < 2:
        return dict(groups[used[0]]) if used else {}
    period = next(n for n in range(1, len(names) + 1) if all(names[i] == names[i % n] for i in range(len(names))))
    runs = [(name, len(list(run))) for name, run in groupby(names[:period])]
    cycle = ", ".join(name if count == 1 else f"{count} {name}" for name, count in runs)
    order = list(names) if period == len(names) else cycle
    return {"layers": {"order": order} | {name: dict(groups[name]) for name in used}}


def without_idle_rope(changes: Mapping[str, Any]) -> dict[str, Any]:
    """Changes less those of RoPE where no layer is left that has it."""
    nowhere = changes.get("position.kind") == "none"
    return {
        path: value
        for path, value in changes.items()
        if not nowhere or path == "position.kind" or not path.startswith("position.")
    }


def checked(c: Values, types: Sequence[str], window: int | None) -> list[str]:
    """Layer types as names of groups, `local` and `global`; what can't be read is noted."""
    unknown = sorted(set(types) - {FULL, LOCAL})
    if unknown:
        c.refuse("layer_types", f"{unknown[0]!r} is a kind of layer that this family does not have")
    if len(types) != len(each_layer(c, str)):
        c.problems.add("layer_types", f"lists {len(types)} layers, but num_hidden_layers is {c['num_hidden_layers']}")
    if LOCAL in types and window is None:
        c.problems.add("sliding_window", f"is missing; layer_types has {LOCAL!r}")
    return ["local" if kind == LOCAL else "global" for kind in types]


def window_of(spec: ModelSpec) -> tuple[int | None, list[str]]:
    """The width of a spec's windows, or their radius (None: no layer has one), and its layer types."""
    stack = spec.stacks[-1]
    widths = [re.fullmatch(r"(?:symmetric_)?window\((\d+)\)", str(pattern_of(stack, layer))) for layer in stack.layers]
    found = [int(match[1]) for match in widths if match]
    return (found[0] if found else None), [LOCAL if match else FULL for match in widths]


def positions_of(spec: ModelSpec) -> dict[str, Position]:
    """The position scheme of each layer type, by its first layer; of the other type if there is none."""
    layers, types = spec.stacks[-1].layers, window_of(spec)[1]
    return {kind: layers[types.index(kind) if kind in types else 0].position for kind in (FULL, LOCAL)}


@dataclass(frozen=True, kw_only=True)
class WindowKeys(KeyGroup):
    """`sliding_window`, and which layers have it: by a list of their types, and by a rule where there is none."""

    window: int | None = None
    """What an absent key means."""
    is_local: Callable[[Values, int], Any] = lambda c, i: c["sliding_window"] is not None
    """The rule, by the number of a layer."""
    listed: bool = True
    """Whether the family has the list."""
    switched: bool = False
    """Whether windows count only if `use_sliding_window` says so."""
    thetas: Mapping[str, tuple[str, float]] = field(default_factory=dict)
    """Of a family with a RoPE for each type of layer (see `read_ropes`)."""
    everywhere: Mapping[str, Any] = field(default_factory=dict)
    """What layers without a window have otherwise."""

    @property
    def keys(self) -> Mapping[str, Key]:
        own = {"sliding_window": whole(self.window, null=True)}
        own |= {"use_sliding_window": flag(False)} if self.switched else {}
        return own | ({"layer_types": texts()} if self.listed else {}) | (ROPE_KEYS if self.thetas else {})

    def read(self, c: Values) -> Mapping[str, Any]:
        window = c["sliding_window"] if not self.switched or c["use_sliding_window"] else None
        types = c["layer_types"] if self.listed else None
        ropes = read_ropes(c, self.thetas) if self.thetas else {}
        if types is None:
            idle = self.switched and window is None
            types = each_layer(c, lambda i: LOCAL if not idle and self.is_local(c, i) else FULL)
        names = checked(c, types, window)
        own = {"attention.pattern": f"window({window})"} | ropes.get(LOCAL, {})
        return ropes.get(FULL, {}) | arranged(names, {"local": own, "global": self.everywhere})

    def write(self, spec: ModelSpec) -> Mapping[str, Any]:
        window, types = window_of(spec)
        keys = [key for key, _ in self.thetas.values()]
        # One key for both types can't say two thetas.
        ropes = write_ropes(positions_of(spec), keys if len({*keys}) > 1 else []) if keys else {}
        own = {"sliding_window": window} | ({"use_sliding_window": window is not None} if self.switched else {})
        return ropes | own | ({"layer_types": types} if self.listed else {})
