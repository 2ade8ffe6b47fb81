"""Ranks: the processes of one run that torchrun started, and how they meet. In a run of one process nothing is done."""

import datetime
import socket
import warnings
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from anyformer.data.dataset import Batch
from anyformer.errors import InputError, TrainingError
from anyformer.train.config import Many

GONE = ("Connection closed by peer", "Connection reset by peer", "Timed out waiting", "Connection refused")
"""How a lost process shows."""


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Who this process is among those that read different rows. Tensor-parallel processes read the same rows."""

    rank: int = 0
    """Of this process, among all."""
    world: int = 1
    """Processes in all."""
    dp_rank: int = 0
    """Which rows this process reads."""
    dp_size: int = 1
    """Into how many shares a batch is cut."""

    @property
    def is_rank0(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        return batch if self.dp_size == 1 else batch.share(self.dp_rank, self.dp_size)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all that read different rows; every process gets it."""
        if self.dp_size == 1:
            return value
        # Tensor-parallel processes hold equal values, so each of them counts as its part.
        value = value * (self.dp_size / self.world)
        dist.all_reduce(value)
        return value

    def totals(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same for several numbers at once."""
        if self.dp_size == 1 or not values:
            return dict(values)
        row = self.total(torch.stack([value.detach().double() for value in values.values()]))
        return {name: found.to(value.dtype) for (name, value), found in zip(values.items(), row, strict=True)}

    def any(self, flag: bool) -> bool:
        """Whether some process says so: all must stop in the same step."""
        if self.world == 1:
            return flag
        found = torch.tensor(float(flag))
        dist.all_reduce(found, op=dist.ReduceOp.MAX)
        return bool(found.item())

    def broadcast(self, number: int) -> int:
        """What rank 0 says, everywhere."""
        if self.world == 1:
            return number
        found = torch.tensor(number, dtype=torch.int64)
        dist.broadcast(found, 0)
        return int(found.item())

    @contextmanager
    def rank0_first(self) -> Iterator[bool]:
        """Rank 0 does the work, the others wait for it. If it fails, all do: none waits for one that is gone."""
        failed = False
        try:
            yield self.is_rank0
        except BaseException:
            failed = True
            raise
        finally:
            if self.any(failed) and not failed:
                raise TrainingError("another process could not go on, so this one ends too; its own message says why")


ALONE = Ranks()


class Layout(NamedTuple):
    """How many processes there are in each direction; their product is all of them."""

    copies: int
    """Sets of processes with a whole copy each."""
    parts: int
    """Parts that a copy is cut into."""
    tensor: int
    """Processes that share each product."""

    @property
    def dp_size(self) -> int:
        """Processes, or sets of them, that read rows of their own."""
        return self.copies * self.parts


def layout(world: int, *, shard: Literal["none", "full", "hybrid"], tensor: int, machine: int) -> Layout:
    """The directions of `world` processes, `machine` of them on each machine."""
    if world % tensor:
        fits = ", ".join(str(n) for n in range(1, world + 1) if world % n == 0)
        raise InputError(
            f"many.tensor: {world} processes can't be grouped by {tensor}; pick one of {fits}, or start a multiple of "
            f"{tensor}"
        )
    if shard == "full":
        return Layout(1, world // tensor, tensor)
    if shard == "none":
        return Layout(world // tensor, 1, tensor)
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


@contextmanager
def joined(many: Many, device: torch.device) -> Iterator[tuple[Ranks, Meshes | None, torch.device]]:
    """The ranks for the duration of a `with`. A process that torchrun did not start is on its own, without meshes."""
    ours = dist.is_available() and not dist.is_initialized() and dist.is_torchelastic_launched()
    if ours:
        device = _own(device)
        _meet(device, datetime.timedelta(seconds=many.timeout))
    ranks, groups = _ranks(many, device)
    with warnings.catch_warnings():
        # Nothing here changes an answer in place, which is what this one is about.
        warnings.filterwarnings("ignore", "FSDP2-wrapped module .* returned a view")
        if not ranks.is_rank0:
            # All find the same, and one of them says it.
            warnings.simplefilter("ignore")
        try:
            yield ranks, groups, device
        except RuntimeError as error:
            # Gloo has no class of errors for this.
            if groups is None or not any(words in str(error) for words in GONE):
                raise
            raise TrainingError(
                "another process of this run is gone, so this one ends too; its own message says why. The same command "
                "continues from the last checkpoint, and torchrun --max-restarts N calls it again by itself"
            ) from error
    # After an error others may be gone, and to take leave of them could take forever.
    if ours:
        dist.destroy_process_group()


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


def _ranks(many: Many, device: torch.device) -> tuple[Ranks, Meshes | None]:
    world = dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1
    if world == 1:
        if many.tensor != 1:
            raise InputError(
                f"many.tensor: {many.tensor} processes are to share products, but there is one; start them with "
                f"torchrun --nproc-per-node {many.tensor} -m anyformer train ..."
            )
        return ALONE, None
    # Processes on this machine, by its name.
    mine = torch.tensor([zlib.crc32(socket.gethostname().encode())], device=device)
    names = [torch.empty_like(mine) for _ in range(world)]
    dist.all_gather(names, mine)
    machine = int((torch.cat(names) == mine).sum())
    sizes, rank = layout(world, shard=many.shard, tensor=many.tensor, machine=machine), dist.get_rank()
    ranks = Ranks(rank=rank, world=world, dp_rank=rank // many.tensor, dp_size=sizes.dp_size)
    return ranks, meshes(device.type, sizes)
