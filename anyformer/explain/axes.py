"""The axes of a spec: for each of them what it is set to, in which layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from anyformer.explain import closed_axes
from anyformer.explain.closed_axes import Choice
from anyformer.explain.groups import Group, groups, place_of
from anyformer.specs.axes import Dims
from anyformer.specs.layer import Layer
from anyformer.specs.model import ModelSpec
from anyformer.specs.stacks import Stack

OfModel = Callable[[ModelSpec], Choice]
OfStack = Callable[[ModelSpec, Stack], Choice]
OfLayer = Callable[[ModelSpec, Stack, Layer, Dims], Choice]

MODEL: dict[str, OfModel] = {
    "topology": closed_axes.topology,
    "vocabulary": closed_axes.vocab,
    "width": closed_axes.width,
    "context": closed_axes.context,
    "embedding": closed_axes.embedding,
    "head": closed_axes.head,
    "loss": closed_axes.loss,
    "init": closed_axes.init,
    "special ids": closed_axes.special_ids,
}
STACKS: dict[str, OfStack] = {"depth": closed_axes.depth, "stack norms": closed_axes.stack_norms}
LAYERS: dict[str, OfLayer] = {
    "position": closed_axes.position,
    "heads": closed_axes.heads,
    "projections": closed_axes.projections,
    "pattern": closed_axes.pattern,
    "mixer": closed_axes.mixer,
    "scale": closed_axes.scale,
    "temperature": closed_axes.temperature,
    "qk-norm": closed_axes.qk_norm,
    "v-norm": closed_axes.v_norm,
    "softcap": closed_axes.softcap,
    "cross-attention": closed_axes.cross,
    "feed-forward": closed_axes.feed_forward,
    "norm": closed_axes.norm,
    "placement": closed_axes.placement,
    "wiring": closed_axes.wiring,
    "dropout": closed_axes.dropout,
}
ORDER = (
    "topology", "depth", "width", "vocabulary", "context", "embedding", "position", "heads", "projections", "pattern",
    "mixer", "scale", "temperature", "qk-norm", "v-norm", "softcap", "cross-attention", "feed-forward", "norm",
    "placement", "wiring", "stack norms", "dropout", "head", "loss", "init", "special ids",
)  # fmt: skip
"""From the whole to its parts, along the forward pass."""


@dataclass(frozen=True, kw_only=True)
class Placed:
    """A choice, and the layers that it holds in."""

    choice: Choice
    layers: Mapping[str, tuple[int, ...]]
    """Stack -> layers; empty if it is no matter of layers."""
    where: str
    """The same in words; empty if it holds everywhere."""


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a spec."""

    name: str
    placed: tuple[Placed, ...]
    by_stack: tuple[tuple[str, tuple[Choice, ...]], ...]
    """Stack -> the choice in each of its layers; one choice if it is no matter of layers."""

    @property
    def value(self) -> str:
        """All of it on one line."""
        return "; ".join(
            f"{each.where}: {each.choice.value}" if each.where else each.choice.value for each in self.placed
        )

    def same(self, other: Axis) -> bool:
        """Whether both mean the same. A deeper model that goes on in the same cycle does not differ by that."""
        ours, theirs = dict(self.by_stack), dict(other.by_stack)
        # If one has a stack more, the topology says so, and what both have is compared.
        shared = [(ours[name], theirs[name]) for name in ours if name in theirs]
        pairs = shared or [(self.by_stack[-1][1], other.by_stack[-1][1])]
        return all(a[: len(b)] == b[: len(a)] for a, b in pairs)


def axes_of(spec: ModelSpec, layer: int | None = None) -> tuple[Axis, ...]:
    """Every axis in order; of the layers only those alike to `layer` if it is given."""
    alike = groups(spec, layer)
    made = {name: _of_model(name, choose(spec)) for name, choose in MODEL.items()}
    made |= {name: _of_stacks(name, spec, choose) for name, choose in STACKS.items()}
    made |= {name: _of_layers(name, spec, choose, alike) for name, choose in LAYERS.items()}
    return tuple(made[name] for name in ORDER)


def _of_model(name: str, choice: Choice) -> Axis:
    placed = Placed(choice=choice, layers={}, where="")
    return Axis(name=name, placed=(placed,), by_stack=(("", (choice,)),))


def _of_stacks(name: str, spec: ModelSpec, choose: OfStack) -> Axis:
    found = {stack.name: choose(spec, stack) for stack in spec.stacks}
    alike = len({_Shown(choice) for choice in found.values()}) == 1
    placed = [Placed(choice=c, layers={}, where="" if alike else s) for s, c in found.items()]
    by_stack = tuple((s, (c,)) for s, c in found.items())
    return Axis(name=name, placed=tuple(placed[:1] if alike else placed), by_stack=by_stack)


def _of_layers(name: str, spec: ModelSpec, choose: OfLayer, alike: list[Group]) -> Axis:
    members: dict[_Shown, dict[str, list[int]]] = {}
    equations: dict[_Shown, dict[str, str]] = {}
    by_stack: dict[str, dict[int, Choice]] = {}
    for group in alike:
        choice = choose(spec, group.stack, group.layer, group.dims)
        shown, stack = _Shown(choice), group.stack.name
        members.setdefault(shown, {}).setdefault(stack, []).extend(group.indices)
        equations.setdefault(shown, {}).setdefault(stack, choice.equation)
        by_stack.setdefault(stack, {}).update(dict.fromkeys(group.indices, choice))
    placed = [
        Placed(
            choice=replace(shown.choice, equation=_equation(equations[shown])),
            layers={stack: tuple(sorted(indices)) for stack, indices in stacks.items()},
            where="" if len(members) == 1 else place_of(spec, stacks),
        )
        for shown, stacks in members.items()
    ]
    in_order = {stack: tuple(found[i] for i in sorted(found)) for stack, found in by_stack.items()}
    return Axis(name=name, placed=tuple(placed), by_stack=tuple(in_order.items()))


def _equation(by_stack: Mapping[str, str]) -> str:
    """One equation, or one for each stack where a decoder that reads an encoder has a term more."""
    if len(set(by_stack.values())) == 1:
        return next(iter(by_stack.values()))
    return "; ".join(f"{stack}: {equation}" for stack, equation in by_stack.items())


class _Shown:
    """A choice by its key and its words: what stands on one line."""

    def __init__(self, choice: Choice) -> None:
        self.choice = choice

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and (self.choice, self.choice.value) == (other.choice, other.choice.value)

    def __hash__(self) -> int:
        return hash(self.choice.value)
