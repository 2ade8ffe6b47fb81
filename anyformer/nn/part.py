"""The base of parts that stand alone: one layer from keywords, around a module that models are made of, freshly drawn.

The keywords are read, checked and completed as those of the only layer of a spec.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from anyformer.errors import InputError, SpecError
from anyformer.kernels.trace_constants import constant
from anyformer.model.build import allocate, check_inventory
from anyformer.parts.linear import drawn
from anyformer.parts.patterns.full import Full
from anyformer.specs.axes import Dims, Leaf, ParamSpec
from anyformer.specs.codec import Problems, read
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights
from anyformer.specs.patterns import Pattern
from anyformer.specs.stacks import Stack

Node = str | Mapping[str, Any]
"""A kind, or a table with a kind and its options, as in a spec."""
CONTEXT = 2048
"""The longest sequence that a part is made for by default. Only patterns and positions that count tokens read it."""


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
        prefixes = {f"{self.stack.name}.{old}.": f"{new}." for old, new in places.items()}
        return {
            new + name.removeprefix(old): weight
            for name, weight in weights(self.spec).items()
            for old, new in prefixes.items()
            if name.startswith(old)
        }


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
    refused: Sequence[str] = (),
) -> OneLayer:
    """The layer that these nodes of a spec describe. All problems are told at once, under the names of a spec's fields,
    with those that the caller `refused` for reasons of its own.
    """
    given = attention.get("pattern")
    pattern = Full() if given is None else read(Pattern, given, "pattern", Problems())
    # One that is wrong stays as it was given: the spec says why, together with all else.
    sound = isinstance(pattern, Pattern) and not list(pattern.problems())
    # What a decoder may have is a decoder's: schemes that know earlier tokens only (T5's buckets) go by it.
    looks_back = sound and pattern.prefix() is not None and not pattern.needs_length
    # Beside an encoder stands a decoder, which looks back; ours needn't.
    left_out = ("pattern",) if cross and sound and not looks_back else ()
    heads = {name: value for name, value in attention.items() if value is not None and name not in left_out}
    nodes = {"attention": heads, "position": position, "ffn": ffn, "norm": norm, "block": block}
    sizes = {"vocab": 1, "width": width, "depth": 1, "context": CONTEXT if context is None else context}
    topology = "encoder-decoder" if cross else "decoder" if looks_back else "encoder"
    data = {"topology": topology, "head": "none", **sizes, **nodes}
    try:
        spec = ModelSpec.from_data({name: value for name, value in data.items() if value is not None}, source)
    except SpecError as error:
        raise SpecError([*refused, *error.problems], source) from None
    if refused:
        raise InputError("\n  ".join([f"{source}: {refused[0]}", *refused[1:]]))
    stack = spec.stacks[-1]
    layer = stack.layers[0]
    return OneLayer(spec, stack, layer, spec.dims(layer, stack), pattern)


_patterns: dict[str, Pattern] = {}
"""Patterns by their text, so that a call does not parse one that was parsed before."""


def as_pattern(given: Any, source: str) -> Pattern:
    """A pattern from its text, such as "causal & window(128)", or itself."""
    if not isinstance(given, str):
        return read_leaf(Pattern, given, "pattern", source)
    _parse(given, source)
    return _patterns[given]


@constant
def _parse(text: str, source: str) -> bool:
    """Parse a text, also while a call is traced, where a parser can't be."""
    if text not in _patterns:
        _patterns[text] = read_leaf(Pattern, text, "pattern", source)
    return True


def read_leaf(axis: type[Leaf], data: Any, path: str, source: str) -> Any:
    """A leaf from its written form, checked on its own."""
    problems = Problems()
    leaf = read(axis, data, path, problems)
    for name, why in () if problems.found else leaf.problems():
        problems.add(f"{path}.{name}", why)
    if problems.found:
        raise SpecError(problems.lines, source)
    return leaf


class Part(nn.Module):
    """A part that knows the role of each of its parameters. `body` is the module that models are made of."""

    def __init__(self, layer: OneLayer, places: Mapping[str, str]) -> None:
        super().__init__()
        self.layer = layer
        self._places = dict(places)

    def inventory(self) -> dict[str, ParamSpec]:
        """What each parameter is for, by name."""
        return self.layer.inventory(self._places)

    def start(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Give a part that was made on the meta device its memory and its first weights."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InputError(f"dtype: {dtype} can't hold weights; pick a floating-point one")
        self.to(dtype)
        check_inventory(self, self.inventory())
        device = torch.get_default_device() if device is None else torch.device(device)
        if device.type != "meta":
            allocate(self, device)
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fresh weights: matrices of variance 2/(d_in + d_out) and tables of variance 1, cut at 3 sigma; gains of 1."""
        inventory, dims, rule = self.inventory(), self.layer.dims, self.layer.spec.init.rule
        sizes = {"width": dims.width, "depth": dims.depth, "heads": dims.heads, "head_dim": dims.head_dim}
        for name, parameter in self.named_parameters():
            weight = inventory[name]
            if weight.fill is not None:
                parameter.fill_(weight.fill)
            elif not parameter.is_meta:
                parameter.copy_(drawn(rule(weight, tied=False, **sizes), weight.shape, parameter.device))
