"""The axes of a spec: for each of them what it is set to, in which layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from anyformer.explain.closed_axes import AXES, Choice
from anyformer.explain.groups import Group, groups, place_of
from anyformer.specs.model import ModelSpec


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
    alike, made = groups(spec, layer), list[Axis]()
    for name, (scope, choose) in AXES.items():
        if scope == "layer":
            made.append(_of_layers(name, spec, [(group, choose(group)) for group in alike]))
        else:
            found = {"": choose(spec)} if scope == "model" else {stack.name: choose(stack) for stack in spec.stacks}
            made.append(_of_stacks(name, found))
    return tuple(made)


def _of_stacks(name: str, found: Mapping[str, Choice]) -> Axis:
    alike = len({(choice, choice.value) for choice in found.values()}) == 1
    placed = [Placed(choice=c, layers={}, where="" if alike else s) for s, c in found.items()]
    by_stack = tuple((s, (c,)) for s, c in found.items())
    return Axis(name=name, placed=tuple(placed[:1] if alike else placed), by_stack=by_stack)


def _of_layers(name: str, spec: ModelSpec, chosen: Sequence[tuple[Group, Choice]]) -> Axis:
    # What means the same and reads the same stands on one line.
    members: dict[tuple[Choice, str], dict[str, list[int]]] = {}
    equations: dict[tuple[Choice, str], dict[str, str]] = {}
    by_stack: dict[str, dict[int, Choice]] = {}
    for group, choice in chosen:
        shown, stack = (choice, choice.value), group.stack.name
        members.setdefault(shown, {}).setdefault(stack, []).extend(group.indices)
        equations.setdefault(shown, {}).setdefault(stack, choice.equation)
        by_stack.setdefault(stack, {}).update(dict.fromkeys(group.indices, choice))
    placed = [
        Placed(
            choice=replace(shown[0], equation=_equation(equations[shown])),
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
