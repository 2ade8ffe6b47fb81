"""Whether a run that is interrupted ends as one that is not: shown on a person's own run, to the bit.

Two copies of a checkpoint go on in a folder of their own: one straight through, one that ends halfway and is taken up
again. What they measured and what they hold at the end is compared, and with what the run itself has logged. The run's
folder is only read.
"""

import shutil
import tempfile
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, InputError, file_fault
from anyformer.files import share_file
from anyformer.train.checkpoint import FOLDER, Checkpoint, name_of, steps_in, verify
from anyformer.train.components import device_of
from anyformer.train.config import Config
from anyformer.train.loggers import read_metrics
from anyformer.train.trainer import Saved, Step, Trainer
from anyformer.verify.differences import Progress, Report

CONFIG = "config.toml"
LOGGED = "losses in metrics.jsonl"
STEPS = 8


@dataclass(frozen=True, kw_only=True)
class Row:
    """One thing that was compared."""

    name: str
    compared: int
    """How many numbers, or names of batches."""
    difference: float
    """The largest one; 0: the same to the bit."""
    first: str | None = None
    """Where it first differs."""

    @property
    def same(self) -> bool:
        return self.first is None


@dataclass(frozen=True, kw_only=True)
class Resume:
    """What was found."""

    run: str
    begin: int
    """The step of the checkpoint that both copies go on from."""
    middle: int
    """Where one of them was interrupted."""
    end: int
    rows: tuple[Row, ...]
    notes: tuple[str, ...]
    device: str = "cpu"
    """Where both copies were trained."""
    deterministic: bool = False
    """Whether the config asks for kernels that repeat (compute.deterministic)."""

    @property
    def same(self) -> bool:
        return all(row.same for row in self.rows)

    @property
    def advice(self) -> str:
        """What a difference means, and what to do about it; empty if there is none."""
        wrong = {row.name: row for row in self.rows if not row.same}
        if not wrong:
            return ""
        if "batches" in wrong:
            return (
                f"The batches themselves differ from {wrong['batches'].first} on, and a batch depends on the data, the seed "
                "and the step alone: were the data written to meanwhile? An objective or packing of your own must draw "
                "from its key only"
            )
        loose = self.device != "cpu" and not self.deterministic
        if [*wrong] == [LOGGED]:
            kernels = " On CUDA they do only with compute.deterministic = true" if loose else ""
            return (
                f"The interrupted copy ends as the other one; it is the run's own log that says otherwise from "
                f"{wrong[LOGGED].first} on. Those steps were made by other code, other threads or another machine, or the log "
                f"was changed.{kernels}"
            )
        if loose:
            kernels = "Kernels on this device need not give the same bits twice"
            return f"{kernels}: set compute.deterministic = true and check again"
        measured = ("batches", "losses", "gradient norms", LOGGED)
        lost = ", ".join(name for name in wrong if name not in measured) or ", ".join(wrong)
        where = "A CPU gives the same bits each time" if self.device == "cpu" else "Kernels were deterministic"
        return (
            f"{where}, so something is not kept in a checkpoint or not taken up from it; look at {lost}. An optimizer, "
            "objective or part of your own may hold a state that is not among its tensors; otherwise this is a fault of "
            "anyformer, which we want to hear of"
        )


def resume(
    run: str | Path, *, steps: int = STEPS, scratch: str | Path | None = None, report: Report | None = None
) -> Resume:
    """Prove it for the run in a folder, by training at least 2 steps twice. The copies go into `scratch` (default: the
    system's folder for such files), and are removed at the end.
    """
    if steps < 2:
        raise InputError(f"steps: {steps} can't be interrupted halfway; give at least 2")
    place = Path(run)
    if not (place / CONFIG).is_file():
        raise InputError(
            f"{place}: holds no {CONFIG}, so it is no folder of a run; give the one that anyformer train made"
        )
    config = Config.from_file(place / CONFIG)
    found = _start(place, config.steps)
    begin, end = found.step, min(found.step + steps, config.steps)
    middle = (begin + end) // 2
    notes: list[str] = []
    progress = Progress(report, 2 * (end - begin))
    try:
        with tempfile.TemporaryDirectory(prefix="anyformer-resume-", dir=scratch) as room:
            copies = [Path(room) / name for name in ("straight", "halves")]
            for copy in copies:
                # By second names where that can be: what a run writes never changes a file that is there.
                target = copy / FOLDER / name_of(begin)
                shutil.copytree(found.folder, target, copy_function=lambda a, b: share_file(Path(a), Path(b)))
            straight = _train(config, copies[0], [end], notes, progress)
            halves = _train(config, copies[1], [middle, end], notes, progress)
            wrong = [step for step in straight if straight[step].batch != halves[step].batch]
            first = f"step {wrong[0]}" if wrong else None
            rows = [Row(name="batches", compared=len(straight), difference=float(len(wrong)), first=first)]
            for name, field in (("losses", "loss"), ("gradient norms", "gradient_norm")):
                pairs = {
                    step: (getattr(event, field), getattr(halves[step], field)) for step, event in straight.items()
                }
                rows.append(_numbers(name, pairs))
            rows += _held(*(verify(copy / FOLDER / name_of(end), end) for copy in copies))
    except OSError as error:
        raise CheckpointError(
            f"{file_fault(error, scratch or tempfile.gettempdir())}; the copies take twice the room of a checkpoint, in the "
            "folder that --scratch names"
        ) from error
    logged = {record.get("step"): record for record in read_metrics(place, "step")}
    overlap = [step for step in straight if step in logged]
    if notes:
        notes.append("so the steps that the run logged are not compared")
    elif overlap:
        rows.append(_numbers(LOGGED, {step: (straight[step].loss, logged[step].get("loss")) for step in overlap}))
    else:
        notes.append(f"the run has logged none of the steps {begin + 1} to {end} yet, so its log is not compared")
    return Resume(
        run=str(run), begin=begin, middle=middle, end=end, rows=tuple(rows), notes=tuple(notes),
        device=device_of(config.compute.device).type, deterministic=config.compute.deterministic,
    )  # fmt: skip


def _start(run: Path, total: int) -> Checkpoint:
    """The newest whole checkpoint with two steps or more to go."""
    faults: list[str] = []
    for step, folder in steps_in(run).items():
        try:
            if total - step >= 2:
                return verify(folder, step)
        except CheckpointError as error:
            faults.append(str(error))
    raise CheckpointError(
        "\n  ".join([f"{run}: has no whole checkpoint with two steps or more to go", *faults])
        + f"\nIts {total} steps may all be behind it: a run that saves more often leaves one before its end"
    )


def _train(config: Config, folder: Path, ends: list[int], notes: list[str], progress: Progress) -> dict[int, Step]:
    """Go on to each end in turn, as the same command would; what each step found."""
    # Looks and samples learn nothing, and the loggers of a person are not for this.
    never = config.steps + 1
    part = replace(config.run, folder=str(folder), log=(), eval_every=never, save_every=never, sample_every=0)
    steps: dict[int, Step] = {}
    for end in ends:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            with Trainer(replace(config, run=part)) as run:
                for event in run.events(until=end):
                    if isinstance(event, Step):
                        steps[event.step] = event
                        progress.tick()
                    elif isinstance(event, Saved) and event.step == end:
                        # What a finished run measures at its end learns nothing either.
                        break
        for each in caught:
            text = str(each.message).replace(str(folder), "the run")
            if "goes on" in text and text not in notes:
                notes.append(text)
    return steps


def _numbers(name: str, pairs: Mapping[int, tuple[Any, Any]]) -> Row:
    """Numbers of steps beside each other. A loss that is not finite is logged as none at all, and equals itself."""

    def tensor(value: Any) -> Tensor:
        return torch.tensor(value if isinstance(value, int | float) else float("nan"), dtype=torch.float64)

    return _row(name, {f"step {step}": (tensor(one), tensor(two)) for step, (one, two) in pairs.items()})


def _held(a: Checkpoint, b: Checkpoint) -> list[Row]:
    """Everything that two checkpoints hold."""
    rows: list[Row] = []
    for name in sorted(set(a.files) | set(b.files)):
        if name.endswith(".safetensors"):
            one, two = a.read(name).tensors, b.read(name).tensors
            if one.keys() == two.keys():
                rows.append(_row(name.removesuffix(".safetensors"), {each: (one[each], two[each]) for each in one}))
            else:
                rows.append(Row(name=name, compared=0, difference=float("inf"), first="the names of its tensors"))
    keys = [key for key in ("step", "tokens", "guard", "digest") if a.state.get(key) != b.state.get(key)]
    return [*rows, Row(name="state", compared=4, difference=float(len(keys)), first=next(iter(keys), None))]


def _row(name: str, pairs: Mapping[str, tuple[Tensor, Tensor]]) -> Row:
    worst, first = 0.0, None
    for each, (one, two) in pairs.items():
        if not torch.equal(one.nan_to_num(), two.nan_to_num()) or not torch.equal(one.isnan(), two.isnan()):
            first = first or each
            gap = (one.double() - two.double()).abs().nan_to_num(nan=float("inf"))
            worst = max(worst, float(gap.max()))
    return Row(name=name, compared=sum(one.numel() for one, _ in pairs.values()), difference=worst, first=first)
