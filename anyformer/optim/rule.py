"""Update rules, how AdamW and Muon move parameters by their gradients; and the norm of these, clipped.

A rule keeps nothing itself. What it remembers of a parameter lies in named slots beside it, so that it can be saved
and read back by name. It works on what a process holds of each tensor, and asks for the whole where it must.
"""

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw

from anyformer.errors import InputError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor

Update = Callable[[], None]

lists: Any = torch
"""Operations on lists of tensors, as torch's own optimizers call them; its types do not name them."""
CAST = 2**26
"""Gradients that AdamW widens to float32 at once, in numbers: more would take as much memory as the weights."""
QUINTIC = (3.4445, -4.7750, 2.0315)
"""Coefficients of x -> a x + b x^3 + c x^5: five rounds bring singular values from (0.001, 1] to about 0.7 ... 1.2."""
STACK = {"cpu": 2**18}
"""Numbers of a stack. On a CPU they stay in its caches, and there are several stacks for several cores."""
LARGE_STACK = 2**26
"""The same on an accelerator, where only memory is a limit."""


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

    def new(self, name: str, parameter: nn.Parameter, *, master: bool) -> OptimizedParam:
        """A parameter that was never moved. master: what is narrower than float32 is moved in a float32 copy."""
        weight, slots = parameter.detach(), dict[str, Tensor]()
        if master and weight.dtype.itemsize < 4:
            slots["master"] = weight = weight.to(torch.float32)
        return OptimizedParam(name=name, parameter=parameter, slots=slots | self.fresh(weight))


def as_dtensor(tensor: Tensor) -> "DTensor | None":
    """A tensor that is cut over processes; None for a plain one."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return None
    # Takes a second to import, which a run of one process need not wait for.
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def local(tensor: Tensor) -> Tensor:
    """What this process holds of a tensor: all of it, unless it is cut over several."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return tensor
    sharded = as_dtensor(tensor)
    return tensor if sharded is None else sharded.to_local()


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


class AdamWRule(Rule):
    """Running means of gradients and of their squares, and the number of steps that made them; one fused kernel."""

    def __init__(self, *, betas: tuple[float, float], eps: float) -> None:
        self.betas, self.eps = betas, eps

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        # The count lies beside the weights, where the fused kernel reads it without waiting.
        step = torch.zeros((), dtype=torch.float32, device=weight.device)
        return {"exp_avg": torch.zeros_like(weight), "exp_avg_sq": torch.zeros_like(weight), "step": step}

    def updates(self, moved: Sequence[OptimizedParam], pace: StepSize) -> list[tuple[int, Update]]:
        cast = any(each.weight.dtype != each.parameter.dtype for each in moved)
        cut = pieces(moved, CAST) if cast else [list(moved)]
        return [(sum(p.weight.numel() for p in some), functools.partial(self._move, some, pace)) for some in cut]

    @torch.no_grad()
    def _move(self, moved: list[OptimizedParam], pace: StepSize) -> None:
        # Made for loss scaling: the kernel leaves weights, means and steps alone where it reads 1.
        found_inf = None if pace.skip is None else pace.skip.to(torch.float32)
        adamw(
            [local(each.weight) for each in moved], [each.gradient for each in moved],
            [local(each.slots["exp_avg"]) for each in moved], [local(each.slots["exp_avg_sq"]) for each in moved], [],
            [each.slots["step"] for each in moved], fused=True, found_inf=found_inf, amsgrad=False, maximize=False,
            beta1=self.betas[0], beta2=self.betas[1], lr=pace.rate, weight_decay=pace.decay, eps=self.eps,
        )  # fmt: skip
        for each in moved:
            each.finish()


def orthogonalised(g_NRC: Tensor, rounds: int = 5) -> Tensor:
    """The orthogonal factor of each matrix of a stack, approximately; in bf16 on an accelerator, fp32 on a CPU."""
    a, b, c = QUINTIC
    tall = g_NRC.shape[-2] > g_NRC.shape[-1]
    x = g_NRC.mT if tall else g_NRC
    if x.device.type == "cpu":
        x = x.to(torch.promote_types(x.dtype, torch.float32))
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.device.type != "cpu":
        x = x.to(torch.bfloat16)
    for _ in range(rounds):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    x = x.to(g_NRC.dtype)
    return x.mT if tall else x


class MuonRule(Rule):
    """Nesterov momentum, made orthogonal (Jordan et al. 2024) and scaled to the root mean square that Adam would give.

    The update of a matrix is the nearest matrix with all singular values equal to one, found by a few Newton-Schulz
    steps. Matrices of one shape are stacked and done in one batched product: small models spend their time on calls.
    The factor 0.2 sqrt(max(rows, columns)) (Liu et al. 2025) lets one learning rate and one weight decay serve
    matrices of every shape, and AdamW beside it. A parameter of more dimensions is a stack of matrices.
    """

    def __init__(self, *, momentum: float, rounds: int = 5) -> None:
        self.momentum, self.rounds = momentum, rounds

    def fresh(self, weight: Tensor) -> dict[str, Tensor]:
        if weight.dim() < 2:
            raise TypeError(f"Muon is for matrices, got a parameter of shape {tuple(weight.shape)}")
        return {"momentum": torch.zeros_like(weight)}

    def updates(self, moved: Sequence[OptimizedParam], pace: StepSize) -> list[tuple[int, Update]]:
        alike: dict[tuple[int, int, torch.dtype, torch.device], list[OptimizedParam]] = {}
        for each in moved:
            short, long = sorted(each.weight.shape[-2:])
            alike.setdefault((short, long, each.weight.dtype, each.weight.device), []).append(each)
        found: list[tuple[int, Update]] = []
        for (short, long, _, device), some in alike.items():
            for stack in pieces(some, STACK.get(device.type, LARGE_STACK)):
                work = short * sum(each.weight.numel() for each in stack)
                found.append((work, functools.partial(self._move, stack, long, pace)))
        return found

    @torch.no_grad()
    def _move(self, moved: list[OptimizedParam], long: int, pace: StepSize) -> None:
        gradients = [each.gradient for each in moved]
        kept = [local(each.slots["momentum"]) for each in moved]
        after = lists._foreach_lerp(kept, gradients, 1 - self.momentum)
        ahead = lists._foreach_lerp(gradients, after, self.momentum)
        lists._foreach_copy_(kept, after if pace.skip is None else _all_or_none(pace.skip, kept, after))
        # A wide matrix has the same orthogonal factor as its tall twin, so both kinds share a stack.
        wide = [_wide(_whole(each, found)) for each, found in zip(moved, ahead, strict=True)]
        update_NRC = orthogonalised(torch.cat(wide), self.rounds) * (pace.rate * (0.2 * long**0.5))
        shrunk = 1 - pace.rate * pace.decay
        if pace.skip is not None:
            # w * 1 - 0 is w to the bit, and what is not finite is gone.
            update_NRC = chosen(pace.skip, torch.zeros_like(update_NRC), update_NRC)
            one = torch.ones((), dtype=update_NRC.dtype, device=update_NRC.device)
            shrunk = chosen(pace.skip, one, one * shrunk)
        weights = [local(each.weight) for each in moved]
        steps = update_NRC.split([stack.shape[0] for stack in wide])
        lists._foreach_mul_(weights, shrunk)
        lists._foreach_sub_(weights, [_share(each, step) for each, step in zip(moved, steps, strict=True)])
        for each in moved:
            each.finish()


def _all_or_none(skip: Tensor, old: list[Tensor], new: list[Tensor]) -> list[Tensor]:
    """The old tensors where a step is skipped, with a few calls for all of them."""
    picked = chosen(skip, torch.cat([t.flatten() for t in old]), torch.cat([t.flatten() for t in new]))
    parts = picked.split([t.numel() for t in old])
    return [part.view(t.shape) for part, t in zip(parts, old, strict=True)]


def _wide(whole: Tensor) -> Tensor:
    """A parameter as a stack of matrices that lie on their longer side."""
    stack = whole.reshape(-1, *whole.shape[-2:])
    return stack.mT if stack.shape[-2] > stack.shape[-1] else stack


def _whole(each: OptimizedParam, part: Tensor) -> Tensor:
    """All of what processes hold in parts: the factor of a part is not a part of the factor."""
    weight = as_dtensor(each.weight)
    if weight is None:
        return part
    mesh, where, shape, stride = weight.device_mesh, weight.placements, weight.shape, weight.stride()
    return type(weight).from_local(part, mesh, where, run_check=False, shape=shape, stride=stride).full_tensor()


def _share(each: OptimizedParam, stack: Tensor) -> Tensor:
    """What this process holds of an update, in the shape of its weight."""
    shape, weight = each.weight.shape, as_dtensor(each.weight)
    whole = (stack.mT if shape[-2] > shape[-1] else stack).reshape(shape)
    if weight is None:
        return whole
    from torch.distributed.tensor import Replicate

    # Every process made the same update, so each takes its part and nothing is sent.
    everywhere = [Replicate()] * weight.device_mesh.ndim
    update = type(weight).from_local(whole.contiguous(), weight.device_mesh, everywhere, run_check=False)
    return update.redistribute(placements=weight.placements).to_local()


def clip(parameters: Iterable[nn.Parameter], limit: float = math.inf) -> Tensor:
    """Clip the norm of all gradients to `limit`; the norm before, without waiting for it."""
    every = list(parameters)
    gradients = [g for p in every if (g := settled(p)) is not None]
    if not gradients:
        return torch.zeros((), device=every[0].device if every else None)
    norm = total_norm(gradients)
    if limit != math.inf:
        # As torch does it: never up, and the tiny number keeps 0 / 0 away.
        factor = (limit / (norm + 1e-6)).clamp(max=1.0)
        for device in {gradient.device for gradient in gradients}:
            lists._foreach_mul_([local(g) for g in gradients if g.device == device], factor.to(device))
    return norm


def total_norm(tensors: list[Tensor]) -> Tensor:
    """The norm of all numbers of all tensors, as a float32 (or float64) scalar on their device; alike on all processes."""
    alike: dict[Any, list[Tensor]] = {}
    for tensor in tensors:
        # bf16 and float32 are summed alike; float64 or another device is summed on its own.
        key = _cut(tensor), torch.promote_types(tensor.dtype, torch.float32), tensor.device
        alike.setdefault(key, []).append(local(tensor))
    norms: list[Tensor] = []
    for (cut, wide, _), parts in alike.items():
        # The sums run in float32 anyway; this keeps their results from being rounded for each tensor.
        norm = torch.linalg.vector_norm(torch.stack(lists._foreach_norm(parts, 2.0, dtype=wide)))
        if cut is not None:
            # Of these tensors each process holds a part.
            mesh, directions = cut
            square = norm.square()
            for direction in directions:
                torch.distributed.all_reduce(square, group=mesh.get_group(direction))
            norm = square.sqrt()
        norms.append(norm)
    if len(norms) == 1:
        return norms[0]
    widest = functools.reduce(torch.promote_types, (norm.dtype for norm in norms))
    return torch.linalg.vector_norm(torch.stack([norm.to(norms[0].device, widest) for norm in norms]))


def _cut(tensor: Tensor) -> Any:
    """The processes that hold a tensor, and along which of their directions it is cut; None if it is whole."""
    held = as_dtensor(tensor)
    # A dimension that is cut twice has a placement of its own, which says that it is no shard.
    cut = () if held is None else tuple(i for i, where in enumerate(held.placements) if not where.is_replicate())
    return (held.device_mesh, cut) if held is not None and cut else None


def settled(parameter: nn.Parameter) -> Tensor | None:
    """The gradient, cut as its parameter is; what several processes have still to add up is added here."""
    gradient = None if parameter.grad is None else as_dtensor(parameter.grad)
    data = None if gradient is None else as_dtensor(parameter.data)
    if gradient is not None and data is not None and gradient.placements != data.placements:
        parameter.grad = gradient.redistribute(placements=data.placements)
    return parameter.grad


def clip_grad_norm_(parameters: Tensor | Iterable[Tensor], max_norm: float = math.inf) -> Tensor:
    """As torch.nn.utils.clip_grad_norm_, with sums in float32 whatever the gradients' dtype; the norm before clipping.

    A norm that is not finite makes every gradient NaN: look at it before the step. Without a limit it only measures.
    """
    if isinstance(max_norm, bool) or not max_norm > 0:
        raise InputError(f"clip_grad_norm_: max_norm {max_norm!r} is not above 0")
    given: Any = [parameters] if isinstance(parameters, Tensor) else parameters
    return clip(given, max_norm)
