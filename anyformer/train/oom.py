"""A lack of memory in the middle of a run: what took it, and what to change, instead of an allocator's words."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anyformer.errors import TrainingError
from anyformer.kernels.memory import free
from anyformer.specs.number_format import data
from anyformer.train.components import Components
from anyformer.train.dry_run import load_of
from anyformer.train.estimate import Cure, Memory, cures, memory

WORDS = re.compile(r"(?i)out of memory|not enough memory|can.t allocate|failed to allocate|CUBLAS_STATUS_ALLOC_FAILED")
SHOWN = 4
"""Ways out that are named."""


def is_shortage(error: BaseException) -> bool:
    """Whether an error says that there was no memory left; torch's words depend on the device."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and WORDS.search(str(error)) is not None


@contextmanager
def explained(setup: Components, stage: int) -> Iterator[None]:
    """Around what a run computes: a lack of memory becomes a TrainingError with the estimate and what to change."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if not is_shortage(error):
            raise
        message = told(setup, stage, error)
    else:
        return
    # Outside of the handler: what the failed step held is let go of first.
    raise TrainingError(message)


def told(setup: Components, stage: int, error: BaseException) -> str:
    """The message of a shortage in a stage."""
    sizes, device = setup.config.stages[stage], setup.device
    load = load_of(setup, stage, device)
    found = memory(load)
    lines = [
        f"there was not enough memory on {device} for a step of {sizes.batch:,} rows of {sizes.length:,} tokens "
        f"({str(error).splitlines()[0][:160] if str(error) else type(error).__name__})",
        f"a step is estimated to take {data(found.total)}: {by_part(found)}; {data(free(device))} are free now",
        *advice(cures(load)),
        "the last checkpoint is unharmed: the same command with the change goes on from there",
    ]
    return "\n  ".join(lines)


def by_part(found: Memory) -> str:
    """Parts of the memory, the largest first."""
    parts = sorted(found.parts().items(), key=lambda part: -part[1])
    return ", ".join(f"{name} {data(size)}" for name, size in parts)


def advice(found: list[Cure]) -> list[str]:
    """What to change, one on a line."""
    if not found:
        return ["nothing in [compute] makes it smaller; take a smaller model or a larger device"]
    lines = [
        f"{cure.setting}: {data(cure.total)} in all{'' if cure.same else ', and another result'}" for cure in found
    ]
    return ["what helps, what helps most first:", *(f"  {line}" for line in lines[:SHOWN])]
