"""Ranks: the processes of one run. In a run of one process nothing here does anything."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from anyformer.data.batch import Batch
from anyformer.errors import TrainingError


@dataclass(frozen=True, kw_only=True)
class Ranks:
    """Who this process is among those that read different rows. Processes that share products read the same rows."""

    rank: int = 0
    """Of this process, among all."""
    world: int = 1
    """Processes in all."""
    reader: int = 0
    """Which rows this process reads."""
    readers: int = 1
    """Into how many shares a batch is cut."""

    @property
    def is_rank0(self) -> bool:
        """Whether this process writes and prints."""
        return self.rank == 0

    def share(self, batch: Batch) -> Batch:
        return batch if self.readers == 1 else batch.share(self.reader, self.readers)

    def total(self, value: Tensor) -> Tensor:
        """The sum over all that read different rows; every process gets it."""
        if self.readers == 1:
            return value
        # Those that share products hold equal values, so each of them counts as its part.
        value = value * (self.readers / self.world)
        dist.all_reduce(value)
        return value

    def totals(self, values: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The same for several numbers at once."""
        if self.readers == 1 or not values:
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
        """What the first process says, everywhere."""
        if self.world == 1:
            return number
        found = torch.tensor(number, dtype=torch.int64)
        dist.broadcast(found, 0)
        return int(found.item())

    def wait(self) -> None:
        """Until every process is here."""
        self.any(False)

    @contextmanager
    def rank0_first(self) -> Iterator[bool]:
        """The first process does the work, the others wait for it. If it fails, all do: none waits for one that is gone."""
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
