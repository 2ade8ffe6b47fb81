"""Random numbers for fresh weights: what an init's rule says, in fp32 and then rounded."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from anyformer.specs.axes import Normal


def drawn(
    rule: Normal, shape: tuple[int, ...], device: torch.device, generator: torch.Generator | None = None
) -> Tensor:
    """A tensor of fp32 from a generator, or from torch's own."""
    tensor = torch.empty(shape, dtype=torch.float32, device=device)
    if rule.cut is None:
        return tensor.normal_(0.0, rule.std, generator=generator)
    bound = rule.cut * rule.std
    return nn.init.trunc_normal_(tensor, 0.0, rule.std, -bound, bound, generator=generator)


@torch.no_grad()
def redraw(parameter: Tensor, std: float) -> None:
    """Fill a parameter as the house does by default: a normal cut at 3 sigma. On the meta device nothing happens."""
    if not parameter.is_meta:
        parameter.copy_(drawn(Normal(std=std, cut=3.0), tuple(parameter.shape), parameter.device))
