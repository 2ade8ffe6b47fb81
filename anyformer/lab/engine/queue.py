"""The queue of a study on this machine: worker processes, each on a device of its own or side by side on one.

A worker that dies takes its job down, not the study: the job is given to another one, once. Jobs of one variant go to the
worker that had it last, where its kernels are compiled already.
"""

import contextlib
import json
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

from anyformer.errors import CapabilityError, InputError, TrainingError
from anyformer.lab.engine.job import Job

ATTEMPTS = 2
"""How often a job is given out whose worker dies."""
GRACE = 60.0
"""Seconds in which workers save when the study is stopped."""


@dataclass(frozen=True, kw_only=True)
class Slot:
    """Where a worker computes."""

    device: str
    threads: int = 0


@dataclass(frozen=True, kw_only=True)
class JobEvent:
    """What happened to a job."""

    job: Job
    event: str
    """started, progress, done or failed"""
    done: int = 0
    of: int = 0
    error: str = ""
    value: Any = None


class Worker:
    """A worker process. What it answers lies in a queue that all workers share."""

    def __init__(self, slot: Slot, answers: "SimpleQueue[tuple[Worker, dict[str, Any]]]", log: Path) -> None:
        self.slot, self.last = slot, ""
        self.job: Job | None = None
        self._log = log.open("ab")
        self._process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-m", "anyformer.lab.engine.worker", "--threads", str(slot.threads)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._log, start_new_session=True,
        )  # fmt: skip
        self._answers = answers
        self._reader = threading.Thread(target=self._listen, daemon=True)
        self._reader.start()
        self.log = log

    def _listen(self) -> None:
        if self._process.stdout is not None:
            for line in self._process.stdout:
                with contextlib.suppress(ValueError):
                    self._answers.put((self, json.loads(line)))
        self._answers.put((self, {"event": "gone", "code": self._process.wait()}))

    def ask(self, request: Mapping[str, Any]) -> None:
        """Give it something to do."""
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.write(json.dumps({**request, "device": self.slot.device}).encode() + b"\n")
                self._process.stdin.flush()

    def stop(self) -> None:
        """Ask it to save and to end."""
        self._process.terminate()

    def close(self, *, grace: float = 0.0) -> None:
        """End it; within so many seconds by itself if it was asked to stop and has something to save."""
        if grace:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(grace if self.job is not None else 0.1)
        with contextlib.suppress(OSError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        try:
            self._process.wait(5.0)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._reader.join(5.0)
        if self._process.stdout is not None:
            self._process.stdout.close()
        self._log.close()


@dataclass
class Queue:
    """Workers for the duration of a `with`."""

    slots: Sequence[Slot]
    folder: Path
    """Where they keep their logs."""
    workers: list[Worker] = field(default_factory=list)
    started: int = 0
    answers: "SimpleQueue[tuple[Worker, dict[str, Any]]]" = field(default_factory=SimpleQueue)

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        stopped = error is not None
        if stopped:
            for worker in self.workers:
                worker.stop()
        for worker in self.workers:
            worker.close(grace=GRACE if stopped else 0.0)
        self.workers = []

    def _start(self, slot: Slot) -> Worker:
        worker = Worker(slot, self.answers, self.folder / f"worker-{self.started}.log")
        self.started += 1
        self.workers.append(worker)
        return worker

    def _lose(self, worker: Worker) -> None:
        """Let go of a worker that is gone; another one may take its place."""
        if worker in self.workers:
            self.workers.remove(worker)
            worker.close()

    def ask(
        self,
        request: Mapping[str, Any],
        report: Callable[[int, int], None] = lambda done, of: None,
        workers: int = 1,
    ) -> list[Any]:
        """One request to some workers at the same time, alone on the machine; what each of them answers.

        One that dies, or has died since it was asked last, is replaced once.
        """
        while len(self.workers) < workers:
            self._start(self.slots[len(self.workers) % len(self.slots)])
        asked, found, attempts = self.workers[:workers], dict[int, Any](), 1
        for worker in asked:
            worker.ask(request)
        while len(found) < len(asked):
            worker, answer = self.answers.get()
            if answer["event"] == "gone":
                self._lose(worker)
            if worker not in asked:
                continue
            if answer["event"] == "gone" and attempts < ATTEMPTS:
                attempts += 1
                asked[asked.index(worker)] = other = self._start(worker.slot)
                other.ask(request)
                continue
            if answer["event"] == "progress":
                report(answer["done"], answer["of"])
            elif answer["event"] == "done":
                found[id(worker)] = answer["value"]
            else:
                self._raise(worker, answer)
        return [found[id(worker)] for worker in asked]

    def _raise(self, worker: Worker, answer: Mapping[str, Any]) -> None:
        if answer["event"] == "gone":
            raise TrainingError(f"a worker ended with status {answer['code']}; its log is {worker.log}")
        kinds = {
            "InputError": InputError,
            "SpecError": InputError,
            "DataError": InputError,
            "CapabilityError": CapabilityError,
        }
        raise kinds.get(answer.get("kind", ""), TrainingError)(answer["error"])

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Execute all jobs that are not done yet, each after the one that it begins from."""
        waiting, attempts = deque(jobs), dict[str, int]()
        known = {job.id for job in jobs}
        over: set[str] = set()
        while waiting or any(worker.job is not None for worker in self.workers):
            yield from self._hand_out(waiting, known, over)
            worker, answer = self.answers.get()
            job = worker.job
            if answer["event"] == "gone":
                self._lose(worker)
            if job is None:
                continue
            match answer["event"]:
                case "progress":
                    yield JobEvent(job=job, event="progress", done=answer["done"], of=answer["of"])
                    continue
                case "gone":
                    attempts[job.id] = attempts.get(job.id, 0) + 1
                    if attempts[job.id] < ATTEMPTS:
                        waiting.appendleft(job)
                        continue
                    why = f"its process ended {attempts[job.id]} times with status {answer['code']}; see {worker.log}"
                    yield JobEvent(job=job, event="failed", error=why)
                case "done":
                    yield JobEvent(job=job, event="done", value=answer["value"])
                case "failed" if answer.get("kind") == "Interrupted":
                    # Somebody asked the worker to stop, not the study: it ends now, and its job is given out again.
                    continue
                case _:
                    yield JobEvent(job=job, event="failed", error=answer["error"])
            worker.job = None
            over.add(job.id)

    def _hand_out(self, waiting: "deque[Job]", known: set[str], over: set[str]) -> Iterator[JobEvent]:
        """Give each idle worker a job, and start one where there is room and work."""
        while waiting:
            ready = [job for job in waiting if not job.after or job.after not in known or job.after in over]
            idle = [worker for worker in self.workers if worker.job is None]
            if not ready or (not idle and len(self.workers) >= len(self.slots)):
                return
            worker = idle[0] if idle else self._start(self._free_slot())
            busy = {other.last for other in self.workers if other is not worker}
            # Its own variant first, then one that nobody works on.
            job = min(ready, key=lambda each: (each.variant != worker.last, each.variant in busy))
            waiting.remove(job)
            worker.job, worker.last = job, job.variant
            worker.ask({"do": "train", "job": job.to_data()})
            yield JobEvent(job=job, event="started")

    def _free_slot(self) -> Slot:
        taken = [worker.slot for worker in self.workers]
        left = list(self.slots)
        for slot in taken:
            if slot in left:
                left.remove(slot)
        return left[0]
