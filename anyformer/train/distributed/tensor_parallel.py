"""Sharing of products (tensor parallel), put around a model from outside: hooks hand its modules their own parts.

Parameters are DTensors on the mesh of those that share, so whoever clips, moves or saves them sees whole tensors.
While a module computes, it has plain tensors in their place. What enters a branch is the same on all processes, and
what leaves it is the sum over them.
"""

import copy
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed import ProcessGroup, all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from anyformer.errors import InputError
from anyformer.model.block import Block, Branch
from anyformer.model.model import Model
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.axes import Dims
from anyformer.specs.formulas import evaluate
from anyformer.specs.layer import Layer, mixer_of
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import shared_positions, weights
from anyformer.specs.stacks import Stack, pattern_of
from anyformer.train.config import Compute, Many

BODY = re.compile(r"\.(attention|cross|ffn)\.body\.")


class Cut(NamedTuple):
    """How one parameter is shared out."""

    dim: int | None
    """Which dimension is cut into equal parts; None: every process has all of it."""
    partial: bool
    """Whether a process that has all of it finds only its part of the gradient, from its own heads."""
    added: bool
    """Whether every process adds it to its part of a sum, so that each must add an n-th."""


def divided(spec: ModelSpec, n: int) -> ModelSpec:
    """The spec as one of n processes sees it: the same fields, and layers with its share of heads and inner width."""
    if n == 1:
        return spec
    check(spec, n)
    mine = copy.copy(spec)
    vars(mine)["stacks"] = tuple(
        replace(stack, layers=tuple(_share(layer, spec.dims(layer, stack), n) for layer in stack.layers))
        for stack in spec.stacks
    )
    return mine


def _share(layer: Layer, dims: Dims, n: int) -> Layer:
    # A formula may name the heads, which are fewer here.
    scale, heads, kv_heads = evaluate(layer.attention.scale, dims.names()), dims.heads // n, max(1, dims.kv_heads // n)
    attention = replace(layer.attention, heads=heads, kv_heads=kv_heads, head_dim=dims.head_dim, scale=scale)
    ffn: Any = layer.ffn
    return replace(layer, attention=attention, ffn=replace(ffn, width=dims.ffn_width // n))


def check(spec: ModelSpec, n: int) -> None:
    """Refuse a spec whose products n processes can't share, with every reason and the numbers that fit."""
    found = list(dict.fromkeys(problems(spec, n)))
    if found:
        most = max(layer.attention.heads for stack in spec.stacks for layer in stack.layers)
        fits = [m for m in range(1, most + 1) if not any(problems(spec, m))]
        raise InputError(
            "\n  ".join([f"many.tensor: {n} processes can't share the products of this model:", *found])
            + f"\nIt can be {', '.join(map(str, fits))}; many.shard cuts any model over any number of processes"
        )


def misfits(many: Many, compute: Compute, specs: Iterable[ModelSpec]) -> list[str]:
    """What in a config, and in the specs of its stages, does not go with many processes."""
    wrong: list[str] = []
    for spec in specs:
        try:
            check(spec, many.tensor)
        except InputError as error:
            wrong.append(str(error))
    if compute.compile != "none":
        wrong.append("compute.compile: products that processes share are not compiled; set it to none")
    return list(dict.fromkeys(wrong))


def problems(spec: ModelSpec, n: int) -> Iterator[str]:
    """Why n processes can't share the products of a spec."""
    if n == 1:
        return
    fits = True
    for stack in spec.stacks:
        for layer in stack.layers:
            dims = spec.dims(layer, stack)
            fits = fits and not (dims.heads % n or dims.ffn_width % n or layer.ffn.routes)
            if dims.heads % n:
                yield f"attention.heads: {dims.heads} is no multiple of {n}"
            if dims.kv_heads % n and dims.kv_heads != 1:
                fits = False
                yield f"attention.kv_heads: {dims.kv_heads} is neither 1 nor a multiple of {n}"
            if dims.ffn_width % n:
                yield f"ffn.width: {dims.ffn_width} is no multiple of {n}"
            yield from _kinds(stack, layer)
    if fits:
        yield from _positions(spec, n)


def _kinds(stack: Stack, layer: Layer) -> Iterator[str]:
    a = layer.attention
    for name, norm in (("qk_norm", a.qk_norm), ("v_norm", a.v_norm)):
        if norm is not None and norm.scope == "whole":
            yield f"attention.{name}.scope: 'whole' takes the mean over all heads, and a process has only some"
    if pattern_of(stack, layer).per_head:
        yield f"attention.pattern: '{pattern_of(stack, layer)}' tells heads apart by their number"
    for cross in (False, True) if stack.cross else (False,):
        mixer = mixer_of(a, cross=cross)
        if not mixer.exact:
            yield f"attention.mixer: {mixer.kind!r} draws for all heads at once, and a process has only some"
    # Equal numbers must be dropped of the residual, and different ones inside of branches: two streams of draws.
    for name, dropout in (("attention", a.dropout), ("ffn", layer.ffn.dropout)):
        if dropout > 0:
            yield f"{name}.dropout: {dropout:g} would drop the same in the heads of all processes; block.dropout is served"
    if layer.ffn.routes:
        yield f"ffn.kind: {layer.ffn.kind!r} sends tokens to experts, which are not shared out"


def _positions(spec: ModelSpec, n: int) -> Iterator[str]:
    """Schemes that hold something for each head in a way that can't be told from outside."""
    for stack in spec.stacks:
        for layer in stack.layers:
            position, dims = layer.position, spec.dims(layer, stack)
            mine = _dims(dims, n)
            if position.overrides("embed") and (position.biases() or position.reads_probs()):
                yield f"position.kind: {position.kind!r} adds to embeddings and to scores"
            for name, weight in position.weights(dims).items():
                part = position.weights(mine).get(name)
                if part is None or _cut(weight.shape, part.shape, n) is None:
                    yield f"position.kind: {position.kind!r} has a {name} that does not go by heads"
            constants = position.constants(mine)
            for name, values in position.constants(dims).items():
                if constants.get(name) != values and len(constants.get(name, ())) * n != len(values):
                    yield f"position.kind: {position.kind!r} has constants {name} that do not go by heads"


def _dims(dims: Dims, n: int) -> Dims:
    return replace(dims, heads=dims.heads // n, kv_heads=max(1, dims.kv_heads // n), ffn_width=dims.ffn_width // n)


def _cut(whole: tuple[int, ...], part: tuple[int, ...], n: int) -> tuple[int, ...] | None:
    """The dimension along which `part` is an n-th of `whole`, or none if it is all of it; None if it is something else."""
    if len(whole) != len(part):
        return None
    differ = tuple(d for d, (a, b) in enumerate(zip(whole, part, strict=True)) if a != b)
    fits = len(differ) <= 1 and all(whole[d] == n * part[d] for d in differ)
    return differ if fits else None


def cuts(spec: ModelSpec, n: int) -> dict[str, Cut]:
    """How n processes share out every parameter of a spec, by name."""
    mine, found, strange = weights(divided(spec, n)), dict[str, Cut](), list[str]()
    for name, weight in weights(spec).items():
        along = _cut(weight.shape, mine[name].shape, n) if name in mine else None
        if along is None:
            strange.append(name)
            continue
        inside = BODY.search(name) is not None
        # What a stack's positions add to embeddings is alike on all processes; what they add to scores is by head.
        scored = ".positions." in name and weight.role != "position_embedding"
        added = inside and name.endswith((".o.bias", ".down.bias"))
        found[name] = Cut(along[0] if along else None, not along and (inside or scored), added)
    if strange:
        names = ", ".join(strange)
        raise InputError(f"many.tensor: {n} processes can't share {names}: it goes neither by heads nor whole")
    return found


def constants(spec: ModelSpec, n: int, index: int) -> Iterator[tuple[str, str, list[Any]]]:
    """Fixed numbers of which process `index` has its own part: the module that holds them, their name, the part."""
    for stack in spec.stacks:
        owned, _ = shared_positions(spec, stack)
        held = [(f"{stack.name}.positions.{i}", position, dims) for i, (position, dims) in enumerate(owned)]
        for i, layer in enumerate(stack.blocks):
            if layer.position.per_layer:
                dims = spec.dims(layer, stack)
                held.append((f"{stack.name}.blocks.{i}.attention.body.position", layer.position, dims))
                if stack.cross and layer.attention.cross_position:
                    held.append((f"{stack.name}.blocks.{i}.cross.body.position", layer.position, dims))
        for place, position, dims in held:
            part = position.constants(_dims(dims, n))
            for name, values in position.constants(dims).items():
                if part[name] != values:
                    size = len(values) // n
                    yield place, name, list(values)[index * size : (index + 1) * size]


def share_products(model: Model, spec: ModelSpec, mesh: DeviceMesh) -> None:
    """Let a model of `divided(spec, n)`, on the meta device, be one of n that compute together what `spec` says."""
    # Weights that are cut in two directions are gathered in two goes: torch would remark on it at every step.
    logging.getLogger("torch.distributed.tensor._redistribute").setLevel(logging.ERROR)
    plan = cuts(spec, mesh.size())
    for place, name, part in constants(spec, mesh.size(), mesh.get_local_rank()):
        held = model.get_submodule(place)
        if not isinstance(held, LeafModule):
            raise TypeError(f"{place} holds no constants")
        held.replace(name, part)
    for path, module in model.named_modules():
        for name, parameter in module.named_parameters(recurse=False):
            cut = plan[f"{path}.{name}" if path else name]
            where: Placement = Replicate() if cut.dim is None else Shard(cut.dim)
            whole = DTensor.from_local(parameter.detach(), mesh, [where], run_check=False)
            setattr(module, name, nn.Parameter(whole))
    inside: set[str] = set()
    for path, block in model.named_modules():
        if isinstance(block, Block):
            for name, branch in block.named_children():
                if isinstance(branch, Branch):
                    _share_branch(branch, f"{path}.{name}.", plan, mesh)
                    inside |= {f"{path}.{name}.{each}" for each, _ in branch.named_parameters()}
    # What is outside of the blocks is read in many places, such as a table by a tied head, so for the whole pass.
    rest = [name for name, _ in model.named_parameters() if name not in inside]
    Parts(rest, plan, "", mesh).around(model)


def _share_branch(branch: Branch, prefix: str, plan: Mapping[str, Cut], mesh: DeviceMesh) -> None:
    """A block may be computed again in the backward pass without its own call, so hooks are on what it calls."""
    group = mesh.get_group()
    for name, part in branch.named_children():
        # A feed-forward may compute its maps again on their own.
        called = part.named_children() if isinstance(part, FeedForwardNet) else [("", part)]
        for inner, module in called:
            place = f"{prefix}{name}.{inner}." if inner else f"{prefix}{name}."
            Parts([f"{place}{each}" for each, _ in module.named_parameters()], plan, place, mesh).around(module)
    leave: Any = Leave.apply

    def summed(grad: Tensor) -> Tensor:
        grad = grad.contiguous().clone()
        all_reduce(grad, group=group)
        return grad

    def entering(_: nn.Module, given: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same tensors for all; each process finds a part of their gradients."""
        views = tuple(each.view_as(each) if isinstance(each, Tensor) else each for each in given)
        for view in views:
            if isinstance(view, Tensor) and view.requires_grad:
                view.register_hook(summed)
        return views

    branch.body.register_forward_pre_hook(entering)
    branch.body.register_forward_hook(lambda _, given, y: leave(y, group))


class Parts:
    """Puts plain tensors in the place of a module's DTensors while it computes."""

    def __init__(self, names: Iterable[str], plan: Mapping[str, Cut], prefix: str, mesh: DeviceMesh) -> None:
        paths = {name: name.removeprefix(prefix).split(".") for name in names}
        # Parameters from the module's point of view: the way down to the owner, the name there, how it is cut.
        self.entries = [(tuple(path[:-1]), path[-1], plan[name]) for name, path in paths.items()]
        self.size = mesh.size()
        self.kept: list[list[tuple[Any, str, Any]]] = []

    def around(self, module: nn.Module) -> None:
        if self.entries:
            module.register_forward_pre_hook(self.put)
            module.register_forward_hook(self.take_back, always_call=True)

    def put(self, module: nn.Module, given: Any) -> None:
        kept: list[tuple[Any, str, Any]] = []
        self.kept.append(kept)
        for way, name, cut in self.entries:
            owner: Any = module
            for step in way:
                owner = owner._modules[step]
            whole = owner._parameters[name]
            part = whole.to_local(grad_placements=[Partial() if cut.partial else whole.placements[-1]])
            kept.append((owner, name, whole))
            owner._parameters[name] = part / self.size if cut.added else part

    def take_back(self, module: nn.Module, given: Any, answer: Any) -> None:
        for owner, name, whole in self.kept.pop():
            owner._parameters[name] = whole


class Leave(torch.autograd.Function):
    """The sum of what all have found; its gradient is the same for each part."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, group: ProcessGroup) -> Tensor:
        whole = y.detach().contiguous().clone()
        all_reduce(whole, group=group)
        return whole

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return grad_outputs[0], None
