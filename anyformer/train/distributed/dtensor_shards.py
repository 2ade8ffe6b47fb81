"""Parts: which stretch of a whole tensor this process holds, and the way from parts to wholes and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor, nn

from anyformer.errors import CheckpointError

if TYPE_CHECKING:
    from torch.distributed.tensor import DTensor


class Stretch(NamedTuple):
    """A box of a whole tensor."""

    start: tuple[int, ...]
    shape: tuple[int, ...]

    def of(self, whole: Tensor) -> Tensor:
        """What lies in it."""
        for dim, (start, size) in enumerate(zip(self.start, self.shape, strict=True)):
            whole = whole.narrow(dim, start, size)
        return whole


def cut(tensor: Tensor) -> DTensor | None:
    """A tensor of which this process holds a part; None if it is a plain one."""
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return None
    # Takes a second to import, which a run of one process need not wait for.
    from torch.distributed.tensor import DTensor

    return tensor if isinstance(tensor, DTensor) else None


def stretch(tensor: Tensor) -> Stretch:
    """What this process holds of a tensor. Products are shared out first and parts are cut of that, as `spread` does."""
    start, size = [0] * tensor.dim(), list(tensor.shape)
    held = cut(tensor.detach())
    if held is None:
        return Stretch(tuple(start), tuple(size))
    mesh = held.device_mesh
    for i in reversed(range(mesh.ndim)):
        dim = _dim(held.placements[i])
        if dim is None:
            continue
        # As torch.chunk cuts: equal parts rounded up, and the last ones may be short or empty.
        each = -(-size[dim] // mesh.size(i))
        before = min(each * mesh.get_local_rank(i), size[dim])
        start[dim], size[dim] = start[dim] + before, min(each, size[dim] - before)
    if tuple(size) != tuple(held.to_local().shape):
        raise TypeError(f"a part of shape {tuple(held.to_local().shape)} is not cut as expected: {held.placements}")
    return Stretch(tuple(start), tuple(size))


def _dim(where: object) -> int | None:
    """Along which dimension a placement cuts, if it does. Of two cuts of one dimension, one has a class of its own."""
    dim = getattr(where, "dim", None)
    return dim if isinstance(dim, int) else None


def local(tensor: Tensor) -> Tensor:
    """What this process holds, as a plain tensor over the same memory."""
    tensor = tensor.detach()
    held = cut(tensor)
    return tensor if held is None else held.to_local()


@torch.no_grad()
def put(tensor: Tensor, whole: Tensor) -> None:
    """Give a tensor its part of a whole one. Nothing is sent: every process has the whole."""
    if tensor.shape != whole.shape:
        raise CheckpointError(f"a tensor of shape {tuple(whole.shape)} was given for one of {tuple(tensor.shape)}")
    local(tensor).copy_(stretch(tensor).of(whole))


def whole(tensor: Tensor) -> Tensor:
    """The whole of what processes hold in parts. All processes of the run must call it, in the same order."""
    tensor = tensor.detach()
    held = cut(tensor)
    if held is None:
        return tensor
    from torch.distributed.tensor import Replicate

    # One direction of the mesh after the other: a dimension may be cut along two of them.
    where = list(held.placements)
    for i in range(len(where)):
        where[i] = Replicate()
        held = held.redistribute(placements=where)
    return held.to_local()


def gathered(tensors: Mapping[str, Tensor], *, keep: bool) -> dict[str, Tensor]:
    """Whole tensors on the host of the process that keeps them, one at a time; nothing on the others."""
    found: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        full = whole(tensor)
        if keep:
            found[name] = full.to("cpu", copy=True)
    return found
