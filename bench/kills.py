"""Runs that are killed and interrupted at random times: what is lost, and whether they end as one that was not.

    python bench/kills.py [--kills 200] [--signals 40] [--samples] [--seed 0]

A small run on a CPU with a mean of its weights and looks at held-out rows is started in a child process, killed by
SIGKILL after a random time, and started again by the same config, until it gets to its end; then a new one begins. Its
last weights, mean, optimizer state, losses, held-out losses and samples are compared to the bit with those of a run that
nothing happened to. With --samples it also speaks every few steps, and is compared with a third run that neither looks
nor speaks: what only reads a model must change nothing that is learned. After each kill the newest checkpoint must verify, and none may be partial or
older than one that was there before. Then SIGTERM and SIGINT are sent at random times: each must end in a checkpoint of
the last step. Children are forked from one process that has everything imported. Exit status 1 if anything was lost.
"""

import argparse
import contextlib
import io
import json
import os
import random
import signal
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from anyformer.cli.main import main as anyformer
from anyformer.lab.train_run import training
from anyformer.train.checkpoint import newest
from anyformer.train.config import Config
from anyformer.train.trainer import Stopped, Trainer

CONFIG = """
[model.spec]
width = 16
depth = 2
context = 64
attention = { heads = 2 }
block = { dropout = 0.1 }
[data]
folder = "DATA"
[[stages]]
steps = 24
length = 32
batch = 4
[[stages]]
steps = 24
length = 64
batch = 4
[run]
folder = "RUN"
ema = 0.9
eval_every = 12
eval_batches = 2
save_every = 4
"""


SAMPLES = {"run.eval_every": 5, "run.sample_every": 3, "run.sample_tokens": 12}
"""Looks and samples fall between checkpoints, on them, and together."""


def config(data, run, changes=None):
    return Config.from_toml(CONFIG, changes={"data.folder": str(data), "run.folder": str(run)} | (changes or {}))


def running(made):
    """With whom speaks, if somebody does."""
    return training(made) if made.run.sample_every else Trainer(made)


def start(made):
    """A child that trains; its exit status tells how the run ended."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child:
        return child
    status = 1
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        with running(made) as run:
            status = 0
            for event in run.events():
                if isinstance(event, Stopped):
                    status = event.status
    except KeyboardInterrupt:
        status = 99
    finally:
        os._exit(status)


def held(run, step):
    """What a checkpoint holds, without what a clock decides."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    state = json.loads((folder / "state.json").read_text())
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")} | {"guard": state["guard"]}


def lines(run, *events):
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line for line in found if line["event"] in events]


def losses(run):
    return [(line["step"], line["loss"], line["batch"]) for line in lines(run, "step")]


def differs(run, reference, step):
    """What of a run is not to the bit as in another: tables of its last checkpoint, losses, held-out losses, samples."""
    one, other = held(run, step), held(reference, step)
    found = [name for name in sorted(one.keys() | other.keys()) if one.get(name) != other.get(name)]
    found += ["losses"] if losses(run) != losses(reference) else []
    return found + [each for each in ("look", "final", "sample") if lines(run, each) != lines(reference, each)]


def whole(run, faults):
    """The step of the newest checkpoint, -1 if there is none; faults of newer ones are added to the list."""
    found = newest(run, warn=faults.append)
    return -1 if found is None else found.step


def kill(room, data, reference, kills, draw, longest, changes):
    done = lost = differ = runs = 0
    faults: list[str] = []
    while done < kills:
        run, before = room / f"run{runs}", -1
        made = config(data, run, changes)
        while True:
            child = start(made)
            time.sleep(draw.uniform(0, longest))
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            step = whole(run, faults)
            lost += step < before
            # Just long enough to get a little further each time: the more kills, the more is seen.
            longest *= 0.9 if step > before else 1.2
            before = step
            if not os.WIFSIGNALED(status):
                assert status == 0, status
                break
            done += 1
        runs += 1
        wrong = differs(run, reference, made.steps)
        differ += bool(wrong)
        if wrong:
            print(f"  run {runs} differs in {', '.join(wrong)}", flush=True)
        print(
            f"  {done} kills, {runs} runs to their end, {lost} lost, {len(faults)} partial, {differ} different",
            flush=True,
        )
    return {"kills": done, "runs": runs, "lost": lost, "partial": len(faults), "different": differ}


def interrupt(room, data, count, draw, longest, changes):
    seconds, lost, early, over = [], 0, 0, 0
    faults: list[str] = []
    i = 0
    while len(seconds) < count:
        i += 1
        run = room / f"stop{i}"
        made = config(data, run, changes)
        child = start(made)
        time.sleep(draw.uniform(0, longest))
        number = draw.choice([signal.SIGTERM, signal.SIGINT])
        began = time.perf_counter()
        os.kill(child, number)
        _, status = os.waitpid(child, 0)
        spent = time.perf_counter() - began
        code = os.waitstatus_to_exitcode(status)
        if code in (-signal.SIGTERM, 99):
            # It had not begun yet: there was nothing to save.
            early += 1
            longest *= 1.1
        elif code == 0:
            over += 1
            longest *= 0.9
        else:
            assert code == 128 + number, code
            seconds.append(spent)
            lost += losses(run)[-1][0] - whole(run, faults)
    if not seconds:
        return {"signals": i, "stopped": 0, "steps_lost": lost, "partial": len(faults)}
    seconds.sort()
    return {
        "signals": i, "before_it_began": early, "after_its_end": over, "stopped": len(seconds),
        "median_s": round(statistics.median(seconds), 3), "p99_s": round(seconds[int(0.99 * (len(seconds) - 1))], 3),
        "steps_lost": lost, "partial": len(faults),
    }  # fmt: skip


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--signals", type=int, default=40)
    parser.add_argument("--samples", action="store_true", help="speak every 3 steps, look every 5")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    torch.set_num_threads(1)
    draw = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        room = Path(folder)
        words = ["the", "run", "goes", "on", "and", "is", "killed", "again"]
        text = "\n".join(" ".join(draw.choices(words, k=draw.randrange(3, 40))) for _ in range(400))
        (room / "text.txt").write_text(text)
        data, reference = room / "data", room / "whole"
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            argv = ["tokenize", str(room / "text.txt"), "--out", str(data), "--train", "chars", "--lines"]
            assert anyformer([*argv, "--hold-out", "0.1"]) == 0
        changes = SAMPLES if given.samples else {}
        began = time.perf_counter()
        # In this process, so that what is loaded late is there already in every child.
        with running(config(data, reference, changes)) as run:
            for _ in run.events():
                pass
        alone, steps = time.perf_counter() - began, config(data, reference).steps
        print(f"a run of {steps} steps takes {alone:.1f} s; seed {given.seed}", flush=True)
        found = {}
        if given.samples:
            with Trainer(config(data, room / "silent", {"run.eval_every": 10**6})) as run:
                for _ in run.events():
                    pass
            one, other = held(reference, steps), held(room / "silent", steps)
            wrong = [name for name in one if one[name] != other[name]]
            wrong += ["losses"] if losses(reference) != losses(room / "silent") else []
            print(
                f"with looks and samples, and without: {', '.join(wrong) + ' differ' if wrong else 'the same'}",
                flush=True,
            )
            found |= {"changed_by_looking": wrong}
        found |= kill(room, data, reference, given.kills, draw, 0.6 * alone, changes)
        found |= {"stops": interrupt(room, data, given.signals, draw, 0.9 * alone, changes)}
    print(json.dumps(found, indent=1))
    sound = not (
        found.get("changed_by_looking")
        or found["lost"]
        or found["partial"]
        or found["different"]
        or found["stops"]["steps_lost"]
    )
    sys.exit(0 if sound else 1)


if __name__ == "__main__":
    main()
