"""The base of parts that stand alone: around a module that models are made of, with fresh weights from torch's generator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from anyformer.errors import InputError
from anyformer.model.build import allocate, check_inventory
from anyformer.nn.one_layer import OneLayer
from anyformer.parts.drawing import drawn
from anyformer.specs.axes import ParamSpec


class Part(nn.Module):
    """A part that knows the role of each of its parameters. `body` is the module that models are made of."""

    def __init__(self, layer: OneLayer, places: Mapping[str, str]) -> None:
        super().__init__()
        self.layer = layer
        self._places = dict(places)

    def inventory(self) -> dict[str, ParamSpec]:
        """What each parameter is for, by name."""
        return self.layer.inventory(self._places)

    def start(self, device: torch.device | str | None, dtype: torch.dtype | None) -> None:
        """Give a part that was made on the meta device its memory and its first weights."""
        dtype = torch.get_default_dtype() if dtype is None else dtype
        if not dtype.is_floating_point:
            raise InputError(f"dtype: {dtype} can't hold weights; pick a floating-point one")
        self.to(dtype)
        check_inventory(self, self.inventory())
        device = torch.get_default_device() if device is None else torch.device(device)
        if device.type != "meta":
            allocate(self, device)
            self.reset_parameters()

    @torch.no_grad()
    def reset_parameters(self) -> None:
        """Fresh weights: matrices of variance 2/(d_in + d_out) and tables of variance 1, cut at 3 sigma; gains of 1."""
        inventory, dims, spec = self.inventory(), self.layer.dims, self.layer.spec
        for name, parameter in self.named_parameters():
            weight = inventory[name]
            if weight.fill is not None:
                parameter.fill_(weight.fill)
            elif not parameter.is_meta:
                rule = spec.init.rule(
                    weight, width=dims.width, depth=dims.depth, tied=False, heads=dims.heads, head_dim=dims.head_dim
                )
                parameter.copy_(drawn(rule, weight.shape, parameter.device))


def count(source: str, name: str, value: Any) -> int:
    """A size that must be a whole number of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise InputError(f"{source}: {name}: {value!r} is not a whole number of at least 1")
    return value
