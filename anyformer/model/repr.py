"""How a model prints: the architecture as a tree, equal blocks once, empty slots not at all."""

from typing import Any

from torch import nn

from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.number_format import ranges


def show(model: Any) -> str:
    """The whole model as text."""
    total = sum(p.numel() for p in model.parameters())
    spec = model.spec
    known = f"{spec.vocab}" if spec.source_vocab is None else f"{spec.source_vocab} -> {spec.vocab}"
    title = f"{spec.topology}, {total:,} parameters, vocab {known}, context {spec.context}"
    return "\n".join([title, *_children(model, "  ")])


def _children(module: nn.Module, indent: str) -> list[str]:
    lines: list[str] = []
    for name, child in module.named_children():
        lines += _blocks(name, child, indent) if isinstance(child, nn.ModuleList) else _node(name, child, indent)
    return lines


def _node(name: str, module: nn.Module, indent: str) -> list[str]:
    own = module.extra_repr()
    return [f"{indent}{name}{': ' + own if own else ''}", *_children(module, indent + "  ")]


def _blocks(name: str, modules: nn.ModuleList, indent: str) -> list[str]:
    """Equal members once, with their count and places."""
    places: dict[str, list[int]] = {}
    for i, member in enumerate(modules):
        places.setdefault("\n".join(_node("", member, "")), []).append(i)
    lines: list[str] = []
    for indices in places.values():
        first = modules[indices[0]]
        what = "position" if isinstance(first, LeafModule) else "block"
        lines += _node(f"{len(indices)} x {what} ({name} {', '.join(ranges(indices))})", first, indent)
    return lines
