"""What variants cost on this machine: tokens per second in training and decoding, and peak memory, each alone on the device.

Rounds take turns between the variants, so that a machine that slows down slows all of them.
"""

import gc
import math
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import torch

from anyformer.errors import AnyformerError
from anyformer.explain.costs import decodes
from anyformer.generation.generate import generate
from anyformer.lab.job import Job
from anyformer.lab.study import Measure
from anyformer.lab.train_job import prepared
from anyformer.train.components import Components
from anyformer.train.dry_run import is_oom, load_of
from anyformer.train.estimate import memory

ROUNDS = 5
WARM = 3
"""Steps before anything is timed: kernels are chosen, graphs recorded."""
STEPS = 8
"""Steps of a round, at least; more if they are over at once."""
LEAST = 0.15
"""Seconds that a round of training lasts at least."""
NEW = 32
"""Tokens that are decoded in a round."""
Report = Callable[[int, int], None]


@dataclass(kw_only=True)
class Measured:
    """What one variant costs."""

    speeds: dict[str, list[float]] = field(default_factory=dict)
    peak_memory: int | None = None
    step_seconds: list[float] = field(default_factory=list)
    reason: str = ""
    """Why something could not be measured."""

    def to_data(self) -> dict[str, Any]:
        return vars(self)


@contextmanager
def opened(job: Job, device: str) -> Iterator[Components]:
    """The parts of a job's run, in a folder that is gone afterwards; training it changes nothing on disk."""
    with tempfile.TemporaryDirectory(prefix="anyformer-costs-") as place:
        folder = str(Path(place) / "run")
        alone = Job.from_data({**job.to_data(), "folder": folder, "start": "", "after": "", "convert": {}})
        components = Components(prepared(alone, device))
        try:
            components.open()
            yield components
        finally:
            components.close()


def step_seconds(components: Components, first: int, seconds: float = LEAST, least: int = STEPS) -> tuple[float, int]:
    """Seconds of a training step, and the number of steps made, beginning with the batch of step `first`."""
    steps = components.captured or components.train_step
    _settle(components.device)
    began, done = time.perf_counter(), 0
    while done < least or time.perf_counter() - began < seconds:
        batch = components.loader(0).batch(first + done)
        steps.step(batch, seed=0, factor=0.0, step=first + done).read()
        done += 1
    _settle(components.device)
    return (time.perf_counter() - began) / done, done


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_costs(
    jobs: Sequence[Job], measure: Measure, *, device: str = "", report: Report = lambda done, of: None
) -> dict[str, dict[str, Any]]:
    """The costs of each job's variant, by name."""
    found = {job.variant: Measured() for job in jobs}
    for turn in range(ROUNDS):
        for i, job in enumerate(jobs):
            costs = found[job.variant]
            if not costs.reason:
                _measure_round(job, measure, device, costs)
            report(turn * len(jobs) + i + 1, ROUNDS * len(jobs))
    return {name: costs.to_data() for name, costs in found.items()}


def _measure_round(job: Job, measure: Measure, device: str, costs: Measured) -> None:
    """One round of one variant. What can't be measured is left out, with the reason."""
    try:
        with opened(job, device) as components:
            where = components.device
            if where.type == "cuda":
                torch.cuda.reset_peak_memory_stats(where)
            step_seconds(components, 0, 0.0, WARM)
            spent, _ = step_seconds(components, WARM)
            costs.step_seconds.append(spent)
            tokens = components.loader(0).batch(0).tokens
            costs.speeds.setdefault("train_tokens_per_second", []).append(tokens / spent)
            if where.type == "cuda":
                costs.peak_memory = max(costs.peak_memory or 0, torch.cuda.max_memory_allocated(where))
            elif costs.peak_memory is None:
                # What the process holds besides is no cost of the variant.
                costs.peak_memory = memory(load_of(components, 0, where)).total
            if decodes(components.spec) and components.spec.topology == "decoder":
                speed = _decode_speed(components, measure)
                if speed is not None:
                    costs.speeds.setdefault("decode_tokens_per_second", []).append(speed)
    except (AnyformerError, MemoryError, RuntimeError) as error:
        costs.reason = ("out of memory: " if is_oom(error) else "") + str(error).splitlines()[0][:200]
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _decode_speed(components: Components, measure: Measure) -> float | None:
    """Tokens per second of greedy decoding with a KV cache, all rows together; None where there is no room for it."""
    spec, model, rows = components.spec, components.model, measure.decode_batch
    length = measure.decode_context or max(1, components.config.stages[-1].length // 2)
    new = min(NEW, spec.context - length)
    if new < 4:
        return None
    ids_BT = torch.full((rows, length), spec.ids.bos or 0, device=components.device)

    def seconds(count: int) -> float:
        _settle(components.device)
        began = time.perf_counter()
        generate(model, ids_BT, max_new_tokens=count, stop=())
        _settle(components.device)
        return time.perf_counter() - began

    seconds(new)
    # The prompt is read in both, so their difference is decoding alone.
    short, long = median(seconds(1) for _ in range(2)), median(seconds(new) for _ in range(2))
    spent = long - short
    return rows * (new - 1) / spent if spent > 0 and math.isfinite(spent) else None
