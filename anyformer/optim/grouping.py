"""The parameters of any module in groups by role, for optimizers that treat them differently."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Protocol, runtime_checkable

from torch import nn

from anyformer.errors import InputError, nearest
from anyformer.optim.roles import GROUPS, Group, group_of
from anyformer.specs.axes import ParamSpec

FIRST: tuple[Group, ...] = ("tables", "head", "matrices", "vectors")
"""Where several modules share a parameter, the first of its groups counts: a tied head is a table."""


@runtime_checkable
class HasInventory(Protocol):
    """A module that knows the role of each of its parameters."""

    def inventory(self) -> Mapping[str, ParamSpec]:
        """Parameters by name, with their roles."""
        ...


def groups(module: nn.Module, *, move: Mapping[str, Group] | None = None) -> dict[Group, list[nn.Parameter]]:
    """The parameters of a module by what they are for, each once:

    - matrices: weights of linear maps inside, which Muon is made for
    - tables: embeddings of tokens and positions, and a head that is tied to them
    - head: the map to logits
    - vectors: gains, biases and the rest

    Anyformer's models and parts know it of each parameter. In other modules an Embedding is a table; the last Linear is
    the head if it has as many outputs as an Embedding has rows; every other parameter of two dimensions is a matrix.
    `move` says otherwise for parameters by name, such as `{"score.weight": "head"}`.
    """
    found, names = dict[nn.Parameter, Group](), dict[str, nn.Parameter]()
    for name, parameter, group in _grouped(module):
        names[name] = parameter
        if parameter not in found or FIRST.index(group) < FIRST.index(found[parameter]):
            found[parameter] = group
    moves = move or {}
    wrong = [f"{name}: is no parameter{nearest(name, names)}" for name in moves if name not in names]
    wrong += [f"{name}: {to!r} is no group{nearest(str(to), GROUPS)}" for name, to in moves.items() if to not in GROUPS]
    if wrong:
        raise InputError("\n  ".join(["groups: move can't be followed:", *wrong]))
    found |= {names[name]: to for name, to in moves.items()}
    return {group: [p for p, its in found.items() if its == group] for group in GROUPS}


def _grouped(module: nn.Module) -> Iterator[tuple[str, nn.Parameter, Group]]:
    """Name, parameter and group of all, those that are shared as often as they are used."""
    parts = list(module.named_modules(remove_duplicate=False))
    known: dict[str, Group] = {}
    for path, part in parts:
        if isinstance(part, HasInventory):
            own: dict[str, Group] = {_join(path, n): group_of(w.role) for n, w in part.inventory().items()}
            # What holds a part knows more of it than the part itself.
            known = own | known
    head = _head(module)
    for path, part in parts:
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            full = _join(path, name)
            yield full, parameter, known.get(full) or _plain(part, parameter, head)


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _plain(part: nn.Module, parameter: nn.Parameter, head: nn.Module | None) -> Group:
    if isinstance(part, nn.Embedding | nn.EmbeddingBag):
        return "tables"
    if parameter.dim() != 2:
        return "vectors"
    return "head" if part is head else "matrices"


def _head(module: nn.Module) -> nn.Module | None:
    """The last Linear, if it has an output for each row of a table."""
    rows = {m.num_embeddings for m in module.modules() if isinstance(m, nn.Embedding | nn.EmbeddingBag)}
    linear = [m for m in module.modules() if isinstance(m, nn.Linear)]
    return linear[-1] if linear and linear[-1].out_features in rows else None
