"""A run: prepared from its config, or taken up where it stopped; then steps, evaluations, samples and checkpoints.

The same config again goes on with the same run. Everything that a step does depends on (seed, step) and on what a
checkpoint holds, so a run that was interrupted ends as one that was not.
"""

import collections
import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple, Self

from anyformer.data.dataset import Batch
from anyformer.train.components import Components
from anyformer.train.config import Config
from anyformer.train.dry_run import explain_oom
from anyformer.train.loggers import Logger, LoggerGroup, Metrics, finals, points, read_metrics, services, trim
from anyformer.train.perplexity import evaluate
from anyformer.train.report import About, Report, about_of
from anyformer.train.run_state import Progress
from anyformer.train.signals import StopSignals
from anyformer.train.train_step import StepResult


@dataclass(frozen=True, kw_only=True)
class Step:
    """A batch was learned from."""

    step: int
    """Counted from 1."""
    stage: int
    loss: float
    """Mean over the labels that count, before the update, without anything that is only added."""
    terms: dict[str, float]
    """All terms of the loss, and their weighted sum as `total`."""
    gradient_norm: float
    rate: float
    tokens: int
    seconds: float
    batch: str
    skipped: bool
    """The weights were left as they were: a number was not finite, or far out of line."""
    memory: int
    """Bytes of the device that were in use at most so far; on a CPU, of the process."""


@dataclass(frozen=True, kw_only=True)
class Evaluated:
    """Held-out examples were measured on."""

    step: int
    tokens: int
    loss: float
    figures: dict[str, float]
    labels: int
    bits_per_byte: float | None
    rows: int
    all_rows: int
    """Rows of the held-out part: two points are of one curve if both numbers are the same."""
    final: bool = False
    """Whether it is the word on the whole held-out part, at the end, and no point of the curve."""


@dataclass(frozen=True, kw_only=True)
class Sampled:
    """The model said something."""

    step: int
    text: str


@dataclass(frozen=True, kw_only=True)
class Saved:
    """A checkpoint is on the disk; of what an accelerator holds, it is copied and being written."""

    step: int
    place: Path
    seconds: float


@dataclass(frozen=True, kw_only=True)
class Resumed:
    """The run goes on from a checkpoint."""

    step: int
    place: Path


@dataclass(frozen=True, kw_only=True)
class Stopped:
    """Somebody asked for a stop; everything is saved."""

    step: int
    status: int
    """The exit status that tells by which signal."""


Event = Step | Evaluated | Sampled | Saved | Resumed | Stopped

Sample = Callable[[Components, int], str]
"""Generates a sample after a step; what generates is not known here."""
Stop = Callable[[], bool]


class Interrupted(Exception):
    """An evaluation was left because of a stop."""


class Pending(NamedTuple):
    """A step whose results nobody has read yet: an accelerator may still be at it."""

    found: StepResult
    batch: Batch
    progress: Progress
    stage: int
    rate: float


class Trainer:
    """One run, inside a `with`: it holds the lock of its folder until the end."""

    def __init__(
        self,
        config: Config,
        *,
        sample: Sample | None = None,
        about: Callable[[Components], About] | None = about_of,
        loggers: Sequence[Logger] = (),
    ) -> None:
        """`about` is what the report says about the run, None: there is no report; `loggers` are added to the config's."""
        self.config, self.sample, self.about, self.loggers = config, sample, about, tuple(loggers)
        self.total = config.steps
        self.components = Components(config)
        self.on_eval_rows: Callable[[int, int], None] | None = None
        """Called while held-out rows are measured on, with the number that is done and that of all."""

    @property
    def folder(self) -> Path:
        return self.components.folder

    def __enter__(self) -> Self:
        try:
            self.components.open()
        except BaseException as error:
            self.components.close(error)
            raise
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self.components.close(error)

    def events(self, *, until: int | None = None) -> Iterator[Event]:
        """Everything that happens from here to the end, or to a step, where a checkpoint is left too."""
        components = self.components
        progress, place = components.restore()
        end = self.total if until is None else min(until, self.total)
        self.pending: collections.deque[Pending] = collections.deque()
        # Where no step is left, what is measured is still the model of the last one.
        components.enter(self.config.place(max(progress.step - 1, 0))[0])
        if place is not None and components.ranks.is_rank0:
            trim(self.folder, progress.step)
        last = finals(self.folder) if components.valid is not None else read_metrics(self.folder, "sample")
        measured = any(seen.get("step") == self.total for seen in last)
        # By the first process's files: all must do the same, and others may read too early, or other disks.
        unmeasured = end == self.total and not components.ranks.broadcast(measured)
        loggers = LoggerGroup([])
        if components.ranks.is_rank0 and (progress.step < end or unmeasured):
            # One that can't begin is an error before the first step.
            report = [] if self.about is None else [Report(self.folder, self.about(components))]
            loggers = LoggerGroup([*services(self.config.run.log, self.folder), *self.loggers, *report])
            loggers.begin(self.folder.resolve().name, self.config.to_data(), progress.step)
        with StopSignals() as stopping, Metrics(self.folder, loggers, quiet=not components.ranks.is_rank0) as metrics:
            stop = False

            def stop_requested() -> bool:
                """All processes stop at the same place."""
                nonlocal stop
                stop = components.ranks.any(stopping.requested)
                return stop

            if place is not None:
                yield Resumed(step=progress.step, place=place)
                if self._missed(progress.step, end) and (seen := self._evaluate(metrics, progress, stop_requested)):
                    yield seen
            else:
                # Untrained weights take as much room as trained ones: a full disk shows now, not hours later.
                yield self._save(metrics, progress)

            while progress.step < end and not stop:
                began = time.perf_counter()
                if components.ranks.is_rank0:
                    components.saver.check()
                progress = self._step(progress)
                stop_requested()
                evaluates, saves, samples = self._due(progress.step, end)
                # On an accelerator the host stays a step ahead, unless somebody is going to look.
                ahead = 0 if stop or evaluates or saves or samples or components.device.type == "cpu" else 1
                since = progress.seconds - began
                learned = [self._read(self.pending.popleft(), since) for _ in range(len(self.pending) - ahead)]
                progress = progress.later(time.perf_counter() - began)
                for event in learned:
                    metrics.write("step", **asdict(event))
                    yield event
                if evaluates and not stop and (seen := self._evaluate(metrics, progress, stop_requested)) is not None:
                    yield seen
                if samples and not stop:
                    yield self._sample(metrics, progress)
                if saves or stop:
                    yield self._save(metrics, progress)
            components.saver.wait()
            if unmeasured and not stop:
                # After the last checkpoint: whatever happens now, the run is over, and only this is done again.
                if components.valid is not None:
                    yield from self._final_evaluations(metrics, progress, stop_requested)
                if self.sample is not None and not stop:
                    yield self._sample(metrics, progress)
                metrics.tell("end", step=progress.step)
            if stop:
                yield Stopped(step=progress.step, status=stopping.status)

    def _missed(self, step: int, end: int) -> bool:
        """Whether a stop came between a step and the evaluation that was due after it: the curve would lack that point."""
        due = 0 < step < end and self.components.valid is not None and self._due(step, end)[0]
        missing = due and all(seen.get("step") != step for seen in points(self.folder))
        return bool(self.components.ranks.broadcast(missing))

    def _due(self, step: int, end: int) -> tuple[bool, bool, bool]:
        run, total = self.config.run, self.total
        # What is due at the end is done after it.
        evaluates = self.components.valid is not None and step % run.eval_interval(total) == 0 and step < total
        samples = self.sample is not None and run.sample_every > 0 and step % run.sample_every == 0 and step < total
        return evaluates, step == end or step % run.save_interval(total) == 0, samples

    def _step(self, progress: Progress) -> Progress:
        components, (stage, stage_step) = self.components, self.config.place(progress.step)
        batch = components.loader(stage).batch(stage_step)
        rate = self.config.schedule.factor(progress.step, self.total)
        with explain_oom(components, stage):
            components.enter(stage)
            # The draws of a step go by its place in the run, not in its stage.
            steps = components.captured or components.train_step
            found = steps.step(batch, seed=self.config.run.seed, factor=rate, step=progress.step)
        if components.ema is not None:
            components.ema.update(components.model)
        after = progress.after(batch)
        self.pending.append(Pending(found, batch, after, stage, rate))
        return after

    def _read(self, pending: Pending, since: float) -> Step:
        """What a step found, judged by the guard. `since` makes of the clock the time that was spent in steps."""
        components, read, progress = self.components, pending.found.read(), pending.progress
        components.train_step.settle(read, progress.step, pending.batch)
        return Step(
            step=progress.step, stage=pending.stage, loss=read.loss, terms=read.terms, gradient_norm=read.norm,
            rate=pending.rate, tokens=progress.tokens, seconds=since + time.perf_counter(), batch=pending.batch.digest,
            skipped=read.skipped, memory=components.memory(),
        )  # fmt: skip

    def _final_evaluations(self, metrics: Metrics, progress: Progress, stop: Stop) -> Iterator[Evaluated]:
        """The last point of the curve, and the whole held-out part: once, if the sample is all of it."""
        components, few = self.components, self.config.run.eval_batches
        if components.valid is None:
            return
        pointed = any(seen.get("step") == self.total for seen in points(self.folder))
        last = None
        if not components.ranks.broadcast(pointed):
            last = self._evaluate(metrics, progress, stop)
            if last is None:
                return
            yield last
        if last is not None and components.valid.swept(few) == components.valid.swept():
            yield self._record(metrics, replace(last, final=True))
        elif (seen := self._evaluate(metrics, progress, stop, final=True)) is not None:
            yield seen

    def _evaluate(self, metrics: Metrics, progress: Progress, stop: Stop, *, final: bool = False) -> Evaluated | None:
        """Measure on a sample of the held-out part, or on all of it. None if a stop came between."""
        components = self.components
        if components.valid is None:
            raise TypeError("there is nothing to evaluate on")
        batches = 0 if final else self.config.run.eval_batches

        def between(*_: object) -> None:
            if stop():
                raise Interrupted

        with contextlib.suppress(Interrupted), components.averaged():
            seen = evaluate(
                components.model, components.valid, components.objective, precision=components.precision, batches=batches, ranks=components.ranks,
                watch=between, report=self.on_eval_rows,
            )  # fmt: skip
            bits = components.bits_per_byte(seen.loss)
            event = Evaluated(
                step=progress.step, tokens=progress.tokens, bits_per_byte=bits, final=final, **asdict(seen)
            )
            return self._record(metrics, event)
        return None

    def _record(self, metrics: Metrics, event: Evaluated) -> Evaluated:
        """Write it down: a point of the curve, or the word on the whole part, which is none."""
        values = {name: value for name, value in asdict(event).items() if name != "final"}
        metrics.write("final" if event.final else "look", **values)
        return event

    def _sample(self, metrics: Metrics, progress: Progress) -> Sampled:
        components = self.components
        if self.sample is None:
            raise TypeError("no sampler was given")
        with components.assembled() as here:
            event = Sampled(step=progress.step, text=self.sample(components, progress.step) if here else "")
        metrics.write("sample", **asdict(event))
        return event

    def _save(self, metrics: Metrics, progress: Progress) -> Saved:
        began = time.perf_counter()
        place = self.components.save(progress)
        event = Saved(step=progress.step, place=place, seconds=time.perf_counter() - began)
        metrics.tell("save", step=event.step, seconds=event.seconds)
        return event
