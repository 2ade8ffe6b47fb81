"""Blocks of a model, fed a document, and the same blocks made alone from the words of their spec."""

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

import anyformer as af
from anyformer.model.block import Block as ModelBlock
from anyformer.model.model import Model
from anyformer.specs import ModelSpec
from anyformer.specs.codec import write
from anyformer.specs.layer import Layer
from anyformer.specs.stacks import Stack, pattern_of
from tests.contract.contracts import LENGTH, model_of
from tests.contract.feed import alone, document


class Ran(NamedTuple):
    """One block of a model: where it is, what it read and what it gave."""

    stack: Stack
    layer: Layer
    index: int
    block: ModelBlock
    x: Any
    memory: Tensor | None
    out: Any


def ran(spec: ModelSpec, model: Model | None = None) -> tuple[list[Ran], Tensor | None]:
    """Every block of the spec's model as a document went through it, and which tokens of that were marked."""
    model = model_of(spec) if model is None else model
    found: list[Ran] = []

    def record(stack: Stack, index: int) -> Any:
        def hook(block: ModelBlock, args: tuple[Any, ...], out: Any) -> None:
            memory = args[3] if len(args) > 3 else None
            found.append(Ran(stack, stack.layers[index], index, block, args[0], memory, out))

        return hook

    hooks = [
        block.register_forward_hook(record(stack, i))
        for stack in spec.stacks
        for i, block in enumerate(model.get_submodule(f"{stack.name}.blocks"))
    ]
    doc = document(spec, LENGTH, 3)
    with torch.no_grad():
        alone(model, doc)
    for hook in hooks:
        hook.remove()
    return found, None if doc.marks is None else doc.marks[None]


def comparable(spec: ModelSpec, each: Ran) -> bool:
    """Whether a layer of this kind can be had alone, and means the same there."""
    pattern = pattern_of(each.stack, each.layer)
    looks_back = pattern.prefix() is not None and not pattern.needs_length
    if each.stack.reversible:
        # A stack runs the branches of reversible blocks itself.
        return False
    if each.stack.causal != looks_back and "bidirectional" in write(each.layer.position):
        return False
    if each.stack.causal != looks_back and each.layer.position.kind == "t5":
        # Alone, a pattern that looks back is a decoder's, whose buckets know no later tokens.
        return False
    if each.layer.attention.cross_position and each.stack.cross:
        position, dims = each.layer.position, spec.dims(each.layer, each.stack)
        if position.weights(dims) and not position.per_layer:
            return False
    # A pattern that differs by layer is that of layer 0.
    return each.index == 0 or not pattern.per_layer


def words(spec: ModelSpec, each: Ran) -> dict[str, Any]:
    """The keywords of `af.nn.Block` for a layer."""
    layer, inside = each.layer, not each.layer.position.overrides("embed")
    attention = write(layer.attention)
    position = layer.position
    if not each.stack.cross or not (position.overrides("rotate") or position.biases() or position.reads_probs()):
        attention.pop("cross_position", None)
    return {
        "width": spec.width,
        "heads": attention.pop("heads"),
        "pattern": pattern_of(each.stack, layer),
        "attention": {k: v for k, v in attention.items() if k != "pattern"},
        "position": layer.position if inside else "none",
        "ffn": layer.ffn,
        "norm": write(layer.norm),
        "block": write(layer.block),
        "cross": each.stack.cross,
        "context": spec.context,
    }


def take_weights(part: Any, each: Ran, model: Model, prefix: str = "attention.body.") -> None:
    """Copy a block's weights into a part, and those of a position scheme that its stack holds for all layers."""
    state = dict(each.block.state_dict())
    for name, tensor in model.get_submodule(f"{each.stack.name}.positions").state_dict().items():
        state[f"{prefix}position.{name.split('.', 1)[1]}"] = tensor
    own = part.body.state_dict()
    assert set(own) <= set(state), set(own) - set(state)
    part.body.load_state_dict({name: state[name] for name in own})


def blocks_alone(spec: ModelSpec) -> Iterator[tuple[Ran, Any, Any]]:
    """What each block gave in the model, the same block alone, and what that gives."""
    model = model_of(spec)
    found, marks = ran(spec, model)
    for each in found:
        if not comparable(spec, each):
            continue
        part = af.nn.Block(**words(spec, each), dtype=torch.float64).eval()
        take_weights(part, each, model)
        reads = each.stack is spec.stacks[0] and pattern_of(each.stack, each.layer).reads_marks
        with torch.no_grad():
            yield each, part, part(each.x, memory=each.memory, global_mask=marks if reads else None)
