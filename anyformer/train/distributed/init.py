"""Joining the other processes of a run: what torchrun started becomes a team."""

from __future__ import annotations

import datetime
import socket
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from anyformer.errors import InputError, TrainingError
from anyformer.train.config import Many
from anyformer.train.ranks import ALONE, Ranks

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


GONE = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Connection refused")
"""How a lost process shows."""


class Joined(NamedTuple):
    """What a process knows when it has met the others."""

    team: Ranks
    meshes: Meshes | None
    """None for a process on its own."""
    device: torch.device


@contextmanager
def joined(many: Many, device: torch.device) -> Iterator[Joined]:
    """The team for the duration of a `with`. A process that torchrun did not start is on its own."""
    ours = dist.is_available() and not dist.is_initialized() and dist.is_torchelastic_launched()
    if ours:
        device = _own(device)
        _meet(device, datetime.timedelta(seconds=many.timeout))
    met = _met(many, device)
    with warnings.catch_warnings():
        # Nothing here changes an answer in place, which is what this one is about.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        if not met.team.is_rank0:
            # All find the same, and one of them says it.
            warnings.simplefilter("ignore")
        try:
            yield met
        except RuntimeError as error:
            # Gloo has no class of errors for this.
            if met.meshes is None or not any(words in str(error) for words in GONE):
                raise
            raise TrainingError(
                "another process of this run is gone, so this one ends too; its own message says why. The same command "
                "continues from the last checkpoint, and torchrun --max-restarts N calls it again by itself"
            ) from error
    # After an error others may be gone, and to take leave of them could take forever.
    if ours:
        dist.destroy_process_group()


def _meet(device: torch.device, limit: datetime.timedelta) -> None:
    from torch.distributed.elastic.utils.api import get_env_variable_or_raise

    store, rank, world = next(rendezvous("env://", timeout=limit))
    store.set_timeout(limit)
    # torchrun keeps its store when it starts processes again, and what the dead ones wrote there would be believed.
    again = get_env_variable_or_raise("TORCHELASTIC_RESTART_COUNT")
    # Small numbers travel between hosts, so that nobody waits for an accelerator to learn of a stop.
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    mine = PrefixStore(f"anyformer/{again}/{world}", store)
    dist.init_process_group(backend, store=mine, rank=rank, world_size=world, timeout=limit)


def _own(device: torch.device) -> torch.device:
    """The accelerator of this process: as many of them as processes on a machine, in the same order."""
    if device.type != "cuda":
        return device
    if device.index is not None:
        raise InputError(f"compute.device: under torchrun each process takes its own device; write cuda, not {device}")
    local, there = dist.get_node_local_rank(), torch.cuda.device_count()
    if local >= there:
        raise InputError(
            f"torchrun started more processes on this machine than it has CUDA devices, {there}; give it "
            f"--nproc-per-node {there}"
        )
    torch.cuda.set_device(local)
    return torch.device("cuda", local)


def _met(many: Many, device: torch.device) -> Joined:
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world == 1:
        if many.tensor != 1:
            raise InputError(
                f"many.tensor: {many.tensor} processes are to share products, but there is one; start them with "
                f"torchrun --nproc-per-node {many.tensor} -m anyformer train ..."
            )
        return Joined(ALONE, None, device)
    rank = dist.get_rank()
    sizes = layout(world, shard=many.shard, tensor=many.tensor, machine=_neighbours(device, world))
    team = Ranks(rank=rank, world=world, reader=rank // many.tensor, readers=sizes.readers)
    return Joined(team, meshes(device.type, sizes), device)


def _neighbours(device: torch.device, world: int) -> int:
    """Processes on this machine, by its name."""
    mine = torch.tensor([zlib.crc32(socket.gethostname().encode())], device=device)
    names = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(names, mine)
    return int((torch.cat(names) == mine).sum())
