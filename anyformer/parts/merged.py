"""Merged maps: projections that read the same input as one product, over one tensor that holds all their weights.

The plain parameters become views of that tensor, so nothing is kept twice, and names, checkpoints and optimizers see
what they saw before.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from anyformer.kernels import few
from anyformer.kernels.few import NormTerms
from anyformer.parts.linear import Linear


class Merged:
    """The weights of one or more maps, one below the other."""

    def __init__(self, maps: Sequence[Linear]) -> None:
        self.maps = tuple(maps)
        self.weight_OI, self.bias_O = maps[0].weight.detach(), None
        if len(maps) > 1:
            # Not inference tensors, even if this is called where gradients are off for good: they are parameters.
            with torch.inference_mode(False), torch.no_grad():
                self.weight_OI = _one([m.weight for m in maps])
                if any(m.bias is not None for m in maps):
                    self.bias_O = _one([m.bias for m in maps], [m.weight[:, 0] for m in maps])
        elif maps[0].bias is not None:
            self.bias_O = maps[0].bias.detach()

    def holds(self) -> bool:
        """Whether the parameters still are where they were put."""
        at = 0
        for m in self.maps:
            out = m.weight.shape[0]
            if not _same(m.weight, self.weight_OI[at : at + out]):
                return False
            if m.bias is not None and (self.bias_O is None or not _same(m.bias, self.bias_O[at : at + out])):
                return False
            at += out
        return True

    def read(self, x_ND: Tensor, norm: NormTerms | None) -> Tensor:
        """What all maps give for the normed input, side by side."""
        return few.norm_linear(x_ND, norm, self.weight_OI, self.bias_O)

    def add(self, x_NI: Tensor, residual_NO: Tensor, *, over: bool = False) -> Tensor:
        """The residual with what the map gives; `over`: it may be written over."""
        return few.linear_add(x_NI, self.weight_OI, self.bias_O, residual_NO, over=over)


def why_not(maps: Sequence[nn.Module], shared: set[int]) -> str | None:
    """Why the weights of these maps can't become one tensor; `shared` are addresses that several modules use."""
    for m in maps:
        if type(m) is not Linear:
            return f"it has a {type(m).__name__} for a Linear"
        for p in m.parameters():
            if type(p) is not nn.Parameter or type(p.data) is not Tensor:
                return f"a parameter is a {type(p.data).__name__}"
            if not p.is_contiguous() or p.data_ptr() in shared:
                return "a parameter is used in several places"
    tensors = [p for m in maps for p in m.parameters()]
    if any(p.is_inference() for p in tensors):
        return "it was made in inference mode, and such a parameter can't be moved"
    if len({(p.dtype, p.device) for p in tensors}) > 1:
        return "its projections differ in dtype or device"
    if any(p.is_meta for p in tensors):
        return "it is on the meta device and has no weights"
    return None


def _one(parts: Sequence[nn.Parameter | None], like: Sequence[Tensor] | None = None) -> Tensor:
    """One tensor of all parts, which become views of it; where there is none, zeros like its stand-in."""
    found = [torch.zeros_like(like[i]) if p is None and like else p for i, p in enumerate(parts)]
    whole = torch.cat([part.detach() for part in found if part is not None])
    at = 0
    for p, part in zip(parts, found, strict=True):
        size = 0 if part is None else part.shape[0]
        if p is not None:
            p.data = whole[at : at + size]
        at += size
    return whole


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
