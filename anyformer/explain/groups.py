"""Layers that are alike: the distinct layers of a spec, each with its stack and its numbers."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anyformer.errors import InputError
from anyformer.specs.axes import Dims
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.number_format import ranges
from anyformer.specs.patterns import Pattern
from anyformer.specs.stacks import Stack, pattern_of

RUNS = 4
"""How many runs of layers are named before the rest is counted only."""


@dataclass(frozen=True, kw_only=True)
class Group:
    """Equal layers of one stack."""

    stack: Stack
    layer: Layer
    dims: Dims
    indices: tuple[int, ...]
    both: bool
    """Whether the model has two stacks."""

    @property
    def pattern(self) -> Pattern:
        return pattern_of(self.stack, self.layer)

    def where(self) -> str:
        """The layers in words: `layers 0-4, 6-10`."""
        return place(self.stack, self.indices, both=self.both)


def groups(spec: ModelSpec, layer: int | None = None) -> list[Group]:
    """The distinct layers in order; only those alike to `layer` if it is given."""
    found: list[Group] = []
    for stack in spec.stacks:
        members: dict[Layer, list[int]] = {}
        for i, each in enumerate(stack.layers):
            members.setdefault(each, []).append(i)
        found += [
            Group(
                stack=stack, layer=each, dims=spec.dims(each, stack), indices=tuple(indices), both=len(spec.stacks) > 1
            )
            for each, indices in members.items()
            if layer is None or layer in indices
        ]
    if not found:
        deepest = max(stack.depth for stack in spec.stacks) - 1
        raise InputError(f"there is no layer {layer}; layers are 0 to {deepest}")
    return found


def place(stack: Stack, indices: Sequence[int], *, both: bool) -> str:
    """Layers in words, with the stack if there are two."""
    prefix = f"{stack.name} " if both else ""
    return f"{prefix}{'layer' if len(indices) == 1 else 'layers'} {listed(indices)}"


def place_of(spec: ModelSpec, layers: Mapping[str, Sequence[int]]) -> str:
    """Layers of one stack or two in words; a whole stack of two by its name."""
    both = len(spec.stacks) > 1
    found = [(name, spec.stack(name), sorted(indices)) for name, indices in layers.items()]
    return ", ".join(
        name if both and len(indices) == stack.depth else place(stack, indices, both=both)
        for name, stack, indices in found
    )


def listed(indices: Sequence[int]) -> str:
    """`0-4, 6-10`, and of many runs the first ones, the last and how many layers they are."""
    texts = ranges(indices)
    if len(texts) > RUNS:
        texts = [*texts[: RUNS - 1], f"... {texts[-1]} ({len(indices)} layers)"]
    return ", ".join(texts)
