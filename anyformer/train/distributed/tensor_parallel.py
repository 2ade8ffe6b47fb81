"""Sharing of products (tensor parallel), put around a model from outside: hooks hand its modules their own parts.

Parameters are DTensors on the mesh of those that share, so whoever clips, moves or saves them sees whole tensors.
While a module computes, it has plain tensors in their place. What enters a branch is the same on all processes, and
what leaves it is the sum over them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.distributed import ProcessGroup, all_reduce
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from anyformer.model.block import Block, Branch
from anyformer.model.model import Model
from anyformer.parts.ffn import FeedForwardNet
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.model import ModelSpec
from anyformer.train.distributed.tp_plan import Cut, constants, cuts

Entry = tuple[tuple[str, ...], str, Cut]
"""A parameter from a module's point of view: the way down to its owner, its name there, how it is cut."""


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
    branch.body.register_forward_pre_hook(lambda _, given: tuple(_entering(each, group) for each in given))
    branch.body.register_forward_hook(lambda _, given, y: _leaving(y, group))


def _entering(value: Any, group: ProcessGroup) -> Any:
    run: Any = Enter.apply
    return run(value, group) if isinstance(value, Tensor) else value


def _leaving(value: Any, group: ProcessGroup) -> Any:
    run: Any = Leave.apply
    return run(value, group)


class Parts:
    """Puts plain tensors in the place of a module's DTensors while it computes."""

    def __init__(self, names: Iterable[str], plan: Mapping[str, Cut], prefix: str, mesh: DeviceMesh) -> None:
        self.entries: list[Entry] = []
        for name in names:
            *way, last = name.removeprefix(prefix).split(".")
            self.entries.append((tuple(way), last, plan[name]))
        self.size = mesh.size()
        self.kept: list[list[tuple[Any, str, Any]]] = []

    def around(self, module: nn.Module) -> None:
        """Do so whenever this module, or a copy of it, is called."""
        if self.entries:
            module.register_forward_pre_hook(self.put)
            module.register_forward_hook(self.take_back, always_call=True)

    def put(self, module: nn.Module, given: Any) -> None:
        """Before the call."""
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
        """After it, however it ended."""
        for owner, name, whole in self.kept.pop():
            owner._parameters[name] = whole


class Enter(torch.autograd.Function):
    """The same tensor for all; each finds a part of its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: ProcessGroup) -> Tensor:
        ctx.group = group
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *grad_outputs: Any) -> Any:
        return _summed(ctx, *grad_outputs)


@once_differentiable
def _summed(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
    grad = grad.contiguous().clone()
    all_reduce(grad, group=ctx.group)
    return grad, None


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
