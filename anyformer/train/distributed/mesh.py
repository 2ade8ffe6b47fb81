"""The mesh: which processes hold copies, which hold parts of the same weights, and which share products."""

from __future__ import annotations

from typing import Literal, NamedTuple

from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from anyformer.errors import InputError

Kind = Literal["none", "full", "hybrid"]


class Layout(NamedTuple):
    """How many processes there are in each direction; their product is all of them."""

    copies: int
    """Sets of processes with a whole copy each."""
    parts: int
    """Parts that a copy is cut into."""
    tensor: int
    """Processes that share each product."""

    @property
    def readers(self) -> int:
        """Processes, or sets of them, that read rows of their own."""
        return self.copies * self.parts


def layout(world: int, *, shard: Kind, tensor: int, machine: int) -> Layout:
    """The directions of `world` processes, `machine` of them on each machine."""
    fits = [n for n in range(1, world + 1) if world % n == 0]
    if world % tensor:
        raise InputError(
            f"many.tensor: {world} processes can't be grouped by {tensor}; pick one of {', '.join(map(str, fits))}, or "
            f"start a multiple of {tensor}"
        )
    readers = world // tensor
    if shard == "full":
        return Layout(1, readers, tensor)
    if shard == "none":
        return Layout(readers, 1, tensor)
    if world % machine or machine % tensor:
        raise InputError(
            f"many.shard: 'hybrid' needs machines with equally many processes, a multiple of many.tensor: there are "
            f"{world} in all, {machine} on this machine, and many.tensor is {tensor}; use 'full'"
        )
    return Layout(world // machine, machine // tensor, tensor)


class Meshes(NamedTuple):
    """The process groups in the words of torch."""

    data: DeviceMesh
    """What weights are cut or copied over."""
    tensor: DeviceMesh | None
    """Those that share products; None if nobody does."""


def meshes(device: str, sizes: Layout) -> Meshes:
    """Process groups for a layout. Processes that share products are neighbours: theirs is the most traffic."""
    whole = init_device_mesh(device, tuple(sizes), mesh_dim_names=("copies", "parts", "tensor"))
    data = whole["parts"] if sizes.copies == 1 else whole["copies", "parts"]
    return Meshes(data, whole["tensor"] if sizes.tensor > 1 else None)
