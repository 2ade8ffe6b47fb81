"""CPU workers: a few threads that each compute on cores of their own.

On a CPU one operation on all cores waits for the slowest of them, hundreds of times in a step. If another program
takes one core for a moment, every one of those waits grows, and training slows down tenfold. Rows that go their own
way on each core meet once in a step, so a busy core costs no more than its share; on an idle machine it is faster too.
"""

import collections
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Self, TypeVar

import torch

from anyformer.specs.layer import mixer_of
from anyformer.specs.model import ModelSpec

Item = TypeVar("Item")
Made = TypeVar("Made")

LARGEST = 4
"""Threads that run Python hinder each other; beyond these few, each gets more cores instead."""


class CpuWorkers:
    """Workers for the duration of a `with`; a single one is the calling thread itself."""

    def __init__(self, size: int = 1) -> None:
        self.size = size
        self._pool: ThreadPoolExecutor | None = None
        self._cores = 1

    @classmethod
    def on(cls, device: torch.device, most: int) -> Self:
        """As many as help on a device, and no more than there are pieces of work."""
        return cls(max(1, min(LARGEST, torch.get_num_threads(), most)) if device.type == "cpu" else 1)

    def map(self, work: Callable[[Item], Made], items: Iterable[Item]) -> Iterator[Made]:
        """The results in the order of the items, whoever is done first."""
        if self._pool is None:
            yield from map(work, items)
            return
        waiting: collections.deque[Future[Made]] = collections.deque()
        for item in items:
            waiting.append(self._pool.submit(work, item))
            # A little ahead of the reader, and no more: results may be large.
            if len(waiting) > 2 * self.size:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()

    def __enter__(self) -> Self:
        if self.size > 1:
            self._cores = torch.get_num_threads()
            each = max(1, self._cores // self.size)
            self._pool = ThreadPoolExecutor(self.size, initializer=torch.set_num_threads, initargs=(each,))
            # Some libraries count threads for the whole process, so the caller must ask for as few.
            torch.set_num_threads(each)
        return self

    def __exit__(self, *_: object) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
            self._pool = None
            torch.set_num_threads(self._cores)


def draws(spec: ModelSpec) -> bool:
    """Whether training this spec draws random numbers: some dropout is not 0, or attention is not exact."""

    def found(node: Any) -> bool:
        if isinstance(node, Mapping):
            return any((name == "dropout" and value) or found(value) for name, value in node.items())
        return isinstance(node, list | tuple) and any(map(found, node))

    mixers = (
        mixer_of(layer.attention, cross=cross)
        for stack in spec.stacks
        for layer in stack.layers
        for cross in ((False, True) if stack.cross else (False,))
    )
    return found(spec.to_data()) or not all(mixer.exact for mixer in mixers)
