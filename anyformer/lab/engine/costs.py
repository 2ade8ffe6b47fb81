"""What variants cost on this machine: tokens per second in training and decoding, and peak memory, each alone on the device.

Rounds take turns between the variants, so that a machine that slows down slows all of them; where memory does not hold all
of them, groups do.
"""

import gc
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from anyformer.errors import AnyformerError
from anyformer.explain.costs import decodes
from anyformer.generation.generate import generate
from anyformer.kernels.memory import free
from anyformer.lab.engine.job import Job
from anyformer.lab.engine.train_job import prepared
from anyformer.lab.study import Measure
from anyformer.train.components import Components, device_of
from anyformer.train.dry_run import is_oom, load_of
from anyformer.train.estimate import memory

ROUNDS = 5
WARM = 3
"""Steps before anything is timed: kernels are chosen, graphs recorded."""
STEPS = 8
"""Steps of a round, at least; more if they are over at once."""
LEAST = 0.15
"""Seconds that a round of training lasts at least."""
ROOM = 0.3
"""The share of the free memory that variants take which are measured in turn."""
NEW = 48
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
    estimated: int = 0
    """Bytes of a step, as estimated."""

    def to_data(self) -> dict[str, Any]:
        return vars(self)


@contextmanager
def opened(job: Job, device: str) -> Iterator[Components]:
    """The parts of a job's run, in a folder that is gone afterwards; training it changes nothing on disk."""
    with tempfile.TemporaryDirectory(prefix="anyformer-costs-") as place:
        components = Components(prepared(_alone(job, str(Path(place) / "run")), device))
        try:
            components.open()
            yield components
        finally:
            components.close()


def _alone(job: Job, folder: str) -> Job:
    """The job with fresh weights: what they are costs nothing."""
    return Job.from_data({**job.to_data(), "folder": folder, "start": "", "after": "", "convert": {}})


def step_seconds(components: Components, first: int, seconds: float = LEAST, least: int = STEPS) -> tuple[float, float]:
    """Seconds of a training step, and the mean number of tokens in one, beginning with the batch of step `first`."""
    steps = components.captured or components.train_step
    _settle(components.device)
    began, done, tokens = time.perf_counter(), 0, 0
    while done < least or time.perf_counter() - began < seconds:
        batch = components.loader(0).batch(first + done)
        steps.step(batch, seed=0, factor=0.0, step=first + done).read()
        done, tokens = done + 1, tokens + batch.tokens
    _settle(components.device)
    return (time.perf_counter() - began) / done, tokens / done


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def measure_costs(
    jobs: Sequence[Job], measure: Measure, *, device: str = "", report: Report = lambda done, of: None
) -> dict[str, dict[str, Any]]:
    """The costs of each job's variant, by name."""
    found = {job.variant: Measured() for job in jobs}
    done, of = 0, ROUNDS * len(jobs)
    for some in _together(jobs, device, found):
        with ExitStack() as stack:
            ready = [
                (job, parts) for job in some if (parts := _open(job, device, found[job.variant], stack)) is not None
            ]
            for _, components in ready:
                # A round that does not count: caches, pages and clocks of the machine settle in it.
                _measure_round(components, measure, Measured(), 0)
            for turn in range(1, ROUNDS + 1):
                for job, components in ready:
                    _measure_round(components, measure, found[job.variant], turn)
                    report(done := done + 1, of)
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
    return {name: costs.to_data() for name, costs in found.items()}


def _together(jobs: Sequence[Job], device: str, found: dict[str, Measured]) -> Iterator[list[Job]]:
    """Jobs in groups that fit into memory at the same time. The first one, the base, is in no other group."""
    room, some, taken = ROOM * free(device_of(device)), list[Job](), 0.0
    for job in jobs:
        components = Components(prepared(_alone(job, "-"), device))
        try:
            components.read()
            size = memory(load_of(components, 0, device_of(device))).total
        except AnyformerError as error:
            found[job.variant].reason = str(error).splitlines()[0][:200]
            continue
        if some and taken + size > room:
            yield some
            some, taken = [], 0.0
        some.append(job)
        taken += size
        found[job.variant].estimated = size
    if some:
        yield some


def _open(job: Job, device: str, costs: Measured, stack: ExitStack) -> Components | None:
    """The parts of a job's run with its first steps made; None, with the reason, where that can't be."""
    try:
        components, before = stack.enter_context(opened(job, device)), 0
        if components.device.type == "cuda":
            before = torch.cuda.memory_allocated(components.device)
            torch.cuda.reset_peak_memory_stats(components.device)
        step_seconds(components, 0, 0.0, WARM)
        # On a CPU the process holds much besides.
        costs.peak_memory = costs.estimated
        if components.device.type == "cuda":
            held = sum(p.nbytes for p in components.model.parameters())
            costs.peak_memory = torch.cuda.max_memory_allocated(components.device) - before + held
        return components
    except (AnyformerError, MemoryError, RuntimeError) as error:
        costs.reason = _why(error)
        return None


def _measure_round(components: Components, measure: Measure, costs: Measured, turn: int) -> None:
    """One round of one variant. What can't be measured is left out, with the reason."""
    try:
        spent, tokens = step_seconds(components, WARM + turn * STEPS)
        costs.step_seconds.append(spent)
        costs.speeds.setdefault("train_tokens_per_second", []).append(tokens / spent)
        if measure.decode and decodes(components.spec) and components.spec.topology == "decoder":
            speed = _decode_speed(components, measure, warm=turn == 0)
            if speed is not None:
                costs.speeds.setdefault("decode_tokens_per_second", []).append(speed)
    except (AnyformerError, MemoryError, RuntimeError) as error:
        costs.reason = _why(error)


def _why(error: BaseException) -> str:
    return ("out of memory: " if is_oom(error) else "") + str(error).splitlines()[0][:200]


def _decode_speed(components: Components, measure: Measure, *, warm: bool) -> float | None:
    """Tokens per second of greedy decoding with a KV cache, all rows together; None where there is no room for it."""
    spec, model, rows = components.spec, components.model, measure.decode_batch
    length = measure.decode_context or max(1, components.config.stages[-1].length // 2)
    new = min(NEW, spec.context - length)
    if new < 4:
        return None
    ids_BT = torch.full((rows, length), spec.ids.bos or 0, device=components.device)

    def seconds() -> float:
        """From the first new token to the last: prefill, which takes far longer here, is over by then."""
        stream = generate(model, ids_BT, max_new_tokens=new, stop=(), stream=True)
        next(stream)
        began = time.perf_counter()
        for _ in stream:
            pass
        _settle(components.device)
        return time.perf_counter() - began

    if warm:
        seconds()
    return rows * (new - 1) / min(seconds() for _ in range(2))
