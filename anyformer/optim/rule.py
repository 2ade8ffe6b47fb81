"""A rule: how one kind of optimizer moves parameters by their gradients.

A rule keeps nothing itself. What it remembers of a parameter lies in named slots beside it, so that it can be saved
and read back by name. It works on what a process holds of each tensor, and asks for the whole where it must.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Update = Callable[[], None]

lists: Any = torch
"""Operations on lists of tensors, as torch's own optimizers call them; its types do not name them."""


@dataclass(frozen=True, kw_only=True)
class OptimizedParam:
    """A parameter, what is moved of it, and what is remembered of it."""

    name: str
    parameter: nn.Parameter
    slots: dict[str, Tensor]

    @property
    def weight(self) -> Tensor:
        """The parameter's own numbers, or a float32 copy of them.

        Looked up each time: an alias that is kept would go on being moved when the parameter lies elsewhere, as after
        `.to(...)`, and the model would learn nothing.
        """
        return self.slots["master"] if "master" in self.slots else self.parameter.detach()

    @property
    def gradient(self) -> Tensor:
        """What this process holds of the gradient, in the numbers of what is moved."""
        if self.parameter.grad is None:
            raise TypeError(f"{self.name} has no gradient")
        found, weight = local(self.parameter.grad), local(self.weight)
        if found.stride() != weight.stride():
            # A fused kernel goes through both by their memory, whatever their strides say.
            return torch.empty_like(weight).copy_(found)
        return found.to(weight.dtype)

    def finish(self) -> None:
        """Round the copy that was moved into the parameter."""
        if "master" in self.slots:
            local(self.parameter.detach()).copy_(local(self.weight))

    @torch.no_grad()
    def refresh(self) -> None:
        """Take over what was written into the parameter since it was moved, where a float32 copy of it is moved.

        Number by number, since no counter knows what went through `.data`; where they agree the copy has more digits.
        """
        if "master" in self.slots:
            weight, master = local(self.parameter.detach()), local(self.slots["master"])
            master.copy_(torch.where(weight == master.to(weight.dtype), master, weight.to(master.dtype)))


@dataclass(frozen=True, kw_only=True)
class StepSize:
    """How far a group goes in one step."""

    rate: float | Tensor
    decay: float
    skip: Tensor | None = None
    """1: nothing may change, neither weights nor slots, whatever the gradients hold; 0 or None: go."""


class Rule(ABC):
    """Moves the parameters of a group."""

    @abstractmethod
    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        """The slots of a parameter that was never moved."""

    @abstractmethod
    def updates(self, moved: Sequence[OptimizedParam], pace: StepSize) -> list[tuple[int, Update]]:
        """A step in pieces that may run at the same time, each with a figure for its work."""


def moved(name: str, parameter: nn.Parameter, rule: Rule, *, master: bool) -> OptimizedParam:
    """A parameter that was never moved. master: what is narrower than float32 is moved in a float32 copy."""
    weight, slots = parameter.detach(), dict[str, Tensor]()
    if master and weight.dtype.itemsize < 4:
        slots["master"] = weight = weight.to(torch.float32)
    return OptimizedParam(name=name, parameter=parameter, slots=slots | rule.fresh(weight))


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, unless it is cut over several."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return tensor
    from torch.distributed.tensor import DTensor

    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def chosen(skip: Tensor | None, old: Tensor, new: Tensor) -> Tensor:
    """The old values where a step is skipped. Picks, never multiplies: new ones may be NaN."""
    return new if skip is None else torch.where(skip > 0, old, new)


def pieces(moved: Sequence[OptimizedParam], most: int) -> list[list[OptimizedParam]]:
    """Neighbours together, up to so many numbers, but at least one parameter each."""
    found: list[list[OptimizedParam]] = []
    size = 0
    for each in moved:
        if not found or size + each.weight.numel() > most:
            found.append([])
            size = 0
        found[-1].append(each)
        size += each.weight.numel()
    return found
