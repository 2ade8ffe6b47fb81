"""What a step takes on a device: the bytes that it leaves behind, the most that it held at once, and its time."""

import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch._C._autograd import _disable_profiler_legacy, _enable_profiler_legacy
from torch._C._profiler import ProfilerConfig, ProfilerState, _ExperimentalConfig

ROUNDS = 5
"""Rounds of timing at most, unless told otherwise."""


@dataclass(frozen=True)
class Used:
    """Bytes beyond what was allocated before a step began."""

    left: int
    """Still allocated when it ended: its result, and what that keeps alive."""
    peak: int
    """The most at one moment."""


def used(step: Callable[[], Any], device: str | torch.device = "cpu") -> Used:
    """What a step allocates on a device. Its result is alive until the count ends; its inputs are not counted.

    On CUDA the caching allocator counts. On a CPU torch's allocator reports every piece that it gives out or takes
    back, also those inside an operator, which no hook on tensors would see. Memory that a library takes by itself
    (a workspace of BLAS) passes both by.
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
        before = torch.cuda.memory_allocated(device)
        torch.cuda.reset_peak_memory_stats(device)
        result = step()
        torch.cuda.synchronize(device)
        left, peak = torch.cuda.memory_allocated(device), torch.cuda.max_memory_allocated(device)
        del result
        return Used(left - before, peak - before)
    # The profiler that came before kineto: it says the same about memory, and nothing on standard error.
    config = ProfilerConfig(ProfilerState.CPU, False, True, False, False, False, _ExperimentalConfig())
    _enable_profiler_legacy(config)
    try:
        result = step()
    finally:
        threads = _disable_profiler_legacy()
    del result
    return added(event.cpu_memory_usage() for thread in threads for event in thread if event.kind() == "memory_alloc")


def added(changes: Iterable[int]) -> Used:
    """Sum and highest partial sum of bytes given out (above 0) and taken back (below)."""
    live = peak = 0
    for change in changes:
        live += change
        peak = max(peak, live)
    return Used(live, peak)


def now(device: str | torch.device) -> float:
    """Seconds by the clock, once the device has done all that it was given."""
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()


def rounds(repeats: int | None, patience: float) -> Iterator[None]:
    """So many rounds of timing; unset: a few, of which none begins after `patience` seconds but the first."""
    began = time.perf_counter()
    for turn in range(repeats or ROUNDS):
        if turn and repeats is None and time.perf_counter() - began > patience:
            return
        yield


def typical(seconds: Sequence[float], device: str | torch.device) -> float:
    """The least on a CPU, which other programs can only slow down; the median on CUDA, whose clock moves both ways."""
    return statistics.median(seconds) if torch.device(device).type == "cuda" else min(seconds)


def machine(device: str | torch.device) -> str:
    """What a device is called, for people."""
    cuda = torch.device(device).type == "cuda"
    return torch.cuda.get_device_name(device) if cuda else f"CPU, {torch.get_num_threads()} threads"
