"""Fused projections: those that read the same input as one product, over one storage that holds all their weights.

The module that owns the projections lays their weights one below the other when it materialises: when it is allocated,
moved or cast, deep-copied, unpickled. Parameters are views of that storage, so nothing is kept twice, and names,
checkpoints and optimizers see plain parameters. Nobody else ever moves a parameter. A pass in which nothing learns runs
one product where the weights lie side by side, with the norm before and the residual behind it; every other pass, and
everything that was replaced or has a hook, runs map by map.
"""

import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.kernels import small_gemm
from anyformer.kernels.small_gemm import NormTerms
from anyformer.parts.linear import Linear
from anyformer.parts.norm import Norm
from anyformer.parts.quantized import QuantizedLinear, Slice
from anyformer.specs.axes import FeedForward

GLOBAL_HOOKS = torch.nn.modules.module._global_forward_hooks
GLOBAL_PRE_HOOKS = torch.nn.modules.module._global_forward_pre_hooks
"""Torch's own: somebody listens to every module there is."""


class FusedInputs(nn.Module):
    """A module that owns projections of one input and one back, and keeps the weights of the former in one storage."""

    _modules: dict[str, Any]
    # Read past nn.Module.__getattr__: a token of a small model takes microseconds, and look-ups were a thirtieth of them.
    reads: tuple[str, ...]
    """Names of the projections that read the same input, in the order of their weights; some may be missing."""
    back: str
    """Name of the projection back."""
    apart: str | None = None
    """Why its projections never run as one product, if they don't."""
    _fused: "Fused | None" = None

    def inputs(self) -> list[nn.Module]:
        """The projections that read the same input."""
        return [m for name in self.reads if (m := self._modules.get(name)) is not None]

    def fused(self, x: Tensor, norm: nn.Module | None = None) -> "Fused | None":
        """The fused products, if this pass may run them on `norm(x)`; None: it runs map by map."""
        if self.training or self.apart is not None or torch.compiler.is_compiling():
            return None
        found, modules = self._fused, self._modules
        if found is not None:
            # They hold as long as the same projections are there, and their parameters where they were.
            for name, m in found.named:
                if modules.get(name) is not m:
                    found = None
            for own, key, p, place in () if found is None else found.places:
                if own.get(key) is not p or (place and p is not None and p.data_ptr() != place):
                    found = None
        if found is None:
            found = self._fused = Fused(self)
        if found.why_not is not None or (torch.is_grad_enabled() and not found.quantised):
            return None
        # Autocast is about plain products, and a hook about the module that it was put on.
        if torch.is_autocast_enabled("cuda" if x.is_cuda else "cpu") or GLOBAL_HOOKS or GLOBAL_PRE_HOOKS:
            return None
        for each in found.hooks:
            if each:
                return None
        if norm is not None and (type(norm) is not Norm or norm._forward_hooks or norm._forward_pre_hooks):
            return None
        return found

    def _apply(self, fn: Any, recurse: bool = True) -> Any:
        before = self._places()
        super()._apply(fn, recurse)
        # A cast to what they are moves nothing, and neither does this: somebody may hold their memory.
        if self._places() != before:
            lay_out(self.inputs())
        self._fused = None
        return self

    def _places(self) -> list[int | None]:
        return [None if p.is_meta else p.data_ptr() for m in self.inputs() for p in m.parameters()]

    def __copy__(self) -> Any:
        # A shallow copy shares the projections with their owner, who alone may move them: __setstate__ would.
        made = type(self).__new__(type(self))
        made.__dict__.update(self.__dict__)
        return made

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_fused": None}

    def __setstate__(self, state: Any) -> None:
        # A copy and an unpickled module come here when their projections are whole again, each in a storage of its own.
        super().__setstate__(state)
        lay_out(self.inputs())


_empty = threading.local()


@contextmanager
def allocating() -> Iterator[None]:
    """While parameters are allocated that nobody has filled: their owner need not copy what they hold."""
    _empty.now = True
    try:
        yield
    finally:
        _empty.now = False


def lay_out(maps: Sequence[Any]) -> None:
    """Put the weights of these maps one below the other in one storage, unless they are, or can't be.

    For the module that owns them, when it materialises: whoever holds a parameter's memory then holds nothing.
    """
    if len(maps) < 2 or _why_apart(maps) is not None or side_by_side(maps) is not None:
        return
    rows = [len(m.weight) for m in maps]
    # Not inference tensors, even if this is called where gradients are off for good: they are parameters.
    with torch.inference_mode(False), torch.no_grad():
        _place([m.weight for m in maps], rows)
        if any(m.bias is not None for m in maps):
            _place([m.bias for m in maps], rows)


class FusedLinear(NamedTuple):
    """The weights of one or more maps, one below the other, as their owner laid them out."""

    weight_OI: Tensor
    bias_O: Tensor | None


class Fused:
    """One product for all projections of an input, and one back, as long as what they were made of is the same."""

    def __init__(self, owner: FusedInputs) -> None:
        inputs, output = owner.inputs(), owner.get_submodule(owner.back)
        maps = (*inputs, output)
        self.named = [(name, m) for name, m in owner._modules.items() if m is not None and m in maps]
        """The projections under their names."""
        self.places = [
            (m._parameters, key, p, p.data_ptr() if type(p) is nn.Parameter else 0)
            for m in maps
            for key, p in m._parameters.items()
        ]
        """Where their parameters lie. One that is spread over devices has no place; it is never fused, either."""
        self.hooks = [hooks for m in maps for hooks in (m._forward_hooks, m._forward_pre_hooks)]
        self.why_not = why_not(inputs) or why_not([output])
        self.quantised = False
        if self.why_not is None:
            self.read, self.back = _product(inputs), _product([output])
            self.quantised = isinstance(self.read, QuantizedLinear)

    def project(self, x_BTD: Tensor, norm: Norm | None, ffn: FeedForward | None = None) -> Tensor:
        """What all input projections give for the normed input, side by side; with `ffn` its inner activations (N,F)."""
        terms = None if norm is None else NormTerms(norm.leaf, norm._parameters)
        x_ND, read = x_BTD.reshape(-1, x_BTD.shape[-1]), self.read
        if isinstance(read, FusedLinear):
            if ffn is not None:
                return small_gemm.norm_linear_combine(x_ND, terms, *read, ffn)
            y_NO = small_gemm.norm_linear(x_ND, terms, *read)
        else:
            y_NO = read.read(x_ND, terms)
        return y_NO.view(*x_BTD.shape[:-1], -1) if ffn is None else ffn.combine(*y_NO.chunk(len(ffn.inputs), -1))

    def output(self, x: Tensor, residual_BTD: Tensor | None, shape: Sequence[int], *, inplace: bool = False) -> Tensor:
        """What the projection back gives (shape), added to the residual if there is one, which may be written over."""
        back = self.back
        if not isinstance(back, FusedLinear):
            y_BTD = back.product(x.reshape(-1, back.shape[0])).view(shape)
            return y_BTD if residual_BTD is None else residual_BTD + y_BTD
        x_NI = x.reshape(-1, back.weight_OI.shape[1])
        if residual_BTD is None:
            return small_gemm.norm_linear(x_NI, None, *back).view(shape)
        return small_gemm.linear_add(x_NI, *back, residual_BTD.reshape(-1, shape[-1]), over=inplace).view(shape)


def _product(maps: Sequence[Any]) -> FusedLinear | QuantizedLinear:
    """One product for all of these maps, which `why_not` has passed."""
    first = maps[0]
    found = (
        first.whole if isinstance(first, Slice) else first if isinstance(first, QuantizedLinear) else side_by_side(maps)
    )
    if found is None:
        raise TypeError("these maps don't lie side by side; see why_not")
    return found


def why_not(maps: Sequence[Any]) -> str | None:
    """Why these maps can't be one product; None if they can."""
    if all(isinstance(m, QuantizedLinear | Slice) for m in maps):
        wholes = {getattr(m, "whole", m) for m in maps}
        return None if len(wholes) == 1 else "its projections were quantised one by one"
    reason = _why_apart(maps)
    if reason is None and any(p.is_meta for m in maps for p in m.parameters()):
        return "it is on the meta device and has no weights"
    if reason is None and side_by_side(maps) is None:
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


def _place(parts: Sequence[nn.Parameter | None], rows: Sequence[int]) -> None:
    """Make the parts views of one new tensor; where there is none, zeros."""
    like = next(p for p in parts if p is not None)
    make = torch.empty if all(p is not None for p in parts) else torch.zeros
    whole = make((sum(rows), *like.shape[1:]), dtype=like.dtype, device=like.device)
    filled = not getattr(_empty, "now", False)
    if whole.is_cpu and any(p is not None and p.is_shared() for p in parts):
        whole.share_memory_()
    for p, part in zip(parts, whole.split(list(rows)), strict=True):
        if p is not None:
            if filled and not p.is_meta:
                part.copy_(p)
            p.data = part


def side_by_side(maps: Sequence[Any]) -> FusedLinear | None:
    """All maps as one, if their weights lie side by side, and so do their biases."""
    weights, biases = [m.weight for m in maps], [m.bias for m in maps]
    if len(maps) == 1:
        return FusedLinear(weights[0].detach(), None if biases[0] is None else biases[0].detach())
    rows = [len(weight) for weight in weights]
    weight = _joined(weights, rows)
    biased = any(bias is not None for bias in biases)
    bias = _joined(biases, rows) if biased else None
    return None if weight is None or (biased and bias is None) else FusedLinear(weight, bias)


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
