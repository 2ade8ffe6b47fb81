"""The runs of a study as tasks of Ray on this machine."""

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli.tokenize import make_data
from anyformer.errors import CapabilityError
from anyformer.lab.engine import ray_engine
from anyformer.lab.engine.job import Job, config_data, read_result
from anyformer.lab.engine.ray_engine import RayEngine, last_step
from anyformer.lab.engine.train_job import run_job
from anyformer.train.config import Config
from tests.cli.command import run
from tests.cli.small_study import write_base

needs_ray = pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'anyformer[ray]'")
ROOT = Path(af.__file__).parents[1]


CODE = """
import json
from pathlib import Path
from anyformer.lab.engine.job import Job
from anyformer.lab.engine.ray_engine import RayEngine
jobs = [Job.from_data(data) for data in json.loads(Path("jobs.json").read_text())]
for event in RayEngine(device="cpu").run(jobs):
    print(json.dumps([event.event, event.job.id, event.value, event.error]), flush=True)
"""


def jobs_in(parent: str) -> list[Job]:
    """Two runs, one after the other, and one that can't be finished."""
    config = config_data(Config.from_file("small.toml"))
    wrong = {**config, "data": {**config["data"], "valid": "nothing"}}
    given = {"variant": "base", "seed": 0}
    return [
        Job(id="second", folder=f"{parent}/second", config=config, after="first", start=f"{parent}/first", **given),
        Job(id="first", folder=f"{parent}/first", config=config, shared=True, **given),
        Job(id="wrong", folder=f"{parent}/wrong", config=wrong, **given),
    ]


@needs_ray
def test_ray_gives_the_results_of_local_runs_in_order_and_leaves_no_process(tmp_path, monkeypatch, capsys):
    write_base(tmp_path)
    monkeypatch.chdir(tmp_path)
    make_data("data/foxes", "foxes.txt --lines --train chars --hold-out 0.2", quiet=True)
    Path("jobs.json").write_text(json.dumps([job.to_data() for job in jobs_in("ray")]))
    # In a process of its own: Ray leaves threads and handlers in the one that starts it.
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CODE], env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    events = [json.loads(line) for line in done.stdout.splitlines()]
    told = [(event, job) for event, job, _, _ in events if event != "progress"]
    assert told.index(("done", "first")) < told.index(("started", "second")) < told.index(("done", "second"))
    ends = {job: value["status"] for event, job, value, _ in events if event == "done"}
    assert ends == {"first": "finished", "second": "finished", "wrong": "failed"}
    for job in sorted(jobs_in("local"), key=lambda each: each.id != "first"):
        here, there = run_job(job, device="cpu"), read_result(Path("ray") / job.id)
        assert there is not None
        assert (there.status, there.metrics, there.curve) == (here.status, here.metrics, here.curve)
    assert _processes_in(tmp_path) == []


def _processes_in(folder: Path) -> list[str]:
    """Processes that were started for a study here: workers of Ray have its folder as their current one."""
    found = []
    for place in Path("/proc").glob("[0-9]*/cwd"):
        try:
            inside = Path(os.readlink(place)).is_relative_to(folder)
        except OSError:
            continue
        if inside and int(place.parent.name) != os.getpid():
            found.append((place.parent / "cmdline").read_text())
    return found


@needs_ray
def test_ray_at_an_address_where_nobody_answers_says_so_at_once():
    code = (
        "from anyformer.lab.engine.job import Job\nfrom anyformer.lab.engine.ray_engine import RayEngine\n"
        "job = Job(id='a', folder='-', variant='base', seed=0, config={})\n"
        "list(RayEngine(address='127.0.0.1:1').run([job]))\n"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], env=os.environ | {"PYTHONPATH": str(ROOT)},
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert "InputError: --ray-address: no Ray at 127.0.0.1:1 lets us in: " in done.stderr


def test_ray_without_the_package_says_what_to_install(tmp_path, monkeypatch, capsys):
    def missing(name):
        raise ImportError(name)

    write_base(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(ray_engine, "installed", missing)
    with pytest.raises(CapabilityError, match=r"pip install 'anyformer\[ray\]'"):
        ray_engine.import_ray()
    done = run(capsys, "ablate", "small.toml", "--vary", "width=32", "--engine", "ray", "--out", "runs/x")
    assert done.status == 1
    assert "pip install 'anyformer[ray]'" in done.err
    assert not Path("runs/x").exists()


def test_ray_reads_the_last_step_of_a_run_from_the_end_of_its_metrics(tmp_path):
    assert last_step(tmp_path) == 0
    lines = [json.dumps({"kind": "step", "step": i, "loss": 1.0}) for i in range(1, 500)]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines) + '\n{"kind": "st')
    assert last_step(tmp_path) == 499


def test_ray_engine_without_jobs_starts_nothing(monkeypatch):
    monkeypatch.setattr(ray_engine, "import_ray", lambda: pytest.fail("Ray was started"))
    assert list(RayEngine().run([])) == []
