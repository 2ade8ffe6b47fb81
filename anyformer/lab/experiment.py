"""A study carried out: planned, run by a queue of workers, measured, and read into results. It may be stopped at any time.

The same call goes on where it stopped: the plan is kept, finished runs are kept, and half-done ones resume. This process
loads no torch; its workers do.
"""

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from anyformer.errors import AnyformerError, InputError, TrainingError, file_fault
from anyformer.files import finite, replace_file
from anyformer.lab import derived
from anyformer.lab.engine.job import RESULT, Job, config_data
from anyformer.lab.engine.progress import Progress, Stage, Watch, clock, seconds_of
from anyformer.lab.engine.queue import JobEvent, Queue, Slot
from anyformer.lab.match import matched
from anyformer.lab.plan import Plan, PlannedVariant, identity_of, plan_of, with_threads
from anyformer.lab.results import BASE, Results, RunResult, VariantResult, higher_is_better
from anyformer.lab.study import Budget, Study
from anyformer.lab.time_match import match_time
from anyformer.lab.variants import Run, Variant, read_base, stepped, variants
from anyformer.train.config import EVALS
from anyformer.train.lock import Lock

COSTS, STUDY, LOGS, TUNED = "costs.json", "study.toml", "workers", "tuned.json"
CONTEXT = 0.75 * 2**30
"""Bytes that a process takes on a GPU besides what it trains with."""
ROOM = 0.9
"""The share of a GPU's free memory that runs side by side may take."""
SIDE_BY_SIDE = 14
"""Runs on one GPU at most: beyond this its kernels wait for each other."""
CALIBRATION = 2.0
"""Seconds of steps by which a time is converted into steps."""


class Engine(Protocol):
    """What executes the runs of a study in place of worker processes of this machine."""

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Execute all jobs that are not done yet, each after the one that it begins from."""
        ...


@dataclass
class Experiment:
    """A study in a folder."""

    study: Study
    folder: Path
    device: str = ""
    """cpu, cuda or cuda:1; empty: all CUDA devices, or the CPU."""
    at_once: int = 0
    """Runs at a time on each device; 0: as many as cores and memory allow."""
    command: str = ""
    watch: Watch = lambda stage: None
    planned: Callable[[Plan], None] = lambda plan: None
    """Told what is planned before the first run begins."""
    engine: Engine | None = None
    """Planning and the measurement of speeds stay with this machine."""
    elsewhere: bool = False
    """Runs are executed on other machines: which devices and cores they have is not known here."""
    failed: dict[str, str] = field(default_factory=dict)
    """Jobs that left no result, and why."""
    notes: list[str] = field(default_factory=list)
    """What went wrong besides."""
    _drafted: list[Variant] = field(default_factory=list, repr=False)

    def run(self) -> Results:
        """Plan if need be, execute what is left, measure, and write the results."""
        return run_together([self])[0]

    def plan(self) -> tuple[Plan, float | None]:
        """Plan if need be, and execute nothing; the plan, and about how many seconds its runs take on this machine."""
        self.check()
        with self._held(), Queue([Slot(device="" if self.elsewhere else self.device)], self.folder / LOGS) as queue:
            plan = self._plan(queue)
            return plan, None if self.elsewhere else self._forecast(queue, plan)

    def _forecast(self, queue: Queue, plan: Plan) -> float:
        """Seconds of all runs, by steps of the base that all workers make at once; other variants by their FLOPs."""
        base, study = plan.variants[0], self.study
        step, look, final = self._calibrated(queue, _job_of(base), plan.devices)
        one = step * base.steps + look * EVALS + final
        tuning = len(study.tune.factors) * study.tune.seeds
        runs = sum(each.train_flops for each in plan.variants) / base.train_flops * (study.seeds + tuning)
        return one * runs / len(plan.devices)

    def check(self) -> None:
        """Refuse what can't be before anything is written, and before torch is waited for."""
        plan = Plan.read(self.folder)
        if plan is None:
            self._draft()
        else:
            plan.check_same(self.study, self.folder, self._base())

    def _base(self) -> dict[str, Any] | None:
        """What the base is now; None where it, or its data, are gone: runs that are there can still be read."""
        try:
            return identity_of(read_base(self.study))
        except AnyformerError:
            return None

    def _draft(self) -> list[Variant]:
        """All variants with the steps that are known, before any is solved; that they can be is tried."""
        if not self._drafted:
            study, base = self.study, read_base(self.study)
            budget = Budget.parse(study.budget) if study.budget else None
            if budget is not None and budget.kind != "seconds":
                base = stepped(base, _steps(budget, base))
            if len(base.config.stages) > 1 and (study.match.to == "time" or (budget and budget.kind == "seconds")):
                raise InputError(
                    f"base: has {len(base.config.stages)} stages, whose steps take different times; give the budget in steps, "
                    "tokens or flops, and match params or flops"
                )
            self._drafted = variants(study, base)
            if study.match.to in ("params", "flops"):
                matched(self._drafted, study.match)
        return self._drafted

    @contextmanager
    def _held(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with Lock(self.folder):
                yield
        except PermissionError as error:
            raise InputError(f"--out: {file_fault(error, self.folder)}") from error

    def _plan(self, queue: Queue) -> Plan:
        """The plan that is there, or a new one."""
        plan = Plan.read(self.folder)
        if plan is None:
            plan = self.make_plan(queue)
            plan.save(self.folder)
        else:
            plan.check_same(self.study, self.folder, self._base())
        text = self.study.to_toml()
        replace_file(self.folder / STUDY, lambda beside: beside.write_text(text, encoding="utf-8"))
        return plan

    def make_plan(self, queue: Queue) -> Plan:
        """Solve sizes, convert the budget, and look for all that is wrong before anything runs."""
        study, every = self.study, self._draft()
        budget = Budget.parse(study.budget) if study.budget else None
        devices, threads = self._devices(queue, every)
        every = [with_threads(variant, threads) for variant in every] if threads else every
        base = every[0].run
        words = f"{base.config.steps:,} steps"
        if budget is not None and budget.kind == "seconds":
            base, words = self._convert(queue, base, budget, devices)
        if base.config.steps != every[0].run.config.steps:
            every = [with_threads(v, threads) if threads else v for v in variants(study, base)]
        notes: list[str] = []
        match study.match.to:
            case "params" | "flops":
                every = matched(every, study.match)
            case "time":
                every, noise = match_time(every, study, lambda some: self._measured(queue, some, "matching times"))
                notes.append(noise)
            case _:
                pass
        machine = self._check(queue, every)
        return plan_of(
            every, study, budget=words, match=_match_words(study, every), machine=machine, devices=devices,
            date=time.strftime("%Y-%m-%d"), notes=notes, base=self._base() or {},
        )  # fmt: skip

    def _devices(self, queue: Queue, every: Sequence[Variant]) -> tuple[list[str], int]:
        """A device for each run at a time, and the threads of each on a CPU (0: it runs elsewhere)."""
        if self.elsewhere:
            return [""], 0
        wanted = self.device or every[0].run.config.compute.device
        self.watch(Stage(what="looking at the machine"))
        cores = len(os.sched_getaffinity(0))
        count = len(every) * self.study.seeds
        found = [] if wanted == "cpu" else queue.ask({"do": "devices"})[0]
        chosen = [pair for pair in found if wanted in ("", "cuda", pair[0])]
        if wanted not in ("", "cpu") and not chosen:
            known = ", ".join(["cpu", *(name for name, _ in found)])
            raise InputError(f"--device: {wanted!r} is not here; there are {known}")
        if not chosen:
            at_once = min(self.at_once or cores, count)
            return ["cpu"] * at_once, max(1, cores // at_once)
        queue.workers[0].slot = Slot(device=chosen[0][0])
        needed = self._memory(queue, every) + CONTEXT
        # Each run keeps a core busy with launching its kernels.
        most = max(1, min(SIDE_BY_SIDE, cores // len(chosen), *(int(ROOM * free / needed) for _, free in chosen)))
        each = min(self.at_once or most, -(-count // len(chosen)))
        return [name for _ in range(each) for name, _ in chosen], 0

    def _memory(self, queue: Queue, every: Sequence[Variant]) -> float:
        return float(queue.ask({"do": "check", "jobs": [job.to_data() for job in _probes(every)]})[0]["memory"])

    def _check(self, queue: Queue, every: Sequence[Variant]) -> dict[str, Any]:
        """The machine, if nothing is wrong with any variant."""
        self.watch(Stage(what="checking every variant"))
        found = queue.ask({"do": "check", "jobs": [job.to_data() for job in _probes(every)]})[0]
        if found["wrong"]:
            lines = [f"{name}: {' '.join(why.split())}" for name, why in found["wrong"].items()]
            raise InputError("\n  ".join(["these variants can't be trained, so nothing was begun:", *lines]))
        return found["machine"]

    def _convert(self, queue: Queue, base: Run, budget: Budget, devices: list[str]) -> tuple[Run, str]:
        """A time as steps, by steps that all workers make at once; what is evaluated on the way is paid from it."""
        step, look, final = self._calibrated(queue, _probe(BASE, base), devices)
        left = budget.amount - final
        if left < step:
            raise InputError(
                f"budget: {budget.amount:g} s are too few for one evaluation, which takes {final:.2g} s here; give each run "
                f"at least {final + 20 * step:.2g} s, or hold out a smaller part of the text"
            )
        every = base.config.run.eval_every
        # By default a run is evaluated so many times, whatever its length.
        steps = int(left / (step + look / every)) if every else int((left - min(EVALS * look, left / 2)) / step)
        base = stepped(base, max(1, steps))
        words = f"{budget.amount:g} s a run, converted into {base.config.steps:,} steps of {step * 1000:.1f} ms"
        return base, words

    def _calibrated(self, queue: Queue, job: Job, devices: list[str]) -> tuple[float, float, float]:
        """Seconds of a step, of an evaluation on the way and of the last one, while all workers do the same."""
        self.watch(Stage(what="measuring how long a step takes"))
        queue.slots = [Slot(device=name) for name in devices]
        for worker, slot in zip(queue.workers, queue.slots, strict=False):
            worker.slot = slot
        asked = {"do": "calibrate", "job": job.to_data(), "seconds": CALIBRATION}
        found = queue.ask(asked, workers=len(devices))
        step, look, final = (
            median(each[name] for each in found) for name in ("step_seconds", "eval_seconds", "final_seconds")
        )
        return step, look, final

    def _measured(self, queue: Queue, every: Sequence[Variant], what: str) -> dict[str, Any]:
        jobs = [job.to_data() for job in _probes(every)]
        report = lambda done, of: self.watch(Stage(what=what, done=done, of=of))  # noqa: E731
        asked = {"do": "costs", "jobs": jobs, "measure": self.study.to_data()["measure"]}
        return queue.ask(asked, report)[0]

    def _tuned(self, plan: Plan) -> dict[str, float]:
        """The factor on the learning rates of each variant that was best on seeds of its own."""
        if not self.study.tune.factors:
            return {}
        place, jobs = self.folder / TUNED, plan.tuning_jobs(self.study, self.folder)
        # Decided once: runs are there that have these.
        best: dict[str, float] = _read(place)
        if best:
            return best
        sign = -1.0 if higher_is_better(self.study.metric) else 1.0
        for variant in plan.variants:
            losses: dict[float, list[float]] = {}
            for name, factor, job in jobs:
                if name == variant.name and not job.shared:
                    found = job.result()
                    value = None if found is None else found.value(self.study.metric)
                    losses.setdefault(factor, []).append(float("inf") if value is None else sign * value)
            best[variant.name] = min(losses, key=lambda factor: sum(losses[factor]))
            if not math.isfinite(sum(losses[best[variant.name]])):
                raise TrainingError(
                    f"{variant.name}: none of the learning rates x {', '.join(f'{f:g}' for f in losses)} gave a finite "
                    f"{self.study.metric}; look at the folders in {self.folder / 'tuning'}, or give other factors or metrics"
                )
        replace_file(place, lambda beside: beside.write_text(json.dumps(best), encoding="utf-8"))
        return best

    def _costs(self, queue: Queue, plan: Plan) -> None:
        """Measure what each variant costs, once; nothing else runs meanwhile."""
        place = self.folder / COSTS
        if not self.study.measure.speeds or place.is_file():
            return
        jobs = [_job_of(each).to_data() for each in plan.variants]
        report = lambda done, of: self.watch(Stage(what="measuring speeds", done=done, of=of))  # noqa: E731
        asked = {"do": "costs", "jobs": jobs, "measure": self.study.to_data()["measure"]}
        try:
            found = queue.ask(asked, report)[0]
        except TrainingError as error:
            # What was trained is not lost by it; the next call tries again.
            self.notes.append(f"speeds could not be measured: {error}")
            return
        text = json.dumps(finite(found), indent=1)
        replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8"))

    def results(self, plan: Plan | None = None, factors: Mapping[str, float] | None = None) -> Results:
        """What is there so far."""
        plan = plan or Plan.read(self.folder)
        if plan is None:
            raise InputError(f"{self.folder}: is no study yet")
        study, factors = self.study, factors or _read(self.folder / TUNED)
        judged = [job for job in plan.jobs(study, self.folder, factors) if not job.shared]
        runs = {job.id: job.result() or self._missing(job) for job in judged}
        costs, notes = _read(self.folder / COSTS), [*plan.notes, *self.notes]
        tuning: dict[str, float] = {}
        for name, _, job in plan.tuning_jobs(study, self.folder):
            # Each of these runs, with the one that it begins from, cost as much as one that is judged.
            flops = next(each.train_flops for each in plan.variants if each.name == name)
            tuning[name] = tuning.get(name, 0.0) + (0.0 if job.shared else flops)
        found: list[VariantResult] = []
        for variant in plan.variants:
            own = [runs[job.id] for job in judged if job.variant == variant.name]
            measured = costs.get(variant.name, {})
            notes += [
                f"{variant.name}: seed {run.seed} {run.status}: {run.reason}" for run in own if run.status != "finished"
            ]
            if measured.get("reason"):
                notes.append(f"{variant.name}: not all costs could be measured: {measured['reason']}")
            found.append(variant.result(
                speeds=measured.get("speeds", {}), peak_memory=measured.get("peak_memory"), runs=own,
                lr_factor=factors.get(variant.name), tuning_flops=tuning.get(variant.name, 0.0),
            ))  # fmt: skip
        results = Results(
            title=study.title or f"Variants of {study.base}", metric=study.metric, study=study.to_data(), command=self.command,
            budget=plan.budget, match=plan.match, machine=_machine_words(plan), date=plan.date, notes=notes,
            seconds=seconds_of(self.folder), variants=found, claims=list(study.claims),
        )  # fmt: skip
        return derived.with_derived(results, study)

    def _missing(self, job: Job) -> RunResult:
        why = self.failed.get(job.id) or self.failed.get(job.after) or "it was not run yet"
        return RunResult(seed=job.seed, status="failed", reason=why)


def run_together(experiments: Sequence[Experiment]) -> list[Results]:
    """Several studies on one queue, so that none waits for the last run of another."""
    first = experiments[0]
    for each in experiments:
        each.check()
    with ExitStack() as stack:
        for each in experiments:
            stack.enter_context(each._held())
        queue = stack.enter_context(Queue([Slot(device=first.device)], first.folder / LOGS))
        plans = [each._plan(queue) for each in experiments]
        devices = max((plan.devices for plan in plans), key=len)
        queue.slots = [Slot(device=name) for name in devices]
        for worker, slot in zip(queue.workers, queue.slots, strict=False):
            worker.slot = slot
        planned = list(zip(experiments, plans, strict=True))
        for each, plan in planned:
            each.planned(plan)
        with clock([each.folder for each in experiments]) as note:
            tuning = [job for each, plan in planned for _, _, job in plan.tuning_jobs(each.study, each.folder)]
            if tuning:
                _execute(queue, experiments, tuning, "tuning learning rates", note)
            factors = [each._tuned(plan) for each, plan in planned]
            jobs = [plan.jobs(each.study, each.folder, by) for (each, plan), by in zip(planned, factors, strict=True)]
            _execute(queue, experiments, [job for some in jobs for job in some], "training", note)
        for each, plan in planned:
            each._costs(queue, plan)
        # While the folders are still ours.
        found = [each.results(plan, by) for (each, plan), by in zip(planned, factors, strict=True)]
        for each, results in zip(experiments, found, strict=True):
            results.save(each.folder)
    return found


def _execute(
    queue: Queue, experiments: Sequence[Experiment], jobs: Sequence[Job], what: str, note: Callable[[], None]
) -> None:
    """Execute what is not done yet; a run that fails is marked, and the others go on."""
    # Variants may share a run.
    every = list({job.id: job for job in jobs}.values())
    left = [job for job in every if _is_left(job)]
    progress = Progress(every, left, what, experiments[0].watch)
    for event in (experiments[0].engine or queue).run(left):
        if event.event == "failed":
            for each in experiments:
                each.failed[event.job.id] = event.error
        if event.event in ("done", "failed"):
            note()
        progress.tell(event)


def _is_left(job: Job) -> bool:
    """Whether a job is to be executed. Runs that failed are tried again; those that diverged have an answer."""
    found = job.result()
    if found is not None and found.status in ("failed", "out of memory"):
        (Path(job.folder) / RESULT).unlink(missing_ok=True)
        return True
    return found is None


def read_jobs(folder: Path) -> list[Job]:
    """The jobs of a planned study, in order."""
    plan = Plan.read(folder)
    if plan is None:
        raise InputError(f"{folder}: is no planned study; plan one with anyformer ablate --plan-only")
    # Not the study of the plan: seeds may have been added since.
    study = Study.from_file(folder / STUDY) if (folder / STUDY).is_file() else Study.from_data(plan.study)
    return plan.jobs(study, folder)


def _read(place: Path) -> dict[str, Any]:
    try:
        return json.loads(place.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}


def _probe(name: str, run: Run) -> Job:
    """A job that is only looked at or timed."""
    return Job(id=name, folder="-", variant=name, seed=0, config=config_data(run.config))


def _job_of(variant: PlannedVariant) -> Job:
    """The run of a planned variant that is judged, to be timed."""
    return Job(id=variant.slug, folder="-", variant=variant.name, seed=0, config=variant.then or variant.config)


def _probes(every: Sequence[Variant]) -> list[Job]:
    return [_probe(variant.name, variant.last) for variant in every]


def _steps(budget: Budget, base: Run) -> int:
    """Steps of a budget in tokens or FLOPs, or the steps themselves."""
    if budget.kind == "steps":
        return max(1, round(budget.amount))
    each = base.tokens_per_step if budget.kind == "tokens" else base.train_flops / base.config.steps
    if budget.amount < each:
        raise InputError(f"budget: {budget.amount:g} {budget.kind} are less than one step takes, {each:g}")
    return int(budget.amount / each)


def _match_words(study: Study, every: Sequence[Variant]) -> str:
    if study.match.to == "none":
        return "nothing is matched: variants have the sizes that they are given"
    names = {"params": "parameters", "flops": "training FLOPs", "time": "measured time of a step times the steps"}
    worst = max((abs(variant.off_by or 0.0) for variant in every), default=0.0)
    return f"equal {names[study.match.to]}, within {worst:.2%} of the base, by {', '.join(study.match.by)}"


def _machine_words(plan: Plan) -> str:
    machine, at_once = plan.machine, len(plan.devices)
    device = machine.get("cpu") if machine.get("device") == "cpu" else machine.get("device")
    return f"{device}, {at_once} run{'' if at_once == 1 else 's'} at a time"
