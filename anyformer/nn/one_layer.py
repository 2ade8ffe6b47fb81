"""One layer from keywords: read, checked and completed as the only layer of a spec."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.errors import SpecError
from anyformer.kernels.constants import constant
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import Dims, ParamSpec
from anyformer.specs.codec import Problems, read
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.specs.patterns import Pattern
from anyformer.specs.stacks import Stack

CONTEXT = 2048
"""The longest sequence that a part is made for, unless it is told. Only patterns and positions that count tokens ask."""


@dataclass(frozen=True)
class OneLayer:
    """A layer with all its sizes, and the spec of a model that has no other."""

    spec: ModelSpec
    stack: Stack
    layer: Layer
    dims: Dims
    pattern: Pattern
    """Who sees whom, unless a call says otherwise."""

    def inventory(self, places: Mapping[str, str]) -> dict[str, ParamSpec]:
        """The parameters below some places of the stack, under the names that a part has for those places."""
        found: dict[str, ParamSpec] = {}
        for name, weight in weights(self.spec).items():
            for old, new in places.items():
                prefix = f"{self.stack.name}.{old}."
                if name.startswith(prefix):
                    found[f"{new}.{name.removeprefix(prefix)}"] = weight
        return found


def one_layer(
    source: str,
    *,
    width: int,
    attention: Mapping[str, Any],
    position: Any = "none",
    ffn: Any = None,
    norm: Any = None,
    block: Any = None,
    cross: bool = False,
    context: int | None = None,
) -> OneLayer:
    """The layer that these nodes of a spec describe. All problems are told at once, under the names of a spec's fields."""
    given = attention.get("pattern")
    pattern = None if given is None else as_pattern(given, source)
    # What a decoder may have is a decoder's: schemes that know earlier tokens only (T5's buckets) go by it.
    looks_back = pattern is not None and pattern.prefix() is not None and not pattern.needs_length
    heads = _given(attention) | {"pattern": pattern}
    if pattern is None or (cross and not looks_back):
        # Beside an encoder stands a decoder, which looks back; ours needn't.
        del heads["pattern"]
    spec = ModelSpec.from_data(
        {
            "topology": "encoder-decoder" if cross else "decoder" if looks_back else "encoder",
            "vocab": 1,
            "width": width,
            "depth": 1,
            "context": CONTEXT if context is None else context,
            "attention": heads,
            "position": position,
            "head": "none",
            **_given({"ffn": ffn, "norm": norm, "block": block}),
        },
        source,
    )
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    return OneLayer(spec, stack, layer, spec.dims(layer, stack), Full() if pattern is None else pattern)


_read: dict[str, Pattern] = {}
"""Patterns by their text, so that a call does not parse one that was parsed before."""


def as_pattern(given: Any, source: str) -> Pattern:
    """A pattern from its text, such as "causal & window(128)", or itself."""
    if isinstance(given, str):
        _remember(given, source)
        return _read[given]
    return _checked(given, source)


@constant
def _remember(text: str, source: str) -> bool:
    """Parse a text, also while a call is traced, where a parser can't be."""
    if text not in _read:
        _read[text] = _checked(text, source)
    return True


def _checked(given: Any, source: str) -> Pattern:
    problems = Problems()
    pattern = read(Pattern, given, "pattern", problems)
    if not problems.found:
        for name, why in pattern.problems():
            problems.add(f"pattern.{name}", why)
    if problems.found:
        raise SpecError(problems.lines, source)
    return pattern


def _given(node: Mapping[str, Any]) -> dict[str, Any]:
    """What is set of a table."""
    return {name: value for name, value in node.items() if value is not None}
