"""Keep what this version of anyformer writes: `python -m tests.assets.make NAME` fills tests/assets/versions/NAME.

NAME is the date of a version whose files differ from those of the version kept before (a new field, another format).
A folder is made once, by the code of that day, and never again: tests/train/test_versions.py reads all of them with the
code of today, goes on with their runs and compares with what the old code found.

    data/           what `anyformer tokenize` left: characters, two parts
    RUN/            a run folder of each of RUNS, stopped at its `until`, with its newest checkpoint only
    specs/          one spec.toml of each family
    expected.json   the steps after `until` and the weights at the end, by the old code itself on a CPU; the hashes of
                    batches of every objective that streams; parameter counts of the specs
"""

import contextlib
import io
import json
import random
import shutil
import sys
import warnings
from pathlib import Path

import torch

import anyformer as af
from anyformer.cli.main import main as anyformer
from anyformer.data.loader import VERSION
from anyformer.data.objectives import Objective
from anyformer.families.zoo import presets
from anyformer.lab.train_run import training
from anyformer.train import run_state
from anyformer.train.checkpoint import newest
from anyformer.train.config import Config
from anyformer.train.trainer import Evaluated, Step, Trainer
from tests.data.feeding import feed_for

VERSIONS = Path(__file__).parent / "versions"
SPEC = """
[model.spec]
width = 8
depth = 1
context = 32
attention = { heads = 2, kv_heads = 1 }
position = { kind = "rope" }
ffn = { kind = "swiglu", width = 8 }
norm = { kind = "rmsnorm" }
head = { kind = "lm", tied = true }
"""
RUNS = {
    "stream": (6, SPEC + """
[data]
folder = "DATA"
rows = "stream"
[[stages]]
steps = 8
length = 16
batch = 4
[[stages]]
steps = 6
length = 32
batch = 4
[compute]
device = "cpu"
threads = 1
[run]
folder = "RUN"
ema = 0.9
eval_every = 2
eval_batches = 2
save_every = 3
"""),
    "packed": (8, SPEC + """
[data]
folder = "DATA"
[[stages]]
steps = 12
length = 32
batch = 4
[schedule]
kind = "constant"
[compute]
device = "cpu"
threads = 1
[run]
folder = "RUN"
eval_every = 3
eval_batches = 1
save_every = 4
"""),
    "finished": (8, SPEC + """
[data]
folder = "DATA"
[[stages]]
steps = 8
length = 32
batch = 4
[optim]
kind = "adamw"
[schedule]
kind = "constant"
[compute]
device = "cpu"
threads = 1
[run]
folder = "RUN"
ema = 0.9
eval_every = 3
eval_batches = 1
save_every = 4
"""),
}  # fmt: skip
"""Where each stops, and its config. Nothing is dropped: which numbers a processor draws is its own affair."""
STREAMED = [kind for kind in Objective.kinds() if "stream" in Objective.named(kind).ways]
BATCHES = 12


def digests(kind: str, version: int) -> list[str]:
    """The hashes of the first batches of a stream, cut by the rule of a version."""
    feed = feed_for(kind, "stream", length=24, batch=3, version=version)
    return [feed.batch(step).digest for step in range(BATCHES)]


def finish(config: Config) -> dict:
    """Go on with a run to its end: its steps, its last look, and what its weights have become."""
    with warnings.catch_warnings(), Trainer(config) as run:
        warnings.filterwarnings("ignore", message=".*goes on elsewhere than it began", category=UserWarning)
        told = list(run.events())
    steps = [event for event in told if isinstance(event, Step)]
    looks = [event for event in told if isinstance(event, Evaluated)]
    found = newest(Path(config.run.folder))
    assert found is not None
    tables = {name: found.read(name).tensors for name in found.files if name.endswith(".safetensors")}
    return {
        "steps": [
            {"step": e.step, "loss": e.loss, "gradient_norm": e.gradient_norm, "batch": e.batch, "tokens": e.tokens}
            for e in steps
        ],
        "held_out": looks[-1].loss,
        "norms": {
            table: {name: float(tensor.double().norm()) for name, tensor in sorted(tensors.items())}
            for table, tensors in sorted(tables.items())
        },
    }  # fmt: skip


def make(folder: Path) -> None:
    """Fill a new folder."""
    torch.set_num_threads(1)
    # Whose machine it was is nobody's business; the run goes on elsewhere anyway.
    run_state._cpu = lambda: "some processor"
    draw = random.Random(0)
    words = ["the", "run", "goes", "on", "as", "it", "was", "begun"]
    text = "\n".join(" ".join(draw.choices(words, k=draw.randrange(2, 12))) for _ in range(60))
    folder.mkdir(parents=True)
    (folder / "text.txt").write_text(text, encoding="utf-8")
    data = folder / "data"
    argv = ["tokenize", str(folder / "text.txt"), "--out", str(data), "--train", "chars", "--lines"]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        assert anyformer([*argv, "--hold-out", "0.2"]) == 0
    (folder / "text.txt").unlink()
    expected: dict = {"runs": {}, "batches": {kind: digests(kind, VERSION) for kind in STREAMED}, "specs": {}}
    expected["order"] = VERSION
    for name, (until, text) in RUNS.items():
        place = folder / name
        config = Config.from_toml(text, changes={"data.folder": str(data), "run.folder": str(place)})
        with training(config) as run:
            for _ in run.events(until=until):
                pass
        for old in sorted((place / "checkpoints").iterdir())[:-1]:
            shutil.rmtree(old)
        for drawn in ("report.html", "loss.png", ".lock"):
            (place / drawn).unlink(missing_ok=True)
        copy = folder / f"{name}-copy"
        shutil.copytree(place, copy)
        changes = {"data.folder": str(data), "run.folder": str(copy)}
        found = finish(Config.from_toml(text, changes=changes)) if until < config.steps else ended(copy)
        expected["runs"][name] = {"until": until, "total": config.steps, **found}
        shutil.rmtree(copy)
        # Where the folder lay when it was made is of no use to anybody.
        written = (place / "config.toml").read_text(encoding="utf-8")
        (place / "config.toml").write_text(written.replace(f"{folder}/", ""), encoding="utf-8")
    (folder / "specs").mkdir()
    for preset, (family, _) in presets().items():
        if not (folder / "specs" / f"{family.kind}.toml").exists():
            spec = af.spec(preset)
            (folder / "specs" / f"{family.kind}.toml").write_text(spec.to_toml(), encoding="utf-8")
            expected["specs"][family.kind] = spec.count().params
    (folder / "expected.json").write_text(json.dumps(expected, indent=1) + "\n", encoding="utf-8")


def ended(folder: Path) -> dict:
    """The last measurement of a run that is over."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return {"steps": [], "held_out": [line for line in lines if line.get("final")][-1]["loss"], "norms": {}}


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    make(VERSIONS / sys.argv[1])
