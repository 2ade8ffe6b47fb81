"""Executing a job of a study: one training run, its measurements, and the result that it leaves.

It resumes by itself: a finished job has a result and is not done again, and a run that was interrupted goes on from its
last checkpoint.
"""

import json
import math
import shutil
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from anyformer.convert.surgery import operate
from anyformer.errors import AnyformerError, TrainingError
from anyformer.families.io import load
from anyformer.files import finite, replace_file
from anyformer.lab.engine.job import RESULT, Job, read_result
from anyformer.lab.engine.measurements import measurements
from anyformer.lab.results import RunResult, Status
from anyformer.lab.study import Measure
from anyformer.lab.variants import surgery_of
from anyformer.model.native_checkpoint import save
from anyformer.train.checkpoint import FOLDER
from anyformer.train.config import Config
from anyformer.train.dry_run import WORDS, is_oom
from anyformer.train.loggers import finals, points, read_metrics
from anyformer.train.trainer import Step, Stopped, Trainer

START = "start"
"""Inside of a run's folder: the converted weights that it begins from."""
SAVES = 4
"""Checkpoints of a run, unless the config says how often."""
TELL = 0.5
"""Seconds between two reports of progress."""
Report = Callable[[int, int], None]


class Interrupted(AnyformerError):
    """The job was asked to stop; everything is saved."""


def run_job(job: Job, *, device: str = "", report: Report = lambda step, of: None) -> RunResult:
    """Execute a job, or go on with it. A run that can't be finished has a result too, which says why."""
    found = job.result()
    if found is not None:
        return found
    folder = Path(job.folder)
    try:
        result = _unbegun(job) or _train(job, device, report)
    except (AnyformerError, MemoryError, RuntimeError, ValueError, OSError) as error:
        if isinstance(error, Interrupted | OSError):
            raise
        result = _lost(job, error)
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(finite(asdict(result)), allow_nan=False)
    replace_file(folder / RESULT, lambda beside: beside.write_text(text, encoding="utf-8"))
    if result.status in ("finished", "diverged"):
        # What only a resume needs; a run that failed is tried again, and goes on from there.
        for left in (FOLDER, START):
            shutil.rmtree(folder / left, ignore_errors=True)
    return result


def _unbegun(job: Job) -> RunResult | None:
    """The result of a run that has nothing to begin from, because the one before it was lost."""
    before = read_result(Path(job.start)) if job.after else None
    if not job.after or (before is not None and before.status == "finished"):
        return None
    status, why = (
        ("failed", "has no result") if before is None else (before.status, f"{before.status}: {before.reason}")
    )
    return RunResult(seed=job.seed, status=status, reason=f"the run that it begins from {why}")


def _train(job: Job, device: str, report: Report) -> RunResult:
    folder, config = Path(job.folder), prepared(job, device)
    with warnings.catch_warnings():
        # Steps that were left out are counted in the result.
        warnings.simplefilter("ignore")
        with Trainer(config, about=None) as trainer:
            told = 0.0
            for event in trainer.events():
                match event:
                    case Step():
                        if time.monotonic() - told > TELL:
                            told = time.monotonic()
                            report(event.step, trainer.total)
                    case Stopped():
                        raise Interrupted(f"stopped after step {event.step}, and saved")
            steps = read_metrics(folder, "step")
            # Read back: the last evaluation may be of an earlier attempt.
            judged = finals(folder)
            if not judged:
                raise TrainingError("there is no held-out part to judge by; name one in data.valid")
            metrics: dict[str, float | None] = {name: judged[-1].get(name) for name in ("loss", "bits_per_byte")}
            metrics |= judged[-1].get("figures") or {}
            curve = _curve(folder)
            metrics |= measurements(trainer.components, Measure.from_data(job.measure), steps, curve)
    done = steps[-1] if steps else {"seconds": 0.0, "tokens": 0}
    before = read_result(Path(job.start)) if job.after else None
    if before is not None:
        metrics |= {f"before.{name}": value for name, value in before.metrics.items()}
    loss = metrics["loss"]
    broken = loss is None or not math.isfinite(loss)
    return RunResult(
        seed=job.seed, status="diverged" if broken else "finished", metrics=metrics, curve=curve,
        reason="the held-out loss is not finite" if broken else "",
        seconds=float(done["seconds"]), steps=trainer.total, tokens=int(done["tokens"]),
    )  # fmt: skip


def _curve(folder: Path) -> list[tuple[int, int, float]]:
    return [(int(p["step"]), int(p["tokens"]), float(p["loss"])) for p in points(folder) if p["loss"] is not None]


def prepared(job: Job, device: str = "") -> Config:
    """The config of a job as it is run, with the weights that it begins from made if need be."""
    data = {**job.config, "run": {**job.config["run"], "folder": job.folder, "seed": job.seed}}
    if not data["run"].get("save_every"):
        steps = sum(stage["steps"] for stage in data["stages"])
        data["run"]["save_every"] = max(1, -(-steps // SAVES))
    if device:
        data["compute"] = {**data.get("compute", {}), "device": device}
    if job.start:
        data["model"] = {**data["model"], "weights": _converted(job)}
    return Config.from_data(data, job.id)


def _converted(job: Job) -> str:
    """The folder of the weights that a run begins from, after surgery if there is any."""
    if not job.convert:
        return job.start
    place = Path(job.folder) / START
    if not (place / "spec.toml").is_file():
        place.parent.mkdir(parents=True, exist_ok=True)
        save(operate(load(job.start, device="cpu"), surgery_of(job.convert, job.seed)), place)
    return str(place)


def _lost(job: Job, error: BaseException) -> RunResult:
    """The result of a run that can't be finished."""
    words = str(error)
    status: Status = "failed"
    if is_oom(error) or WORDS.search(words):
        status = "out of memory"
    elif isinstance(error, TrainingError) and "steps in a row were left out" in words:
        status = "diverged"
    elif not isinstance(error, AnyformerError):
        words = f"{type(error).__name__}: {words}"
    steps = read_metrics(Path(job.folder), "step")
    done = steps[-1] if steps else {"seconds": 0.0, "tokens": 0, "step": 0}
    return RunResult(
        seed=job.seed, status=status, reason=words[:500], curve=_curve(Path(job.folder)),
        seconds=float(done["seconds"]), steps=int(done["step"]), tokens=int(done["tokens"]),
    )  # fmt: skip
