"""Sliding windows in a published config: one width for all layers, or a list of layer types."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

from anyformer.families.keys import Values
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import DEEPEST, pattern_of

FULL, LOCAL = "full_attention", "sliding_attention"


def each_layer(c: Values, kind: Callable[[int], str]) -> list[str]:
    """The type of every layer by its number. A depth beyond reason is left to the spec's rules to refuse."""
    return [kind(i) for i in range(min(c["num_hidden_layers"], DEEPEST))]


def read_windows(c: Values, types: Sequence[str], window: int | None) -> dict[str, Any]:
    """Layer types as changes of a spec: one pattern for all, a cycle of two, or a list of every layer."""
    unknown = sorted(set(types) - {FULL, LOCAL})
    if unknown:
        c.refuse("layer_types", f"{unknown[0]!r} is a kind of layer that this family does not have")
    if LOCAL in types and window is None:
        c.problems.add("sliding_window", f"is missing; layer_types has {LOCAL!r}")
    if LOCAL not in types:
        return {}
    if FULL not in types:
        return {"attention.pattern": f"window({window})"}
    names = ["local" if kind == LOCAL else "global" for kind in types]
    pair = [names[i % 2] for i in range(len(names))]
    order: Any = f"{names[0]}, {names[1]}" if names == pair and names[0] != names[1] else names
    return {"layers": {"order": order, "local": {"attention": {"pattern": f"window({window})"}}, "global": {}}}


def window_of(spec: ModelSpec) -> tuple[int | None, list[str]]:
    """The width of a spec's windows (None: no layer has one) and its layer types."""
    stack = spec.stacks[-1]
    widths = [re.fullmatch(r"window\((\d+)\)", str(pattern_of(stack, layer))) for layer in stack.layers]
    found = [int(match[1]) for match in widths if match]
    return (found[0] if found else None), [LOCAL if match else FULL for match in widths]
