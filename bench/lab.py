"""What a study costs besides its runs, and what runs side by side on one device are worth.

    python bench/lab.py [--runs 20] [--steps 300] [--jobs 0] [--at-once 1 2 4] [--device cpu] [--width 64] [--capture]

First a study of so many runs: its wall time times the runs at a time, less what workers spent in jobs, is its own time:
starting processes, planning, handing out, waiting for the last run. Then the throughput of N training runs at the same
time on the device, each in a process of its own, against one alone; all steps are made while the others make theirs.
"""

import argparse
import os
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

from anyformer.data.dataset import Examples
from anyformer.lab.engine.job import Job, config_data
from anyformer.lab.engine.queue import Queue, Slot
from anyformer.lab.experiment import Experiment
from anyformer.lab.study import Study
from anyformer.lab.variants import read_base, variants
from tests.train.small_data import write_data

BASE = """
[model.spec]
vocab = 1024
width = {width}
depth = {depth}
context = {length}
attention = {{ heads = 4 }}
ids = {{ pad = 0, bos = 1, eos = [2] }}
[data]
folder = "{data}"
rows = "stream"
[[stages]]
steps = {steps}
length = {length}
batch = {batch}
[compute]
capture = {capture}
tf32 = {capture}
[run]
folder = "unused"
eval_batches = 2
"""


def examples(count, seed):
    """Documents of random tokens: how fast they are learned from is all that counts."""
    draw = np.random.default_rng(seed)
    rows = [draw.integers(4, 1024, draw.integers(50, 400)) for _ in range(count)]
    return Examples.of({"tokens": rows}, bytes=sum(map(len, rows)))


def written(room, given):
    """The base of the study."""
    data = write_data(room / "data", {"train": examples(2000, 0), "valid": examples(40, 1)})
    sizes = {name: getattr(given, name) for name in ("width", "depth", "length", "batch", "steps")}
    place = room / "base.toml"
    place.write_text(BASE.format(data=data, capture=str(given.capture).lower(), **sizes))
    return str(place)


class Recorded:
    """The queue's events with their times, while a `with` lasts."""

    def __enter__(self):
        seen, self.starts, self.ends, self.inside, self.plain = self, list[float](), list[float](), 0.0, Queue.run

        def run(self: Queue, jobs):
            for event in seen.plain(self, jobs):
                if event.event == "started":
                    seen.starts.append(time.perf_counter())
                if event.event == "done":
                    seen.ends.append(time.perf_counter())
                    seen.inside += event.value["seconds"]
                yield event

        Queue.run = run
        return self

    def __exit__(self, *_):
        Queue.run = self.plain


def own_time(base, room, given):
    """The study of so many runs, and what it takes besides them."""
    axes = {"ffn.kind": ["relu"], "norm.kind": ["layernorm"], "lr": [2]}
    seeds = -(-given.runs // 4)
    study = Study.from_data({"base": base, "vary": axes, "seeds": seeds, "measure": {"speeds": False}})
    made = Experiment(study=study, folder=room / "study", device=given.device, at_once=given.jobs)
    began = time.perf_counter()
    with Recorded() as seen:
        results = made.run()
    wall = time.perf_counter() - began
    at_once = int(results.machine.split(", ")[-1].split()[0])
    runs, spent = len(seen.ends), wall * at_once
    lost = [run.reason for each in results.variants for run in each.runs if run.status != "finished"]
    assert not lost, lost
    waiting = sum(max(seen.ends) - end for end in sorted(seen.ends)[-at_once:])
    print(f"{runs} runs of {given.steps} steps on {results.machine}")
    print(f"  wall time {wall:.1f} s, in jobs {seen.inside:.1f} s: {seen.inside / runs:.2f} s a run")
    print(f"  outside of jobs {1 - seen.inside / spent:.1%} of {spent:.1f} s of worker time")
    print(f"    until the first job is handed out {seen.starts[0] - began:.1f} s of wall time")
    print(f"    workers that waited for the last run {waiting / spent:.1%}")


def throughput(base, room, given):
    """Runs side by side against one at a time."""
    study = Study.from_data({"base": base, "vary": {"lr": [2]}})
    run = variants(study, read_base(study))[0].run
    print(f"\nruns at the same time on {given.device or 'the device'}, {run.tokens_per_step:,} tokens a step")
    alone = None
    for count in given.at_once:
        config = config_data(run.config)
        if given.device == "cpu":
            # As the study does: the cores are shared out.
            config["compute"] = {**config.get("compute", {}), "threads": max(1, given.cores // count)}
        job = Job(id="-", folder="-", variant="base", seed=0, config=config)
        with Queue([Slot(device=given.device) for _ in range(count)], room / "logs") as queue:
            asked = {"do": "calibrate", "job": job.to_data(), "seconds": given.seconds}
            step = median(each["step_seconds"] for each in queue.ask(asked, workers=count))
        tokens = count * run.tokens_per_step / step
        alone = alone or tokens
        print(
            f"  {count:3}: {step * 1000:8.2f} ms a step, {tokens:12,.0f} tokens/s in all, {tokens / alone:5.2f} x one",
            flush=True,
        )


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=0, help="runs at a time in the study (as many as it finds good)")
    parser.add_argument("--at-once", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--depth", type=int, default=2)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps, for each number of runs side by side")
    parser.add_argument("--capture", action="store_true", help="steps by CUDA graphs, and TF32")
    given = parser.parse_args()
    given.cores = len(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as made:
        room = Path(made)
        base = written(room, given)
        own_time(base, room, given)
        throughput(base, room, given)


if __name__ == "__main__":
    main()
