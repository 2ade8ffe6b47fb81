"""A worker: a process that executes one request of a study after the other, so that torch is loaded and kernels are compiled once.

Requests come as lines of JSON on standard input, answers go as lines of JSON to standard output; what else is printed goes
to standard error. When standard input ends, whoever asked is gone, and so is the worker, in the middle of a step if need be:
a run that is interrupted goes on from its last checkpoint.

    python -m anyformer.lab.engine.worker --threads 1
    python -m anyformer.lab.engine.worker --study runs/ffn --job 17       one job of a planned study, as a Slurm array runs it
"""

import argparse
import gc
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any, TextIO

from anyformer.errors import AnyformerError

Answer = Callable[..., None]


def main(argv: list[str] | None = None) -> int:
    """Work until there is nothing more to do."""
    parser = argparse.ArgumentParser(prog="anyformer.lab.engine.worker", description="Executes jobs of a study.")
    parser.add_argument("--threads", type=int, default=0, help="cores for each operation on a CPU (all)")
    parser.add_argument("--study", help="the folder of a planned study")
    parser.add_argument("--job", type=int, help="number of the job in it, from 0")
    parser.add_argument("--device", default="", help="cpu, cuda or cuda:1")
    given = parser.parse_args(argv)
    import torch

    if given.threads:
        torch.set_num_threads(given.threads)
    if given.study is not None:
        return _one(Path(given.study), given.job, given.device)
    # An exception, so that folders of measurements are removed; a run that is being trained saves first.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    # Whatever a library prints must not stand between two answers.
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    requests: SimpleQueue[str] = SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    while True:
        request = json.loads(requests.get())
        found = _serve(request, lambda **values: _answer(answers, values))
        _answer(answers, found)
        if found.get("kind") == "Interrupted":
            # Asked to stop, and all is saved: whoever asked waits for the end.
            return 0


def _one(study: Path, number: int | None, device: str) -> int:
    from anyformer.lab.engine.train_job import run_job
    from anyformer.lab.experiment import read_jobs

    jobs = read_jobs(study)
    if number is None or not 0 <= number < len(jobs):
        sys.stderr.write(f"anyformer: --job: {number} is not from 0 to {len(jobs) - 1}\n")
        return 2
    result = run_job(jobs[number], device=device)
    sys.stderr.write(f"{jobs[number].id}: {result.status} {result.reason}\n")
    return 0


def _listen(requests: "SimpleQueue[str]") -> None:
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _answer(answers: TextIO, values: Mapping[str, Any]) -> None:
    from anyformer.files import finite

    try:
        answers.write(json.dumps(finite(dict(values)), allow_nan=False) + "\n")
        answers.flush()
    except BrokenPipeError:
        os._exit(0)


def _serve(request: Mapping[str, Any], answer: Answer) -> dict[str, Any]:
    """Execute one request; what came of it."""

    def report(done: int, of: int) -> None:
        answer(event="progress", done=done, of=of)

    try:
        return {"event": "done", "value": SERVED[request["do"]](request, report)}
    except AnyformerError as error:
        return {"event": "failed", "error": str(error), "kind": type(error).__name__}
    except Exception as error:
        import traceback

        traceback.print_exc()
        return {"event": "failed", "error": f"{type(error).__name__}: {error}", "kind": ""}


def _train(request: Mapping[str, Any], report: Callable[[int, int], None]) -> Any:
    from anyformer.lab.engine.job import Job
    from anyformer.lab.engine.train_job import run_job

    began = time.perf_counter()
    try:
        result = run_job(Job.from_data(request["job"]), device=request["device"], report=report)
    finally:
        _release()
    return {"status": result.status, "reason": result.reason, "seconds": time.perf_counter() - began}


def _release() -> None:
    """Give back the memory of a job: others on the same device may need it."""
    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def _costs(request: Mapping[str, Any], report: Callable[[int, int], None]) -> Any:
    from anyformer.lab.engine.costs import measure_costs
    from anyformer.lab.engine.job import Job
    from anyformer.lab.study import Measure

    measure = Measure.from_data(request["measure"])
    jobs = [Job.from_data(job) for job in request["jobs"]]
    return measure_costs(jobs, measure, device=request["device"], report=report)


def _calibrate(request: Mapping[str, Any], report: Callable[[int, int], None]) -> Any:
    """Seconds of a step and of the evaluations of a run, while the other workers do the same."""
    from anyformer.lab.engine.costs import WARM, opened, step_seconds
    from anyformer.lab.engine.job import Job
    from anyformer.train.perplexity import evaluate

    with opened(Job.from_data(request["job"]), request["device"]) as components:
        step_seconds(components, 0, 0.0, WARM)
        spent, _ = step_seconds(components, WARM, request["seconds"], 4)
        if components.valid is None:
            return {"step_seconds": spent, "eval_seconds": 0.0, "final_seconds": 0.0}
        few = components.config.run.eval_batches
        # The first one loads what later ones find ready.
        evaluate(components.model, components.valid, components.objective, precision=components.precision, batches=1)
        began = time.perf_counter()
        read = evaluate(
            components.model,
            components.valid,
            components.objective,
            precision=components.precision,
            batches=min(few, 2) or 2,
        )
        each = (time.perf_counter() - began) / max(read.rows, 1)
        rows = components.valid.swept(few)
        return {"step_seconds": spent, "eval_seconds": each * rows, "final_seconds": each * components.valid.swept()}


def _check(request: Mapping[str, Any], report: Callable[[int, int], None]) -> Any:
    """What is wrong with runs before they begin, and the memory that a step of each takes."""
    from anyformer.lab.engine.job import Job
    from anyformer.lab.engine.train_job import prepared
    from anyformer.train.components import Components, device_of
    from anyformer.train.dry_run import load_of
    from anyformer.train.estimate import memory
    from anyformer.train.run_state import machine

    device, wrong, most = device_of(request["device"]), dict[str, str](), 0
    for i, data in enumerate(request["jobs"]):
        job = Job.from_data({**data, "start": "", "convert": {}})
        try:
            components = Components(prepared(job, request["device"]))
            components.read()
            most = max(most, memory(load_of(components, 0, device)).total)
        except AnyformerError as error:
            wrong[job.variant] = str(error)
        report(i + 1, len(request["jobs"]))
    return {"wrong": wrong, "memory": most, "machine": machine(device), "device": str(device)}


def _devices(request: Mapping[str, Any], report: Callable[[int, int], None]) -> Any:
    """CUDA devices that are there, with their free memory."""
    import torch

    if not torch.cuda.is_available():
        return []
    return [[f"cuda:{i}", torch.cuda.mem_get_info(i)[0]] for i in range(torch.cuda.device_count())]


SERVED = {"train": _train, "costs": _costs, "calibrate": _calibrate, "check": _check, "devices": _devices}

if __name__ == "__main__":
    raise SystemExit(main())
