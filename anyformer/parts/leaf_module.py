"""Leaf modules: the tensors that a leaf of an open axis declared, kept in a module under the leaf's own names."""

from collections.abc import Callable, Mapping
from typing import Any, Self

import torch
from torch import Tensor, nn

from anyformer.parts.exact import Exact
from anyformer.specs.axes import Leaf, ParamSpec


class LeafModule(Exact):
    """Parameters and constants of one leaf. Constants stay in fp64 whatever dtype the model is moved to."""

    def __init__(
        self, leaf: Leaf, weights: Mapping[str, ParamSpec], constants: Mapping[str, Any] | None = None
    ) -> None:
        super().__init__()
        self.leaf = leaf
        self._constants = dict(constants or {})
        self.exact = tuple(name for name, weight in weights.items() if weight.exact)
        for name, weight in weights.items():
            self.register_parameter(name, nn.Parameter(torch.empty(weight.shape)))
        for name, values in self._constants.items():
            self.register_buffer(name, _constant(values, torch.get_default_device()), persistent=False)

    def tensors(self) -> dict[str, Tensor]:
        """All of them by name: what the leaf's hooks call `own`."""
        tensors: dict[str, Any] = {**self._parameters, **self._buffers}
        return tensors

    def replace(self, name: str, values: Any) -> None:
        """Other numbers for a constant."""
        self._constants[name] = values
        held: Any = self._buffers[name]
        self._buffers[name] = _constant(values, held.device)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        super()._apply(fn, recurse)
        for name, values in self._constants.items():
            moved: Any = self._buffers[name]
            # A cast or an uninitialised copy must not reach the constants.
            self._buffers[name] = _constant(values, moved.device)
        return self

    def extra_repr(self) -> str:
        sizes = [f"{name} {'x'.join(map(str, p.shape))}" for name, p in self.named_parameters(recurse=False)]
        return ", ".join([self.leaf.kind, *sizes])


def _constant(values: Any, device: torch.device) -> Tensor:
    """Exact numbers, in the finest dtype that the device has."""
    return torch.tensor(values, dtype=torch.float32 if device.type == "mps" else torch.float64, device=device)
