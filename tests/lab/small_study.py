"""Studies whose runs take a fraction of a second, on data that are made up; and one of them in a process that can be killed.

python -m tests.lab.small_study STUDY.toml FOLDER
"""

import os
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from anyformer.lab.engine import worker
from anyformer.lab.engine.job import Job, config_data
from anyformer.lab.experiment import Experiment
from anyformer.lab.results import Results, RunResult
from anyformer.lab.study import Study
from anyformer.lab.variants import Run, Variant, read_base, variants
from anyformer.specs.codec import flatten

BASE = """
[model.spec]
vocab = 32
width = 16
depth = 1
context = 32
attention = { heads = 2 }
head = { kind = "lm", tied = true }
ids = { pad = 0, bos = 1, eos = [2] }
[data]
folder = "DATA"
rows = "stream"
[optim]
kind = "adamw"
[[stages]]
steps = STEPS
length = 16
batch = 4
[compute]
threads = 1
[guard]
patience = 3
[run]
folder = "unused"
eval_every = 5
eval_batches = 1
save_every = 4
"""
STEPS = 12
MEASURED = {"lengths": [8, 16], "steps_to": [3.3], "gradients": True, "speeds": False}


def write_base(folder: Path, steps: int = STEPS, text: str = BASE) -> str:
    """A config with its data; the path of its file."""
    from tests.train.small_data import text_data

    data = folder / "data"
    if not data.is_dir():
        text_data(data)
    place = folder / f"base-{steps}.toml"
    place.write_text(text.replace("DATA", str(data)).replace("STEPS", str(steps)))
    return str(place)


def study_of(base: str, **more: Any) -> Study:
    """A study on a CPU that measures no speeds."""
    return Study.from_data({"base": base, "measure": {"speeds": False}, "seeds": 2, **more})


def variants_of(base: str, **more: Any) -> list[Variant]:
    study = study_of(base, **more)
    return variants(study, read_base(study))


def job_of(run: Run, folder: Path, **more: Any) -> Job:
    """A run as a job, of seed 0 and called base unless something else is said."""
    given = {"id": str(folder), "folder": str(folder), "variant": more.pop("name", "base"), "seed": 0} | more
    return Job(config=config_data(run.config), **given)


def found_by(run: RunResult) -> dict[str, Any]:
    """What a run found, without what a clock decides."""
    return {name: value for name, value in asdict(run).items() if name != "seconds"}


def table_of(results: Results) -> dict[str, Any]:
    """All of a study by dotted names, without measured speeds, seconds and dates."""
    data = results.to_data()
    for name in ("seconds", "date"):
        del data[name]
    for variant in data["variants"]:
        del variant["speeds"]
        for run in variant["runs"]:
            del run["seconds"]
    return dict(flatten(data))


def differing(one: Results, other: Results) -> list[str]:
    """The names in which two studies differ."""
    mine, theirs = table_of(one), table_of(other)
    return sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))


def children(parent: int) -> list[int]:
    """The workers that a process has started and that are there still; other tests of the same process have other children."""
    found: list[int] = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, above = place.read_text().rpartition(")")[2].split()[:2]
            called = place.with_name("cmdline").read_bytes()
        except OSError:
            continue
        if int(above) == parent and state != "Z" and worker.__name__.encode() in called:
            found.append(int(place.parent.name))
    return found


def is_running(process: int) -> bool:
    """Whether there is such a process, and not only its exit status."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def wait_until(condition, seconds: float = 60.0, every: float = 0.01) -> bool:
    """Wait for something that is bound to come; whether it came."""
    end = time.monotonic() + seconds
    while not (found := condition()) and time.monotonic() < end:
        time.sleep(every)
    return bool(found)


def main(study: str, folder: str) -> None:
    """Carry out a study, one run at a time."""
    Experiment(study=Study.from_file(study), folder=Path(folder), device="cpu", at_once=1).run()


if __name__ == "__main__":
    main(*sys.argv[1:3])
    sys.stdout.flush()
    os._exit(0)
