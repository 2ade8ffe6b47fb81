"""Our own linear map: one weight, and no bias unless asked; and the random numbers of fresh weights.

It is one of torch's, so that tools that look for those find it. It allocates; `anyformer.model.build` fills it by the
spec's init.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

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


class Linear(nn.Linear):
    """x W^T (+ b), with W of shape (out, in)."""

    def __init__(self, into: int, out: int, *, bias: bool = False) -> None:
        # Past nn.Linear's own, which would draw numbers.
        nn.Module.__init__(self)
        self.in_features, self.out_features = into, out
        self.weight = nn.Parameter(torch.empty(out, into))
        self.register_parameter("bias", nn.Parameter(torch.empty(out)) if bias else None)

    def reset_parameters(self) -> None:
        """Fresh weights of variance 2/(d_in + d_out), cut at 3 sigma, and a bias of 0."""
        redraw(self.weight, (2 / (self.in_features + self.out_features)) ** 0.5)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(self, input: Tensor) -> Tensor:
        own: Any = self._parameters
        if own.get("weight") is not None and "bias" in own:
            # Past nn.Module.__getattr__, which takes longer than a small product's own call.
            return F.linear(input, own["weight"], own["bias"])
        # Parametrised, pruned or elsewhere: whoever took a parameter away left an attribute of its name.
        return F.linear(input, self.weight, self.bias)

    def extra_repr(self) -> str:
        out, into = self.weight.shape
        return f"{into} -> {out}" + (", bias" if self.bias is not None else "")
