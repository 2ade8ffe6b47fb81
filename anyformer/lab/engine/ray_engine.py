"""The runs of a study as tasks of Ray, on this machine or on a cluster, in place of worker processes.

A task reads and writes the folders that its job names, so all machines of a cluster need the same files at the same paths
(shared storage) and the same installed package. Results come back through those folders, as from any other worker.
"""

import json
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anyformer.errors import CapabilityError, InputError
from anyformer.lab.engine.job import Job
from anyformer.lab.engine.queue import ATTEMPTS, GRACE, JobEvent
from anyformer.registry import installed
from anyformer.train.loggers import FILE as METRICS

POLL = 0.5
"""Seconds between two looks at how far runs are."""
REACH = 10.0
"""Seconds in which a cluster has to answer."""
TAIL = 4096
"""Bytes at the end of a run's metrics in which its last step is."""


def import_ray() -> Any:
    """The package, or an error that says what to install."""
    try:
        return installed("ray")
    except ImportError as error:
        raise CapabilityError("--engine ray needs Ray: pip install 'anyformer[ray]'") from error


@dataclass(frozen=True, kw_only=True)
class RayEngine:
    """Executes jobs as tasks of Ray. It starts Ray on this machine, or joins the cluster at `address`."""

    address: str = ""
    """Such as auto, 10.0.0.1:6379 or ray://10.0.0.1:10001; empty: this machine alone."""
    device: str = ""
    """cpu or cuda; empty: a GPU where the cluster has some."""
    at_once: int = 0
    """Runs at a time on each GPU; 0: one."""

    def run(self, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        """Execute all jobs that are not done yet, each after the one that it begins from."""
        if not jobs:
            return
        ray = import_ray()
        self._connect(ray)
        try:
            yield from self._events(ray, jobs)
        finally:
            ray.shutdown()

    def _connect(self, ray: Any) -> None:
        quiet = {"logging_level": "ERROR", "log_to_driver": False}
        try:
            if self.address:
                _reach(self.address)
                ray.init(address=self.address, **quiet)
            else:
                ray.init(address="local", include_dashboard=False, **quiet)
        except (ConnectionError, RuntimeError, ValueError, OSError) as error:
            why = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
            if not self.address:
                raise InputError(
                    f"Ray can't be started here: {why}; leave --engine out to use local workers"
                ) from error
            raise InputError(
                f"--ray-address: no Ray at {self.address} lets us in: {why}; start it with ray start --head, and if it asks "
                "for a token, set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN_PATH as for any client of Ray"
            ) from error

    def _task(self, ray: Any, job: Job) -> Any:
        """The task of a job, with what it takes of the cluster."""
        gpus = ray.cluster_resources().get("GPU", 0.0)
        wants = self.device.partition(":")[0] or ("cuda" if gpus else "cpu")
        if wants == "cuda" and not gpus:
            raise InputError("--device: the cluster of Ray has no GPU; leave it out, or give cpu")
        share = {"num_gpus": 1 / max(1, self.at_once), "num_cpus": 1} if wants == "cuda" else {
            "num_cpus": min(job.config.get("compute", {}).get("threads") or 1, ray.cluster_resources().get("CPU", 1)),
        }  # fmt: skip
        remote = ray.remote(max_retries=ATTEMPTS - 1, **share)(_execute)
        return remote.remote(job.to_data(), wants, str(Path.cwd()))

    def _events(self, ray: Any, jobs: Sequence[Job]) -> Iterator[JobEvent]:
        waiting, going, known = list(jobs), dict[Any, Job](), {job.id for job in jobs}
        over, told = set[str](), dict[str, int]()
        try:
            while waiting or going:
                ready = [job for job in waiting if not job.after or job.after not in known or job.after in over]
                for job in ready:
                    waiting.remove(job)
                    going[self._task(ray, job)] = job
                    yield JobEvent(job=job, event="started")
                done, _ = ray.wait(list(going), num_returns=1, timeout=POLL)
                for task in done:
                    job = going.pop(task)
                    over.add(job.id)
                    yield _ended(ray, task, job)
                for job in going.values():
                    step = last_step(Path(job.folder))
                    if step > told.get(job.id, 0):
                        told[job.id] = step
                        yield JobEvent(job=job, event="progress", done=step, of=_steps(job.config))
        finally:
            # A study that is stopped: runs save what they have, as they do on Ctrl-C.
            for task in going:
                ray.cancel(task)
            if going:
                ray.wait(list(going), num_returns=len(going), timeout=GRACE)


def _reach(address: str) -> None:
    """Whether somebody answers at host:port; Ray itself would wait for minutes."""
    host, colon, port = address.removeprefix("ray://").rpartition(":")
    if colon and port.isdecimal():
        socket.create_connection((host.strip("[]"), int(port)), timeout=REACH).close()


def _execute(data: Mapping[str, Any], device: str, here: str) -> dict[str, str]:
    """What a task does, in a process of Ray."""
    from anyformer.lab.engine.train_job import run_job

    # Names of folders may be relative to where the study was begun.
    os.chdir(here)
    result = run_job(Job.from_data(data), device=device)
    return {"status": result.status, "reason": result.reason}


def _ended(ray: Any, task: Any, job: Job) -> JobEvent:
    try:
        return JobEvent(job=job, event="done", value=ray.get(task))
    except ray.exceptions.RayError as error:
        cause = getattr(error, "cause", None) or error
        return JobEvent(job=job, event="failed", error=str(cause).strip().splitlines()[-1])


def _steps(config: Mapping[str, Any]) -> int:
    return sum(stage["steps"] for stage in config["stages"])


def last_step(folder: Path) -> int:
    """The last step that a run has noted in its metrics; 0 if there is none yet."""
    try:
        with (folder / METRICS).open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
            lines = file.read().splitlines()
    except OSError:
        return 0
    for line in reversed(lines):
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError):
            # Half a line, or no line of a step.
            continue
    return 0
