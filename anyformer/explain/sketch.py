"""A block as boxes: which norms, bodies and adds a layer has, in the order in which numbers flow through them."""

from __future__ import annotations

from dataclasses import dataclass

from anyformer.explain.closed_axes import heads_name
from anyformer.explain.groups import Group
from anyformer.explain.words import number
from anyformer.specs.layer import Attention
from anyformer.specs.parameters import slots


@dataclass(frozen=True, kw_only=True)
class Branch:
    """What stands between the residual and an add. A box is a tuple of lines."""

    name: str
    boxes: tuple[tuple[str, ...], ...]
    body: int
    """Which of the boxes is the body; those before it stand on the input."""
    after: str = ""
    """The norm on the residual after the add."""


@dataclass(frozen=True, kw_only=True)
class Sketch:
    """The boxes of a block."""

    where: str
    serial: bool
    branches: tuple[Branch, ...]
    shared: str = ""
    """In a parallel block: the norm through which all branches read."""
    after: str = ""
    """In a parallel block: the norm after the add."""


def sketch(group: Group) -> Sketch:
    """The block of a group of layers."""
    layer, serial = group.layer, group.layer.block.wiring in ("serial", "reversible")
    names = ("attention", "cross", "ffn") if group.stack.cross else ("attention", "ffn")
    one_norm = layer.block.wiring == "parallel" and slots(layer, "attention")[0]
    norm = layer.norm.leaf.called()
    return Sketch(
        where=group.where() + (" (two streams)" if layer.block.wiring == "reversible" else ""),
        serial=serial,
        branches=tuple(_branch(group, name, serial=serial, shared=one_norm) for name in names),
        shared=norm if one_norm else "",
        after=norm if not serial and slots(layer, "attention")[2] else "",
    )


def _branch(group: Group, name: str, *, serial: bool, shared: bool) -> Branch:
    layer = group.layer
    inner, outer, after = slots(layer, name)
    norm = layer.norm.leaf.called()
    first = [(norm,)] if inner and not shared else []
    last = [(norm,)] if outer else []
    if layer.block.branch_scale != 1:
        last.append((f"times {number(layer.block.branch_scale)}",))
    return Branch(
        name=name,
        boxes=(*first, body_lines(group, name), *last),
        body=len(first),
        after=norm if after and serial else "",
    )


def body_lines(group: Group, name: str) -> tuple[str, ...]:
    """The label of a body."""
    layer, dims = group.layer, group.dims
    if name == "ffn":
        return (f"{layer.ffn.called()} {dims.ffn_width}",)
    a = layer.attention
    # What is added to the embeddings is no matter of a block.
    placed = (name == "attention" or a.cross_position) and not layer.position.overrides("embed")
    kind = f"{heads_name(dims)}, {layer.position.called()}" if placed else heads_name(dims)
    lines = [kind, str(group.pattern)] if name == "attention" else [f"cross-attention {kind}", "reads the encoder"]
    if type(a.mixer) is not type(Attention(heads=1).mixer):
        lines.append(a.mixer.called())
    extras = [
        text
        for text, has in (
            ("qk-norm", a.qk_norm is not None),
            ("v-norm", a.v_norm is not None),
            (f"softcap {number(a.softcap or 0)}", a.softcap is not None),
            ("temperature", a.temperature is not None),
        )
        if has
    ]
    return (*lines, *([", ".join(extras)] if extras else []))
