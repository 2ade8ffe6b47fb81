"""Merged maps: projections that read the same input as one product, over one storage that holds all their weights.

The module that owns the projections lays their weights one below the other when it materialises: when it is allocated,
moved or cast, deep-copied, unpickled. Parameters are views of that storage, so nothing is kept twice, and names,
checkpoints and optimizers see plain parameters. Nobody else ever moves a parameter: a product is merged where the
weights lie side by side, and runs map by map where they don't.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from anyformer.kernels import few
from anyformer.kernels.few import NormTerms
from anyformer.parts.linear import Linear


class MergedInputs(nn.Module):
    """A module that owns projections of one input, and keeps their weights in one storage."""

    def inputs(self) -> list[nn.Module]:
        """The projections that read the same input, in the order of their weights."""
        raise TypeError(f"{type(self).__name__} must name its projections of one input")

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        # What was on the meta device has no values to keep.
        filled = not any(p.is_meta for m in self.inputs() for p in m.parameters())
        before = self._places()
        super()._apply(fn, recurse)
        # A cast to what they are moves nothing, and neither does this: somebody may hold their memory.
        if not filled or self._places() != before:
            lay_out(self.inputs(), filled=filled)
        return self

    def _places(self) -> list[int]:
        return [p.data_ptr() for m in self.inputs() for p in m.parameters()]

    def __copy__(self) -> Any:
        # A shallow copy shares the projections with their owner, who alone may move them: __setstate__ would.
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __setstate__(self, state: Any) -> None:
        # A copy and an unpickled module come here when their projections are whole again, each in a storage of its own.
        super().__setstate__(state)
        lay_out(self.inputs())


def lay_out(maps: Sequence[nn.Module], *, filled: bool = True) -> None:
    """Put the weights of these maps one below the other in one storage, unless they are, or can't be.

    For the module that owns them, when it materialises: whoever holds a parameter's memory then holds nothing.
    """
    linear: Any = maps
    if len(maps) < 2 or _why_apart(maps) is not None or _merged_parts(linear) is not None:
        return
    # Not inference tensors, even if this is called where gradients are off for good: they are parameters.
    with torch.inference_mode(False), torch.no_grad():
        _place([m.weight for m in linear], [m.weight.shape[0] for m in linear], filled)
        if any(m.bias is not None for m in linear):
            _place([m.bias for m in linear], [m.weight.shape[0] for m in linear], filled)


class Merged:
    """The weights of one or more maps, one below the other, as their owner laid them out."""

    def __init__(self, maps: Sequence[Linear]) -> None:
        self.maps = tuple(maps)
        found = _merged_parts(maps)
        if found is None:
            raise TypeError("these maps don't lie side by side; see why_not")
        self.weight_OI, self.bias_O = found

    def holds(self) -> bool:
        """Whether the parameters still are where they were."""
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


def why_not(maps: Sequence[nn.Module]) -> str | None:
    """Why these maps can't be one product; None if they can."""
    reason = _why_apart(maps)
    if reason is None:
        linear: Any = maps
        if any(p.is_meta for m in linear for p in m.parameters()):
            return "it is on the meta device and has no weights"
        if _merged_parts(linear) is None:
            return "its weights don't lie side by side: a parameter was replaced, or several modules use it"
    return reason


def _why_apart(maps: Sequence[nn.Module]) -> str | None:
    """Why the weights of these maps can't be in one storage."""
    for m in maps:
        if type(m) is not Linear:
            return f"it has a {type(m).__name__} for a Linear"
        if m._parameters.get("weight") is None or "bias" not in m._parameters:
            # Also where it is parametrised or pruned, and computed of others for each call.
            return "its weights are elsewhere, or still to come"
        for p in m.parameters():
            if type(p) is not nn.Parameter or type(p.data) is not Tensor:
                return f"a parameter is a {type(p.data).__name__}"
            if not p.is_contiguous():
                return "a parameter is not contiguous"
    tensors = [p for m in maps for p in m.parameters()]
    if any(p.is_inference() for p in tensors):
        return "it was made in inference mode, and such a parameter can't be moved"
    if len({(p.dtype, p.device) for p in tensors}) > 1:
        return "its projections differ in dtype or device"
    return None


def _place(parts: Sequence[nn.Parameter | None], rows: Sequence[int], filled: bool) -> None:
    """Make the parts views of one new tensor; where there is none, zeros."""
    like = next(p for p in parts if p is not None)
    make = torch.empty if all(p is not None for p in parts) else torch.zeros
    whole = make((sum(rows), *like.shape[1:]), dtype=like.dtype, device=like.device)
    for p, part in zip(parts, whole.split(list(rows)), strict=True):
        if p is not None:
            if filled and not p.is_meta:
                part.copy_(p)
            p.data = part


def _merged_parts(maps: Sequence[Linear]) -> tuple[Tensor, Tensor | None] | None:
    """Weights and biases as one tensor each, if they lie side by side."""
    if len(maps) == 1:
        bias = maps[0].bias
        return maps[0].weight.detach(), None if bias is None else bias.detach()
    rows = [m.weight.shape[0] for m in maps]
    weight = _joined([m.weight for m in maps], rows)
    if weight is None:
        return None
    biases = [m.bias for m in maps]
    if all(bias is None for bias in biases):
        return weight, None
    bias = _joined(biases, rows)
    return None if bias is None else (weight, bias)


def _joined(parts: Sequence[Tensor | None], rows: Sequence[int]) -> Tensor | None:
    """The tensor that `_place` made, if the parts are still its views: they fill a storage that has room for no more."""
    like = next(p for p in parts if p is not None)
    shape = (sum(rows), *like.shape[1:])
    size = like.shape[1:].numel()
    storage = like.untyped_storage()
    if storage.nbytes() != shape[0] * size * like.dtype.itemsize:
        return None
    at = 0
    for p, count in zip(parts, rows, strict=True):
        if p is not None and (
            p.storage_offset() != at or not p.is_contiguous() or p.untyped_storage().data_ptr() != storage.data_ptr()
        ):
            return None
        at += count * size
    return like.detach().as_strided(shape, (size, 1) if len(shape) > 1 else (1,), 0)


def _same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are one."""
    return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.dtype == b.dtype and a.device == b.device
