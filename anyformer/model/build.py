"""From a spec to a module: on meta first, then on the device, then filled by the spec's init."""

import zlib
from typing import TypeVar

import torch
from torch import Tensor, nn

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.parts.fused_linear import allocating
from anyformer.parts.linear import drawn
from anyformer.specs.axes import ParamSpec
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec
from anyformer.specs.parameters import weights

Built = TypeVar("Built", bound=nn.Module)


def build(
    spec: ModelSpec, device: str | torch.device = "cpu", dtype: torch.dtype = torch.float32, seed: int = 0
) -> Model:
    """A model of a spec, with fresh weights.

    The same seed gives the same weights, whatever else the spec holds: each tensor is drawn from (seed, its name) in
    fp32 and then rounded to `dtype`. On `meta` nothing is allocated or drawn.
    """
    if not isinstance(spec, ModelSpec):
        raise TypeError(f"spec: expected a ModelSpec, got {type(spec).__name__}; make one with anyformer.spec(...)")
    if not isinstance(dtype, torch.dtype):
        raise TypeError(f"dtype: expected a torch dtype such as torch.float32, got {dtype!r}")
    if not isinstance(seed, int):
        raise TypeError(f"seed: expected a whole number, got {seed!r}")
    if not dtype.is_floating_point:
        raise InputError(f"dtype: {dtype} can't hold weights; pick a floating-point one")
    with torch.device("meta"):
        model = Model(spec).to(dtype)
    inventory = weights(spec)
    check_inventory(model, inventory)
    if torch.device(device).type != "meta":
        allocate(model, device)
        first = Initializer(spec, inventory, seed)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(first.value(name, parameter.device))
    return model


def allocate(model: Built, device: str | torch.device) -> Built:
    """Move a module from the meta device to a real one; its parameters are still to be filled.

    As `to_empty`, which would import a quarter of a second's worth of symbolic algebra.
    """
    with allocating():
        return model._apply(lambda tensor: torch.empty(tensor.shape, dtype=tensor.dtype, device=device))


def check_inventory(model: nn.Module, inventory: dict[str, ParamSpec]) -> None:
    """Refuse a module whose parameters are not those that its spec declares: an extension's leaf may have erred."""
    have = {name: tuple(p.shape) for name, p in model.named_parameters()}
    wanted = {name: w.shape for name, w in inventory.items()}
    wrong = sorted(name for name in have.keys() | wanted.keys() if have.get(name) != wanted.get(name))
    if wrong:
        lines = [f"{name}: the module has {have.get(name)}, the spec declares {wanted.get(name)}" for name in wrong]
        raise RuntimeError("\n  ".join(["a module and its inventory differ; see the leaf's weights():", *lines]))


class Initializer:
    """The first value of every parameter of a spec, one at a time."""

    def __init__(self, spec: ModelSpec, inventory: dict[str, ParamSpec], seed: int) -> None:
        self.spec, self.inventory, self.seed = spec, inventory, seed
        self.tied = isinstance(spec.head, TokenHead) and spec.head.tied
        self.sizes = {
            f"{stack.name}.blocks.{i}": (stack.depth, spec.dims(layer, stack))
            for stack in spec.stacks
            for i, layer in enumerate(stack.blocks)
        }
        self.elsewhere = self.sizes[f"{spec.stacks[-1].name}.blocks.0"]

    def value(self, name: str, device: torch.device) -> Tensor:
        """In fp32, from the generator that belongs to (seed, name)."""
        weight = self.inventory[name]
        if weight.fill is not None:
            return torch.full(weight.shape, weight.fill, dtype=torch.float32, device=device)
        depth, dims = self.sizes.get(".".join(name.split(".")[:3]), self.elsewhere)
        rule = self.spec.init.rule(
            weight, width=self.spec.width, depth=depth, tied=self.tied, heads=dims.heads, head_dim=dims.head_dim
        )
        generator = torch.Generator(device).manual_seed((self.seed * 1_000_003 + zlib.crc32(name.encode())) % 2**63)
        return drawn(rule, weight.shape, device, generator)
