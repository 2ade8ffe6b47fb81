"""The optimizers of a model: each parameter with its rule, its rate and what is remembered of it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.errors import CheckpointError, TrainingError, nearest
from anyformer.model.models import Model
from anyformer.specs.weights import weights
from anyformer.train.crew import Crew
from anyformer.train.rates import GROUPS, Group, Optim, group_of
from anyformer.train.rule import Moved, Pace, Rule, lists, local

NAMED = 5
"""So many keys of a state that does not fit are named."""


class Optimizers:
    """All rules as one: a step, a factor on all learning rates, and no gradients left over.

    Made when the model has its first weights, on their device and cut as they will be: copies are taken here.
    """

    def __init__(self, model: Model, optim: Optim | None = None) -> None:
        self.optim = optim = Optim() if optim is None else optim
        inside, rest = optim.leaf.rule(optim), optim.adamw()
        self.rules: dict[Group, Rule] = {group: inside if group == "matrices" else rest for group in GROUPS}
        self.groups: dict[Group, list[Moved]] = {group: [] for group in GROUPS}
        self.all: list[Moved] = []
        """In the order of the model's parameters."""
        inventory = weights(model.spec)
        for name, parameter in model.named_parameters():
            group = group_of(inventory[name].role)
            moved = _moved(name, parameter, self.rules[group], optim.master)
            self.groups[group].append(moved)
            self.all.append(moved)

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
        """Take over what was written into parameters since the last step, where a float32 copy of them is moved.

        Number by number, since no counter knows what went through `.data`; where they agree the copy has more digits.
        """
        for each in self.all:
            if "master" in each.slots:
                weight, master = local(each.parameter.detach()), local(each.slots["master"])
                master.copy_(torch.where(weight == master.to(weight.dtype), master, weight.to(master.dtype)))

    def clip(self, limit: float = math.inf) -> Tensor:
        """Shrink all gradients so that their norm is at most `limit`; answers the norm before, without waiting for it."""
        gradients = [g for p in self.parameters() if (g := _settled(p)) is not None]
        if not gradients:
            return torch.zeros((), device=self.all[0].parameter.device)
        norm = total_norm(gradients)
        if limit != math.inf:
            # As torch does it: never up, and the tiny number keeps 0 / 0 away.
            factor = (limit / (norm + 1e-6)).clamp(max=1.0)
            lists._foreach_mul_([local(g) for g in gradients], factor)
        return norm

    def step(self, factor: float | Tensor, crew: Crew | None = None, skip: Tensor | None = None) -> None:
        """Move the parameters with all learning rates at `factor` of their peak, and forget the gradients.

        Where `skip` is 1, weights and all that is remembered stay as they are to the bit, even if gradients hold NaN.
        """
        self.follow()
        work: list[tuple[int, int]] = []
        updates = []
        for group, members in self.groups.items():
            moved = [each for each in members if _settled(each.parameter) is not None]
            if moved:
                pace = Pace(rate=self.optim.rate(group) * factor, decay=getattr(self.optim.decay, group), skip=skip)
                for size, update in self.rules[group].updates(moved, pace):
                    work.append((-size, len(updates)))
                    updates.append(update)
        # The longest first, so that a crew does not wait for it at the end.
        ordered = [updates[i] for _, i in sorted(work)]
        for _ in (crew or Crew()).map(lambda update: update(), ordered):
            pass
        self.forget()

    def forget(self) -> None:
        """Drop all gradients."""
        for parameter in self.parameters():
            parameter.grad = None

    def parameters(self) -> Iterator[nn.Parameter]:
        """Everything that is moved, in the order of the model."""
        return (each.parameter for each in self.all)

    def state(self) -> dict[str, Tensor]:
        """What is remembered, as `parameter/slot`. These are the tensors themselves: copy them before the next step."""
        return {f"{each.name}/{slot}": tensor for each in self.all for slot, tensor in each.slots.items()}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` answered, to the bit. Whatever does not fit is refused before anything changes."""
        own = self.state()
        check(state, own, "the optimizer's state")
        take(state, own)


def check(given: Mapping[str, Tensor], wanted: Mapping[str, Tensor], what: str) -> None:
    """Refuse a state whose names, shapes or dtypes are not those that are wanted."""
    wrong = [f"{key}: is missing" for key in wanted if key not in given]
    wrong += [f"{key}: is unknown{_near(key, wanted)}" for key in given if key not in wanted]
    for key, tensor in wanted.items():
        found = given.get(key)
        if found is not None and (found.shape != tensor.shape or found.dtype != tensor.dtype):
            have, want = (f"{tuple(t.shape)} of {t.dtype}" for t in (found, tensor))
            wrong.append(f"{key}: is {have}, and must be {want}")
    if wrong:
        more = [f"and {len(wrong) - NAMED} more"] if len(wrong) > NAMED else []
        title = f"{what} does not fit this model and its config; both must be as they were:"
        raise CheckpointError("\n  ".join([title, *wrong[:NAMED], *more]))


@torch.no_grad()
def take(given: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> None:
    """Copy a state that was checked into the tensors that hold it."""
    for key, tensor in own.items():
        value = given[key]
        if type(tensor) is not Tensor and type(value) is Tensor:
            from torch.distributed.tensor import DTensor, distribute_tensor

            # A whole tensor for one that is cut over processes: each takes its part.
            if isinstance(tensor, DTensor):
                value = distribute_tensor(value.to(tensor.device), tensor.device_mesh, tensor.placements)
        tensor.copy_(value)


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all numbers of all tensors, as a float32 (or float64) scalar on their device; alike on all processes."""
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        alike.setdefault(_cut(tensor), []).append(local(tensor))
    norms = [_reduced(_norm(parts), cut) for cut, parts in alike.items()]
    return norms[0] if len(norms) == 1 else torch.linalg.vector_norm(torch.stack(norms))


def _norm(tensors: list[Tensor]) -> Tensor:
    # The sums run in float32 anyway; this keeps their results from being rounded for each tensor.
    wide = torch.promote_types(tensors[0].dtype, torch.float32)
    return torch.linalg.vector_norm(torch.stack(lists._foreach_norm(tensors, 2.0, dtype=wide)))


def _cut(tensor: Tensor) -> Any:
    """The processes that hold a tensor, and along which of their directions it is cut; None if it is whole."""
    if type(tensor) is Tensor:
        return None
    from torch.distributed.tensor import DTensor

    if not isinstance(tensor, DTensor):
        return None
    # A dimension that is cut twice has a placement of its own, which says that it is no shard.
    return tensor.device_mesh, tuple(i for i, where in enumerate(tensor.placements) if not where.is_replicate())


def _reduced(norm: Tensor, cut: Any) -> Tensor:
    """The norm of tensors of which each process holds a part."""
    if cut is None or not cut[1]:
        return norm
    mesh, directions = cut
    square = norm.square()
    for direction in directions:
        torch.distributed.all_reduce(square, group=mesh.get_group(direction))
    return square.sqrt()


def _settled(parameter: nn.Parameter) -> Tensor | None:
    """The gradient, cut as its parameter is; what several processes have still to add up is added here."""
    gradient = parameter.grad
    if gradient is None or type(gradient) is Tensor:
        return gradient
    from torch.distributed.tensor import DTensor

    data = parameter.data
    if isinstance(gradient, DTensor) and isinstance(data, DTensor) and gradient.placements != data.placements:
        parameter.grad = gradient = gradient.redistribute(placements=data.placements)
    return gradient


def _moved(name: str, parameter: nn.Parameter, rule: Rule, master: bool) -> Moved:
    weight, slots = parameter.detach(), dict[str, Tensor]()
    if master and weight.dtype.itemsize < 4:
        slots["master"] = weight = weight.to(torch.float32)
    return Moved(name=name, parameter=parameter, slots=slots | rule.fresh(weight))


def _near(key: str, known: Mapping[str, Tensor]) -> str:
    """The nearest right spelling, without the list of all keys, which may be thousands."""
    return nearest(key, known).split(" (known")[0].rstrip(";")
