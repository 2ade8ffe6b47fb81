"""The parameters of any module in groups by role, for optimizers that treat them differently; torch loads when called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Literal, Protocol, runtime_checkable

from anyformer.errors import InputError, nearest
from anyformer.specs.axes import ParamSpec, Role

if TYPE_CHECKING:
    from torch import nn

Group = Literal["matrices", "tables", "head", "vectors"]
GROUPS: tuple[Group, ...] = ("matrices", "tables", "head", "vectors")
BY_ROLE: dict[Role, Group] = {
    "query": "matrices", "key": "matrices", "value": "matrices", "attention_out": "matrices", "ffn_in": "matrices",
    "ffn_out": "matrices", "embedding": "tables", "position_embedding": "tables", "head": "head",
}  # fmt: skip
"""The matrices map the residual to itself or to what a branch works on. Tables have a row for each token or position,
most of them without a gradient of note in any one step. Every other role is a vector, or as rare as one."""
FIRST: tuple[Group, ...] = ("tables", "head", "matrices", "vectors")
"""Where several modules share a parameter, the first of its groups counts: a tied head is a table."""


def group_of(role: Role) -> Group:
    """The group of a parameter."""
    return BY_ROLE.get(role, "vectors")


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
    found: dict[nn.Parameter, Group] = {}
    names: dict[str, nn.Parameter] = {}
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
    from torch import nn

    parts = list(module.named_modules(remove_duplicate=False))
    known: dict[str, Group] = {}
    for path, part in parts:
        if isinstance(part, HasInventory):
            own: dict[str, Group] = {_join(path, n): group_of(w.role) for n, w in part.inventory().items()}
            # What holds a part knows more of it than the part itself.
            known = own | known
    tables = nn.Embedding, nn.EmbeddingBag
    rows = {part.num_embeddings for part in module.modules() if isinstance(part, tables)}
    # The last Linear is the head, if it has an output for each row of a table.
    last = [part for part in module.modules() if isinstance(part, nn.Linear)][-1:]
    head = [part for part in last if part.out_features in rows]
    for path, part in parts:
        for name, parameter in part.named_parameters(recurse=False, remove_duplicate=False):
            matrix: Group = "head" if part in head else "matrices"
            plain: Group = "tables" if isinstance(part, tables) else matrix if parameter.dim() == 2 else "vectors"
            full = _join(path, name)
            yield full, parameter, known.get(full) or plain


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
