"""Experts: tokens through the few networks that a router chose for them, of many of the same shape.

Four ways to the same numbers. `slices` sorts the choices by expert and gives each expert its tokens: least work, but it
must know how many there are. The others have shapes that don't depend on values, so that they can be compiled or
captured: `gathered` fetches the weights of each choice (few tokens), `grouped` is one product of a sorted list with
all experts (16-bit and fp32, torch's grouped_mm), and `everywhere` sends every token through every expert.
"""

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.kernels.cuda_graph import fixed_shapes
from anyformer.kernels.precision import product_dtype


class Stacked(NamedTuple):
    """A linear map of each expert: weights (E, out, in) and biases (E, out)."""

    weight: Tensor
    bias: Tensor | None


class Work(NamedTuple):
    """What is to be done with each token."""

    x_ND: Tensor
    chosen_NK: Tensor
    """Numbers of the experts, all different for one token."""
    share_NK: Tensor
    """What each chosen expert counts."""
    inputs: Sequence[Stacked]
    down: Stacked
    combine: Callable[..., Tensor]
    """From the input maps to the inner activation."""
    on_input: bool
    """Whether a share multiplies what its expert reads, not what it gives."""

    @property
    def experts(self) -> int:
        """How many there are."""
        return self.down.weight.shape[0]


def way_for(work: Work) -> Callable[[Work], Tensor]:
    """The fastest way that may be gone here to (N,D): the sum of what a token's experts give, each by its share."""
    kind = work.x_ND.device.type
    # A stream that is being captured can't tell how many tokens an expert has.
    fixed = fixed_shapes(kind)
    if (fixed or kind == "cuda") and work.chosen_NK.numel() <= work.experts:
        return gathered
    if (fixed or kind == "cuda") and groups(work):
        return grouped
    return everywhere if fixed else slices


def slices(work: Work) -> Tensor:
    """Expert after expert, each with its own tokens."""
    order = work.chosen_NK.flatten().argsort(stable=True)
    counts: list[int] = work.chosen_NK.flatten().bincount(minlength=work.experts).tolist()
    # Unbound and not indexed: the gradient of an index is as large as all experts, for each of them.
    inputs, down = [_each(m) for m in work.inputs], _each(work.down)
    found: list[Tensor] = []
    for i, x in enumerate(_read(work, order).split(counts)):
        if counts[i]:
            inner = work.combine(*[F.linear(x, *maps[i]) for maps in inputs])
            found.append(F.linear(inner, *down[i]))
    y = torch.cat(found) if found else work.x_ND.new_zeros(0, work.down.weight.shape[1])
    return _together(work, y, order)


def gathered(work: Work) -> Tensor:
    """The weights of every choice, side by side."""
    index = work.chosen_NK.flatten()
    x = _read(work, torch.arange(index.shape[0], device=index.device))

    def through(maps: Stacked, x: Tensor) -> Tensor:
        y = torch.bmm(maps.weight[index], x[..., None])[..., 0]
        return y if maps.bias is None else y + maps.bias[index]

    y = through(work.down, work.combine(*[through(maps, x) for maps in work.inputs]))
    return _weighed(work, y.view(*work.chosen_NK.shape, -1))


def grouped(work: Work) -> Tensor:
    """One product of all choices, sorted by expert, with all experts."""
    expert, order = work.chosen_NK.flatten().sort(stable=True)
    numbers = torch.arange(work.experts, device=expert.device)
    ends = torch.searchsorted(expert, numbers, right=True).to(torch.int32)
    dtype = product_dtype(work.x_ND)

    def through(maps: Stacked, x: Tensor) -> Tensor:
        y = F.grouped_mm(x.to(dtype), maps.weight.to(dtype).mT, offs=ends)
        return y if maps.bias is None else y + maps.bias.to(dtype)[expert]

    x = _read(work, order)
    return _together(work, through(work.down, work.combine(*[through(maps, x) for maps in work.inputs])), order)


def groups(work: Work) -> bool:
    """Whether torch's grouped product takes these tensors: rows must begin at multiples of 16 bytes."""
    dtype, device = product_dtype(work.x_ND), work.x_ND.device
    if device.type == "cuda":
        served = dtype == torch.bfloat16 and torch.cuda.get_device_capability(device) >= (8, 0)
    else:
        # A compiler knows it in bf16 only.
        served = device.type == "cpu" and (dtype == torch.bfloat16 or not torch.compiler.is_compiling())
        served = served and dtype in (torch.float32, torch.bfloat16, torch.float16)
    return served and all(size * dtype.itemsize % 16 == 0 for size in work.down.weight.shape[1:])


def everywhere(work: Work) -> Tensor:
    """Every token through every expert; those that were not chosen count nothing."""
    none_NE = work.share_NK.new_zeros(work.x_ND.shape[0], work.experts)
    share_EN1 = none_NE.scatter(1, work.chosen_NK, work.share_NK).T[..., None]
    x_END = work.x_ND[None]
    if work.on_input:
        x_END = (x_END * share_EN1).to(work.x_ND.dtype)
        share_EN1 = none_NE.scatter(1, work.chosen_NK, torch.ones_like(work.share_NK)).T[..., None]

    def through(maps: Stacked, x: Tensor) -> Tensor:
        y = torch.matmul(x, maps.weight.mT)
        return y if maps.bias is None else y + maps.bias[:, None]

    y_END = through(work.down, work.combine(*[through(maps, x_END) for maps in work.inputs]))
    return (y_END * share_EN1).sum(0).to(y_END.dtype)


def _each(maps: Stacked) -> list[tuple[Any, Any]]:
    """Weight and bias of each expert."""
    biases: Sequence[Any] = [None] * maps.weight.shape[0] if maps.bias is None else maps.bias.unbind()
    return list(zip(maps.weight.unbind(), biases, strict=True))


def _read(work: Work, order: Tensor) -> Tensor:
    """What the choices read, in this order of (token, choice)."""
    x = work.x_ND[order // work.chosen_NK.shape[1]]
    return (x * work.share_NK.flatten()[order, None]).to(x.dtype) if work.on_input else x


def _together(work: Work, y: Tensor, order: Tensor) -> Tensor:
    """The sum for each token, from outputs in this order."""
    back = torch.empty_like(order).scatter_(0, order, torch.arange(order.shape[0], device=order.device))
    return _weighed(work, y[back].view(*work.chosen_NK.shape, -1))


def _weighed(work: Work, y_NKD: Tensor) -> Tensor:
    weighed = y_NKD if work.on_input else y_NKD * work.share_NK[..., None]
    return weighed.sum(1).to(y_NKD.dtype)
