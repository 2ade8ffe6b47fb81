"""Which group of parameters each role belongs to: matrices, tables, head or vectors. Reading it loads no torch."""

from __future__ import annotations

from typing import Literal

from anyformer.specs.axes import Role

Group = Literal["matrices", "tables", "head", "vectors"]
GROUPS: tuple[Group, ...] = ("matrices", "tables", "head", "vectors")

BY_ROLE: dict[Role, Group] = {
    "query": "matrices", "key": "matrices", "value": "matrices", "attention_out": "matrices", "ffn_in": "matrices",
    "ffn_out": "matrices", "embedding": "tables", "position_embedding": "tables", "head": "head",
}  # fmt: skip
"""The matrices map the residual to itself or to what a branch works on. Tables have a row for each token or position,
most of them without a gradient of note in any one step. Every other role is a vector, or as rare as one."""


def group_of(role: Role) -> Group:
    """The group of a parameter."""
    return BY_ROLE.get(role, "vectors")
