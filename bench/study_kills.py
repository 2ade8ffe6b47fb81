"""Studies that are killed at random times: what is lost, what is left behind, and whether they end as one that was not.

    python bench/study_kills.py [--kills 20] [--seeds 4] [--steps 200] [--jobs 2] [--seed 0]

A study of three variants of a small model on a CPU (12 runs with 4 seeds) is started in a process of its own. After a
random time SIGKILL hits, in turn, the process of the study alone, that process and all workers, or one worker; the same
command then goes on, or the study does by itself. If it gets to its end before there were enough kills, another one
begins. Then every field of the results but measured speeds, seconds and dates is compared with those of a study that
nothing happened to. After each kill no worker may stay, and no result that was there may be gone or another. Exit status
1 if anything was lost, left or different.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from anyformer.lab.results import Results
from anyformer.lab.study import Study
from tests.lab.small_study import MEASURED, children, differing, is_running, wait_until, write_base

WAYS = ("the study", "all processes", "a worker")
CODE = (
    "import sys; from pathlib import Path; from anyformer.lab.experiment import Experiment; "
    "from anyformer.lab.study import Study; study, folder, jobs = sys.argv[1:]; "
    "Experiment(study=Study.from_file(study), folder=Path(folder), device='cpu', at_once=int(jobs)).run()"
)


def start(study, folder, jobs):
    return subprocess.Popen([sys.executable, "-c", CODE, str(study), str(folder), str(jobs)], start_new_session=True)


def finish(study, folder, jobs):
    """To the end, which must come."""
    began = time.perf_counter()
    assert start(study, folder, jobs).wait() == 0
    return time.perf_counter() - began


def written(folder):
    """The results of runs that are there, as they are on the disk."""
    return {str(place): place.read_bytes() for place in folder.glob("runs/*/*/result.json")}


def progress(folder):
    """Bytes that runs have written of their steps."""
    return sum(place.stat().st_size for place in folder.glob("runs/*/*/metrics.jsonl"))


def kill(child, way, draw):
    """Kill in one of the ways; the workers that there were, and how long the last of them stayed."""
    workers = children(child.pid)
    if way == "a worker":
        if workers:
            os.kill(draw.choice(workers), signal.SIGKILL)
        return workers, 0.0
    os.kill(child.pid, signal.SIGKILL)
    if way == "all processes":
        for worker in workers:
            os.kill(worker, signal.SIGKILL)
    child.wait()
    began = time.perf_counter()
    wait_until(lambda: not any(map(is_running, workers)), 30.0)
    return workers, time.perf_counter() - began


def killed(room, study, jobs, kills, draw, longest):
    """Studies to their end, with so many kills in all."""
    found = {"kills": 0, "by_way": dict.fromkeys(WAYS, 0), "after_planning": 0, "studies": 0, "lost": 0, "left": 0}
    stayed, folders = [0.0], list[Path]()
    while found["kills"] < kills:
        folder, known, before = room / f"killed{found['studies']}", {}, 0
        found["studies"] += 1
        folders.append(folder)
        child = start(study, folder, jobs)
        while found["kills"] < kills:
            try:
                assert child.wait(draw.uniform(0.3, longest)) == 0
                break
            except subprocess.TimeoutExpired:
                pass
            way, begun = WAYS[found["kills"] % len(WAYS)], (folder / "plan.json").is_file()
            workers, seconds = kill(child, way, draw)
            if way == "a worker" and not workers:
                continue
            found["kills"] += 1
            found["by_way"][way] += 1
            found["after_planning"] += begun
            stayed.append(seconds)
            now = written(folder)
            lost = [place for place, held in known.items() if now.get(place) != held]
            found["lost"] += len(lost)
            known = now
            # Just long enough to get a little further each time: the more kills, the more is seen.
            longest *= 0.9 if progress(folder) != before else 1.2
            before = progress(folder)
            if way != "a worker":
                found["left"] += sum(map(is_running, workers))
                child = start(study, folder, jobs)
            print(f"  {found['kills']} kills: {way}, {len(now)} runs are done", flush=True)
        assert child.wait() == 0
    return found | {"longest_that_a_worker_stayed_s": round(max(stayed), 3)}, folders


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as made:
        room = Path(made)
        base = write_base(room, given.steps)
        axes = {"ffn.kind": ["relu"], "position.kind": ["alibi"]}
        study = Study.from_data({"base": base, "vary": axes, "seeds": given.seeds, "measure": MEASURED})
        file = room / "study.toml"
        file.write_text(study.to_toml())
        alone = finish(file, room / "whole", given.jobs)
        reference = Results.read(room / "whole")
        runs = sum(len(each.runs) for each in reference.variants)
        print(f"a study of {runs} runs takes {alone:.1f} s when nothing happens; seed {given.seed}", flush=True)
        found, folders = killed(room, file, given.jobs, given.kills, draw, 0.6 * alone)
        different = 0
        for folder in folders:
            results = Results.read(folder)
            if any("its process ended" in run.reason for each in results.variants for run in each.runs):
                # Two kills of one job: it was given up, and is tried again.
                finish(file, folder, given.jobs)
                results = Results.read(folder)
            wrong = differing(results, reference)
            different += len(wrong)
            for name in wrong:
                print(f"  {folder.name} differs in {name}", flush=True)
    found |= {"runs": runs, "different_fields": different}
    print(json.dumps(found, indent=1))
    sys.exit(bool(found["lost"] or found["left"] or different))


if __name__ == "__main__":
    main()
