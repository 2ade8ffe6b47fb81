"""Runs of several processes, for test_many.py: `python -m tests.train.many FOLDER` leaves what it found there.

All of it happens in one fresh process and children that it forks, so torch is imported once.
"""

import contextlib
import datetime
import itertools
import json
import os
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping
from dataclasses import replace
from fractions import Fraction
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing
from torch import Tensor

import anyformer as af
from anyformer import files
from anyformer.data.corpus import RawFile
from anyformer.data.scan import Plan
from anyformer.data.sources.text import Text
from anyformer.data.tokenizer_training import Training
from anyformer.data.tokenizing import tokenize
from anyformer.errors import AnyformerError, InputError
from anyformer.files import Written
from anyformer.kernels.loss import LossTerms
from anyformer.model.native_checkpoint import WEIGHTS
from anyformer.specs import ModelSpec
from anyformer.specs.parameters import silent
from anyformer.train.checkpoint import Checkpoint, Contents, Table, newest, verify, write
from anyformer.train.compile import recompute
from anyformer.train.config import Config
from anyformer.train.distributed.fsdp import spread
from anyformer.train.distributed.sharded_checkpoint import PARTS, Stored, collected, local, stretch, whole, write_part
from anyformer.train.distributed.tensor_parallel import problems
from anyformer.train.ranks import layout, meshes
from anyformer.train.trainer import Evaluated, Resumed, Sampled, Step, Trainer
from tests.contract.contracts import answers, length_of, randomise
from tests.contract.draw import draw, every_kind, spec_of_kind
from tests.contract.feed import alone, document
from tests.tolerances import difference
from tests.train.faulty import QuickDisk
from tests.train.test_many import SERVED, SPREAD, STEPS

CHANGE = 6
TEXT = "the quick brown fox jumps over the lazy dog; pack my box with five dozen liquor jugs. " * 40


def rewrite(found: Checkpoint, run: Path, parts: int = 0) -> Path:
    """Write a checkpoint, however it was written, into the folder of another run: plain, or in so many parts."""
    tables = {name: whole_table(found, name) for name in tables_of(found)}
    kept = [name for name in found.files if Path(name).suffix not in (".safetensors", ".json")]
    texts = {name: (found.folder / name).read_text(encoding="utf-8") for name in kept}
    public = next(name for name in ("ema.safetensors", WEIGHTS) if name in tables)
    contents = Contents(tables=tables, state=found.state, texts=texts, public=public)
    run.mkdir(parents=True, exist_ok=True)
    if not parts:
        return write(run, found.step, contents)

    def beside(made: Path) -> Mapping[str, Written]:
        for rank in range(parts):
            cut_up = {name: chunks(table, rank, parts) for name, table in tables.items()}
            write_part(made, cut_up, rank, parts)
        return collected(made, tables, parts)

    return write(run, found.step, replace(contents, tables={}, public="", beside=beside))


def tables_of(found: Checkpoint) -> list[str]:
    if PARTS in found.files:
        return list(json.loads((found.folder / PARTS).read_bytes())["tables"])
    return [name for name in found.files if name.endswith(".safetensors")]


def whole_table(found: Checkpoint, name: str) -> Table:
    with Stored(found, name) as stored:
        tensors = {each: torch.empty(shape, dtype=dtype) for each, (shape, dtype) in stored.shapes.items()}
        for each, tensor in tensors.items():
            stored.copy(each, stretch(tensor), tensor)
        return Table(tensors, stored.metadata)


def chunks(table: Table, rank: int, parts: int) -> dict[str, tuple[Tensor, tuple[int, ...]]]:
    """The rows that one of several processes would hold; what has no rows is the first one's."""
    found: dict[str, tuple[Tensor, tuple[int, ...]]] = {}
    for name, tensor in table.tensors.items():
        if not tensor.dim():
            if rank == 0:
                found[name] = tensor, ()
            continue
        each = -(-tensor.shape[0] // parts)
        begin = min(each * rank, tensor.shape[0])
        if begin < tensor.shape[0]:
            found[name] = tensor[begin : begin + each], (begin, *[0] * (tensor.dim() - 1))
    return found


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    files.DISK = QuickDisk()
    torch.manual_seed(0)
    (folder / "text.txt").write_text(TEXT)
    given = {"train": (RawFile(folder / "text.txt"),)}
    chars = Training(kind="chars")
    tokenize(Plan(out=folder / "data", files=given, format=Text(), training=chars, hold_out=Fraction(1, 5)))
    for world, work in ((1, one), (2, two), (4, four), (1, one_again)):
        together(world, folder, work)
    restarts(folder)


def together(world: int, folder: Path, work) -> None:
    """Fork so many processes, let them meet, and let each do the work."""
    name = f"{work.__name__}"
    torch.multiprocessing.start_processes(_member, (world, folder, name), world, start_method="fork")


def _member(rank: int, world: int, folder: Path, name: str) -> None:
    if world > 1:
        meeting = f"file://{folder}/meeting-{name}"
        limit = datetime.timedelta(seconds=600)
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=world, timeout=limit)
    notes = Notes(folder / f"{name}-{rank}.json")
    globals()[name](folder, notes)
    if world > 1:
        dist.destroy_process_group()


class Notes:
    """What a process found, by the name of the check."""

    def __init__(self, file: Path) -> None:
        self.file, self.found = file, {}

    def __call__(self, name: str, work) -> None:
        """Do a check; an error is a finding too, and every process has it alike."""
        try:
            found = work()
        except Exception:
            found = {"error": traceback.format_exc()}
        self.found[name] = found
        self.file.write_text(json.dumps(self.found))


# Whole runs.


def config(folder: Path, name: str, **changes) -> Config:
    stage = {"length": 16, "batch": 8}
    return Config.from_data({
        "model": {"spec": {"width": 16, "depth": 2, "context": 32, "attention": {"heads": 4, "kv_heads": 2},
                           "ffn": {"kind": "swiglu", "width": 24}}},
        "data": {"folder": str(folder / "data"), "rows": "stream"},
        "stages": [{"steps": CHANGE, **stage},
                   {"steps": STEPS - CHANGE, **stage, "spec": {"attention": {"pattern": "window(5)"}}}],
        "compute": {"device": "cpu", "micro": changes.pop("micro", 0)},
        "many": changes.pop("many", {}),
        "run": {"folder": str(folder / name), "eval_every": 5, "save_every": 3, "ema": 0.8, "sample_every": 5} | changes,
    })  # fmt: skip


def curve(setting: Config, until: int | None = None) -> dict:
    """Run it, and note each step."""
    found: dict = {"loss": {}, "digest": {}, "norm": {}, "look": {}, "said": [], "resumed": None}

    def speak(made, step: int) -> str:
        plain = all(type(p.data) is torch.Tensor for p in made.model.parameters())
        return f"{made.ranks.rank} {plain} {sum(p.numel() for p in made.model.parameters())}"

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*goes on elsewhere.*")
        with Trainer(setting, sample=speak) as run:
            for event in run.events(until=until):
                match event:
                    case Step():
                        found["loss"][event.step], found["digest"][event.step] = event.loss, event.batch
                        found["norm"][event.step] = event.gradient_norm
                    case Evaluated():
                        found["look"][event.step] = event.loss
                    case Sampled():
                        found["said"].append(event.text)
                    case Resumed():
                        found["resumed"] = event.step
                    case _:
                        pass
    return found


def one(folder: Path, note: Notes) -> None:
    note("alone", lambda: curve(config(folder, "alone")))


def two(folder: Path, note: Notes) -> None:
    note("full", lambda: curve(config(folder, "full", micro=2)))
    note("none", lambda: curve(config(folder, "none", many={"shard": "none"})))
    note("tensor", lambda: curve(config(folder, "tensor", many={"tensor": 2})))
    note("begun", lambda: curve(config(folder, "moved"), until=4))
    note("parts", lambda: curve(config(folder, "parts", many={"save": "parts", "tensor": 2}), until=8))
    note("odd batch", lambda: refused(folder, "odd", {"stages": "3"}))
    note("nan", lambda: poisoned(folder))
    note("full disk", lambda: full_disk(folder))
    data = meshes("cpu", layout(2, shard="full", tensor=1, machine=2))
    shared = meshes("cpu", layout(2, shard="full", tensor=2, machine=2))
    for axis, kind in every_kind():
        if axis in SERVED:
            note(f"{axis} {kind}", lambda axis=axis, kind=kind: same_answer(roomy(axis, kind), shared, 2))
    for number, spec in enumerate(spread_specs()):
        note(f"draw {number}", lambda spec=spec: same_answer(spec, shared, 2))
        note(f"draw {number} in parts", lambda spec=spec: same_answer(spec, data, 1))
    plain = af.spec({"vocab": 37, "width": 24, "depth": 2, "context": 32, "attention": {"heads": 6, "kv_heads": 2}})
    for kind in ("block", "selective"):
        note(f"recompute {kind}", lambda kind=kind: same_answer(plain, shared, 2, kind))
    repeated = plain.vary({"depth": 3, "layers.shared": "one, rest other"})
    note("shared layers", lambda: same_answer(repeated, shared, 2))
    note("shared layers in parts", lambda: same_answer(repeated, data, 1))
    note("shared layers recomputed", lambda: same_answer(repeated, data, 1, "block"))


def spread_specs() -> list[ModelSpec]:
    """The first random specs of each topology whose products two processes can share, whatever kinds are registered."""
    found: dict[str, list[ModelSpec]] = {"decoder": [], "encoder": [], "encoder-decoder": []}
    for spec in map(draw, itertools.count()):
        some = found[spec.topology]
        if len(some) < SPREAD // len(found) and not any(problems(spec, 2)):
            some.append(spec)
        if sum(map(len, found.values())) == SPREAD:
            break
    return [spec for some in found.values() for spec in some]


def four(folder: Path, note: Notes) -> None:
    note("moved", lambda: curve(config(folder, "moved", many={"save": "parts"}), until=8))
    note("both ways", lambda: curve(config(folder, "both", many={"tensor": 2})))
    spec = roomy("position", "t5")
    for shard, tensor in (("hybrid", 1), ("hybrid", 2), ("none", 2), ("full", 2)):
        made = meshes("cpu", layout(4, shard=shard, tensor=tensor, machine=2))
        note(f"{shard} {tensor}", lambda made=made, tensor=tensor: same_answer(spec, made, tensor))


def one_again(folder: Path, note: Notes) -> None:
    held = newest(folder / "moved")
    note("form", lambda: {"parts": held is not None and PARTS in held.files})
    note("ended", lambda: curve(config(folder, "moved")))
    note("after parts", lambda: curve(config(folder, "parts")))
    note("rewritten", lambda: rewritten(folder))
    note("damaged", lambda: damaged(folder))


# Single checks.


def roomy(axis: str, kind: str) -> af.ModelSpec:
    """A spec of this kind whose heads can be halved."""
    spec = spec_of_kind(axis, kind)
    mixes_keys = spec.attention.mixer.shares_keys
    return spec.vary({"attention.kv_heads": 6 if mixes_keys else 2})


def same_answer(spec, made, tensor: int, kind: str = "none") -> dict:
    """A spread model against the plain one, fp64: its answers, and the gradients of a sum over all processes' rows."""
    refused = list(problems(spec, tensor))
    if refused:
        return {"refused": refused}
    plain = randomise(af.build(spec, dtype=torch.float64), 0)
    values = {name: p.detach().clone() for name, p in plain.named_parameters()}
    model = spread(spec, made, values.__getitem__, device=torch.device("cpu"), dtype=torch.float64)
    recompute(model, kind)
    readers = made.data.size()
    reader = dist.get_rank() // tensor
    for name, p in model.named_parameters():
        # A whole from parts, and a part from a whole.
        if not torch.equal(whole(p), values[name]) or not torch.equal(local(p), stretch(p).of(values[name])):
            return {"error": f"{name} is not what it was"}
    worst = 0.0
    for each in range(readers):
        want = answers(alone(plain, document(spec, length_of(spec), 4 + each)))
        (want * weights_like(want)).sum().backward()
        if each == reader:
            mine = want.detach()
    got = answers(alone(model, document(spec, length_of(spec), 4 + reader)))
    worst = max(worst, difference(got, mine))
    # The engine takes the mean over all that read.
    ((got * weights_like(got)).sum() * readers).backward()
    quiet = silent(spec)
    scale = max(float(p.grad.abs().max()) for p in plain.parameters() if p.grad is not None)
    for (name, p), q in zip(model.named_parameters(), plain.parameters(), strict=True):
        if q.grad is not None:
            found = whole(p.grad) if p.grad is not None else torch.zeros_like(q)
            # What is zero by mathematics is noise on both sides; what is exactly zero (dead ReLU features) has no size.
            size = scale if name in quiet else float(q.grad.abs().max()) or scale
            worst = max(worst, float((found - q.grad).abs().max()) / size)
        elif p.grad is not None and float(whole(p.grad).abs().max()) > 0:
            return {"error": f"{name} has a gradient that the plain model has not"}
    return {"worst": worst}


def weights_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.randn(tensor.shape, generator=torch.Generator().manual_seed(1), dtype=tensor.dtype)


def refused(folder: Path, name: str, changes) -> dict:
    data = config(folder, name).to_data()
    for stage in data["stages"]:
        stage["batch"] = int(changes["stages"])
    try:
        with Trainer(Config.from_data(data)):
            return {"error": "it began"}
    except InputError as error:
        return {"message": str(error), "left": (folder / name).exists()}


def poisoned(folder: Path) -> dict:
    """One process's rows give NaN: both leave the step out, and nothing moves."""
    with Trainer(config(folder, "nan")) as run:
        made = run.components
        made.restore()
        made.enter(0)
        before = [p.detach().clone() for p in map(local, made.model.parameters())]
        plain = made.train_step.objective

        class Poison(type(plain)):
            def loss(self, model, inputs):
                terms = plain.loss(model, inputs)
                bad = float("nan") if made.ranks.dp_rank == 1 else 1.0
                return LossTerms(terms.total * bad, terms.terms, terms.label_count)

        made.train_step.objective = Poison()
        found = made.train_step.step(made.loader(0).batch(0), seed=0, step=0, factor=1.0)
        after = map(local, made.model.parameters())
        moved = sum(int(not torch.equal(a, b)) for a, b in zip(before, after, strict=True))
        made.train_step.objective = plain
        good = made.train_step.step(made.loader(0).batch(1), seed=0, step=1, factor=1.0)
        return {"skipped": bool(found.skipped), "moved": moved, "then": bool(good.skipped)}


def full_disk(folder: Path) -> dict:
    """The second process can't write its part: all end, and the checkpoint before stays."""
    with contextlib.suppress(AnyformerError):
        curve(config(folder, "disk", many={"save": "parts"}), until=3)
    good = files.DISK

    class Full(QuickDisk):
        def create(self, path):
            if "-00001-of-" in path.name:
                raise OSError(28, "No space left on device", str(path))
            return super().create(path)

    files.DISK = Full()
    try:
        curve(config(folder, "disk", many={"save": "parts"}), until=6)
        return {"error": "it went on"}
    except AnyformerError as error:
        message = str(error)
    finally:
        files.DISK = good
    dist.barrier()
    held = newest(folder / "disk")
    left = sorted(p.name for p in (folder / "disk" / "checkpoints").iterdir())
    return {"message": message, "step": None if held is None else held.step, "left": left}


def rewritten(folder: Path) -> dict:
    """Parts to plain to parts: the same tensors, and the plain one is a model that loads."""
    first = newest(folder / "disk")
    rewrite(first, folder / "plain")
    plain = newest(folder / "plain")
    rewrite(plain, folder / "cut", parts=3)
    cut = newest(folder / "cut")
    rewrite(cut, folder / "again")
    again = newest(folder / "again")
    names = [name for name in plain.files if name.endswith(".safetensors")]
    same = all(
        torch.equal(plain.read(name).tensors[key], value)
        for name in names
        for key, value in again.read(name).tensors.items()
    )
    loaded = af.load(folder / "plain")
    parts = [PARTS in each.files for each in (first, plain, cut, again)]
    return {"same": same, "parts": parts, "tables": names, "loaded": sum(p.numel() for p in loaded.parameters())}


def damaged(folder: Path) -> dict:
    """A part of which a byte changed is found out."""
    found = newest(folder / "disk")
    part = found.folder / "optimizer-00001-of-00002.safetensors"
    data = bytearray(part.read_bytes())
    data[-1] ^= 1
    part.write_bytes(data)
    try:
        verify(found.folder, found.step)
    except AnyformerError as error:
        return {"message": str(error)}
    return {"error": "nobody noticed"}


# One process dies, as torchrun sees it.


def restarts(folder: Path) -> None:
    from torch.distributed.launcher.api import LaunchConfig, elastic_launch

    launch = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, rdzv_backend="c10d", rdzv_endpoint="localhost:0", run_id="many",
        max_restarts=1, monitor_interval=0.05, start_method="fork",
    )  # fmt: skip
    elastic_launch(launch, mortal)(str(folder))
    found = json.loads((folder / "mortal.json").read_text())
    found["words"] = (folder / "words").read_text()
    (folder / "restarts-0.json").write_text(json.dumps({"restart": found}))


def mortal(place: str) -> None:
    folder = Path(place)
    found: dict = {"loss": {}, "resumed": None}
    try:
        with Trainer(config(folder, "mortal")) as run:
            for event in run.events():
                if isinstance(event, Step):
                    found["loss"][event.step] = event.loss
                    if event.step == 5 and run.components.ranks.rank == 1 and not (folder / "died").exists():
                        (folder / "died").touch()
                        os.kill(os.getpid(), signal.SIGKILL)
                elif isinstance(event, Resumed):
                    found["resumed"] = event.step
            if run.components.ranks.is_rank0:
                (folder / "mortal.json").write_text(json.dumps(found))
    except AnyformerError as error:
        (folder / "words").write_text(str(error))
        sys.exit(1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
