"""The optimizers of a model: each parameter with its rule, its rate and what is remembered of it."""

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from anyformer.errors import InputError, TrainingError
from anyformer.model.model import Model
from anyformer.optim.grouping import GROUPS, Group, group_of
from anyformer.optim.rule import OptimizedParam, Rule, StepSize, Update, clip, lists, local, settled
from anyformer.specs.parameters import weights
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.optim_config import Optim


class Optimizers:
    """All rules as one, made when the model has its first weights, on their device: master copies are taken here."""

    def __init__(self, model: Model, optim: Optim | None = None) -> None:
        self.optim = optim = Optim() if optim is None else optim
        inside, rest = optim.leaf.rule(optim), optim.adamw()
        self.rules: dict[Group, Rule] = {group: inside if group == "matrices" else rest for group in GROUPS}
        self.groups: dict[Group, list[OptimizedParam]] = {group: [] for group in GROUPS}
        self.all: list[OptimizedParam] = []
        """In the order of the model's parameters."""
        self.width_factors: dict[str, float] = {}
        """On the learning rate of each parameter, for the width of this model: see `Optim.width_factor`."""
        inventory = weights(model.spec)
        for name, parameter in model.named_parameters():
            role = inventory[name].role
            group = group_of(role)
            self.width_factors[name] = optim.width_factor(role, model.spec.width)
            each = self.rules[group].new(name, parameter, master=optim.master)
            self.groups[group].append(each)
            self.all.append(each)

    def check(self, model: nn.Module) -> None:
        """Refuse a model with parameters that are not moved here: they would stay as they are without a word."""
        known = {id(parameter) for parameter in self.parameters()}
        other = [name for name, parameter in model.named_parameters() if id(parameter) not in known]
        if other:
            more = f" and {len(other) - 1} more" if len(other) > 1 else ""
            raise TrainingError(
                f"{other[0]}{more}: replaced since the optimizers were made, so they would not be trained; load values in "
                "place (load_state_dict without assign=True), or make new optimizers"
            )

    def follow(self) -> None:
        """Take over what was written into parameters since the last step, where a float32 copy of them is moved."""
        for each in self.all:
            each.refresh()

    def clip(self, limit: float = math.inf) -> Tensor:
        """Clip the norm of all gradients to `limit`; the norm before, without waiting for it."""
        return clip(self.parameters(), limit)

    def step(self, factor: float | Tensor, workers: CpuWorkers | None = None, skip: Tensor | None = None) -> None:
        """Update with all learning rates at `factor` of their peak; where `skip` is 1, nothing changes, even by NaN."""
        self.follow()
        updates: list[tuple[int, Update]] = []
        for group, members in self.groups.items():
            going: dict[float, list[OptimizedParam]] = {}
            for each in members:
                if settled(each.parameter) is not None:
                    going.setdefault(self.width_factors[each.name], []).append(each)
            for times, some in going.items():
                rate, decay = self.optim.rate(group) * times, getattr(self.optim.decay, group) / times
                updates += self.rules[group].updates(some, StepSize(rate=rate * factor, decay=decay, skip=skip))
        # The longest first, so that no worker waits for it at the end; the sort is stable.
        updates.sort(key=lambda update: -update[0])
        for _ in (workers or CpuWorkers()).map(lambda update: update[1](), updates):
            pass
        self.forget()

    def forget(self) -> None:
        for parameter in self.parameters():
            parameter.grad = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Everything that is moved, in the order of the model."""
        return (each.parameter for each in self.all)

    def state(self) -> dict[str, Tensor]:
        """What is remembered, as `parameter/slot`. These are the tensors themselves: copy them before the next step."""
        return {f"{each.name}/{slot}": tensor for each in self.all for slot, tensor in each.slots.items()}


class Ema:
    """After t updates: (1 - f) sum of f^(t - i) w_i, divided by 1 - f^t, so that the weights count 1 in all.

    The start of a run, whose weights are noise, has no part in it. The mean is kept in float32 or better.
    """

    def __init__(self, model: Model, factor: float) -> None:
        if not 0 < factor < 1:
            raise InputError(f"ema: {factor:g} is not between 0 and 1")
        self.factor = factor
        self.means: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            # Before the first update the mean is what the weights are.
            self.means[name] = parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
        # On the host: the weight of a step must not wait for a device.
        self.steps = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def update(self, model: Model) -> None:
        """Take the weights after a step into the mean. A step that was skipped counts its weights once more."""
        self.steps += 1
        weight = (1 - self.factor) / (1 - self.factor ** int(self.steps))
        pairs = [(local(self.means[name]), local(p.detach())) for name, p in model.named_parameters()]
        lists._foreach_lerp_([mean for mean, _ in pairs], [p.to(mean.dtype) for mean, p in pairs], weight)

    @contextmanager
    def used(self, model: Model) -> Iterator[Model]:
        """The model with the mean as its weights, which it gives back at the end."""
        own = dict(model.named_parameters())
        before = {name: p.detach().clone() for name, p in own.items()}
        take(self.means, own)
        try:
            yield model
        finally:
            take(before, own)


@torch.no_grad()
def take(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Copy values by name into the tensors that hold them."""
    for name, tensor in own.items():
        tensor.copy_(given[name])
