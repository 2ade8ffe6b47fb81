"""Faults of a whole run: killed, interrupted, out of room, fed with nonsense, changed; each ends as it should."""

import errno
import json
import os
import random
import signal
import warnings

import pytest
import torch

from anyformer import files
from anyformer.cli.main import main
from anyformer.errors import CheckpointError, TrainingError
from anyformer.train.checkpoint import newest
from anyformer.train.train_step import TrainStep
from anyformer.train.trainer import Evaluated, Resumed, Saved, Step, Stopped, Trainer
from tests.train.faulty import BrokenDisk, CountingDisk, DeadlyDisk, QuickDisk, forked
from tests.train.small_data import text_config, text_data

STEPS = 12


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text_data(tmp_path_factory.mktemp("faults") / "data")


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(files, "DISK", QuickDisk())


@pytest.fixture(scope="module")
def whole(data, tmp_path_factory):
    """A run that nothing happened to."""
    run = tmp_path_factory.mktemp("faults") / "whole"
    list(events(text_config(data, run)))
    return run


def events(config):
    with Trainer(config) as run:
        yield from run.events()


def heard(config):
    """What a run says about steps that were left out, and its steps."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        told = [event for event in events(config) if isinstance(event, Step)]
    return [str(each.message) for each in said if "left as they were" in str(each.message)], told


def held(run, step=STEPS):
    """Everything that a checkpoint holds, without what a clock decides."""
    folder = run / "checkpoints" / f"step-{step:08d}"
    tables = {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}
    state = json.loads((folder / "state.json").read_text())
    return tables | {"state": {key: value for key, value in state.items() if key not in ("seconds", "machine")}}


def losses(run):
    """All that each step measured but its time, and each step once."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [{k: v for k, v in line.items() if k not in ("seconds", "memory")} for line in lines]
    return [line for line in steps if line["event"] == "step"]


def test_run_killed_anywhere_and_resumed_ends_as_one_that_was_not(tmp_path, data, whole, monkeypatch):
    """R1 and R2: killed at calls of the disk and before steps, again and again, until it gets to its end."""
    draw, kills = random.Random(0), 0
    learn = TrainStep.step
    for series in range(2):
        run = tmp_path / f"run{series}"
        config = text_config(data, run)
        for _ in range(100):
            disk = DeadlyDisk(draw.randrange(1, 160))

            def counted(self, *args, disk=disk, **more):
                if disk.now():
                    disk.happen()
                return learn(self, *args, **more)

            monkeypatch.setattr(files, "DISK", disk)
            monkeypatch.setattr(TrainStep, "step", counted)
            status = forked(lambda config=config: list(events(config)))
            monkeypatch.setattr(files, "DISK", QuickDisk())
            assert newest(run, warn=lambda fault: pytest.fail(fault)) is not None or kills == 0 or not losses(run)
            if not os.WIFSIGNALED(status):
                break
            kills += 1
        assert status == 0
        assert held(run) == held(whole)
        assert losses(run) == losses(whole)
    assert kills >= 4


def test_run_whose_disk_fails_at_any_save_can_be_continued(tmp_path, data, whole, monkeypatch):
    """R4: one clear error; the same command then goes on and ends as if nothing had been."""
    disk = CountingDisk()
    monkeypatch.setattr(files, "DISK", disk)
    calls = [disk.calls for event in events(text_config(data, tmp_path / "count")) if isinstance(event, Saved)]
    failed = 0
    # Not after the last save: what is written then is the report, without which a run can be finished.
    for at in range(3, calls[-2], calls[-2] // 6):
        run = tmp_path / f"run{at}"
        config = text_config(data, run)
        monkeypatch.setattr(files, "DISK", BrokenDisk(at, errno.ENOSPC, lasting=True))
        with pytest.raises((CheckpointError, OSError), match="No space left on device"):
            heard(config)
        monkeypatch.setattr(files, "DISK", QuickDisk())
        list(events(config))
        assert held(run) == held(whole)
        assert losses(run) == losses(whole)
        failed += 1
    assert failed >= 5


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
@pytest.mark.parametrize("during", ["step", "save", "look"])
def test_run_interrupted_by_a_signal_saves_every_step_and_exits(
    tmp_path, data, whole, monkeypatch, during, number, status
):
    """R6."""
    config = text_config(data, tmp_path / "run")
    sent: list[int] = []

    def send():
        if not sent:
            sent.append(number)
            os.kill(os.getpid(), number)

    if during == "save":

        class Interrupting(QuickDisk):
            def rename(self, source, target):
                if target.name == "step-00000004":
                    send()
                super().rename(source, target)

        monkeypatch.setattr(files, "DISK", Interrupting())
    elif during == "look":
        import anyformer.train.trainer as module

        look = module.evaluate
        monkeypatch.setattr(module, "evaluate", lambda *args, **more: (send(), look(*args, **more))[1])
    else:
        learn = TrainStep.step

        def step(self, *args, **more):
            found = learn(self, *args, **more)
            if more["step"] == 5:
                send()
            return found

        monkeypatch.setattr(TrainStep, "step", step)
    told = list(events(config))
    last = told[-1]
    assert isinstance(last, Stopped)
    assert last.status == status
    done = [event.step for event in told if isinstance(event, Step)]
    saved = [event.step for event in told if isinstance(event, Saved)]
    assert done[-1] == saved[-1] == last.step < STEPS
    again = list(events(config))
    assert isinstance(again[0], Resumed)
    assert again[0].step == last.step
    assert held(tmp_path / "run") == held(whole)
    assert losses(tmp_path / "run") == losses(whole)


class Poison:
    """Spoils some steps: their loss, or a gradient."""

    def __init__(self, monkeypatch, steps, what, value):
        self.before, self.after = {}, {}
        learn, gradients = TrainStep.step, TrainStep._gradients

        def spoiled(learner, batch, device):
            sums = gradients(learner, batch, device)
            if self.now in steps:
                if what == "loss":
                    sums["total"] = sums["total"] * 0 + value
                else:
                    first = next(p for p in learner.model.parameters() if p.grad is not None)
                    first.grad.view(-1)[0] = value
            return sums

        def step(learner, *args, **more):
            self.now = more["step"] + 1
            self.before[self.now] = self.copy(learner)
            found = learn(learner, *args, **more)
            self.after[self.now] = self.copy(learner)
            return found

        monkeypatch.setattr(TrainStep, "_gradients", spoiled)
        monkeypatch.setattr(TrainStep, "step", step)

    @staticmethod
    def copy(learner):
        held = {**dict(learner.model.named_parameters()), **learner.optimizers.state()}
        return {name: tensor.detach().clone() for name, tensor in held.items()}

    def moved(self, step):
        """Whether a step changed anything that is learned or remembered."""
        return any(not torch.equal(self.before[step][name], t) for name, t in self.after[step].items())

    def sound(self, step):
        return all(t.isfinite().all() for t in self.after[step].values())


@pytest.mark.parametrize("optim", ["muon", "adamw"])
@pytest.mark.parametrize(
    ("what", "value"),
    [("loss", float("nan")), ("loss", float("inf")), ("gradient", float("nan")), ("gradient", -float("inf"))],
)
def test_run_with_numbers_that_are_not_finite_leaves_its_weights_alone_and_names_the_batch(
    tmp_path, data, monkeypatch, optim, what, value
):
    """R8."""
    poison = Poison(monkeypatch, {3, 6}, what, value)
    config = text_config(data, tmp_path / "run", {"optim.kind": optim, "stages.steps": 7, "data.valid": ""})
    said, told = heard(config)
    assert [event.step for event in told if event.skipped] == [3, 6]
    assert [step for step in range(1, 8) if not poison.moved(step)] == [3, 6]
    assert all(poison.sound(step) for step in range(1, 8))
    for step, text in zip((3, 6), said, strict=True):
        assert text.startswith(f"step {step}: ")
        assert told[step - 1].batch in text


def test_run_with_a_spike_skips_it_and_one_that_stops_names_it(tmp_path, data, monkeypatch):
    poison = Poison(monkeypatch, {25}, "gradient", 1e6)
    changes = {"stages.steps": 27, "guard.spike": 20.0, "data.valid": "", "run.save_every": 100}
    with pytest.warns(
        UserWarning, match=r"step 25: the gradient's norm, 1e\+06, was more than 20.0 times the usual one"
    ):
        told = [event for event in events(text_config(data, tmp_path / "skip", changes)) if isinstance(event, Step)]
    assert [event.step for event in told if event.skipped] == [25]
    assert not poison.moved(25)
    assert poison.moved(26)
    with pytest.raises(TrainingError, match=rf"step 25: .*{told[24].batch}.*guard.action is stop"):
        list(events(text_config(data, tmp_path / "stop", {**changes, "guard.action": "stop"})))
    assert not poison.moved(25)


def test_run_that_fails_in_every_step_ends_after_its_patience(tmp_path, data, monkeypatch):
    poison = Poison(monkeypatch, set(range(5, 99)), "loss", float("nan"))
    config = text_config(data, tmp_path / "run", {"guard.patience": 3, "data.valid": ""})
    with pytest.raises(TrainingError, match=r"step 7: .*3 steps in a row were left out"):
        heard(config)
    found = newest(tmp_path / "run")
    assert found is not None
    assert found.step == 4
    assert all(poison.sound(step) for step in range(1, 8))


CHANGES = {
    "run.seed": 1, "run.clip": 0.5, "run.ema": 0.9, "stages.batch": 2, "stages.length": 16, "stages.steps": 11,
    "optim.kind": "adamw", "schedule.kind": "cosine", "data.rows": "padded", "data.restart": False,
    "data.packing.kind": "greedy", "compute.dtype": "float64", "model.spec.norm.eps": 1e-3,
}  # fmt: skip


@pytest.mark.parametrize("key", CHANGES)
def test_run_whose_config_was_changed_is_refused_by_the_key(tmp_path, data, whole, key):
    """R10. Changed data and tokenizers are the run's own tests."""
    before = held(whole)
    with pytest.raises(CheckpointError) as failed:
        list(events(text_config(data, whole, {key: CHANGES[key]})))
    name = key.replace("model.spec.", "spec.").split(".")[0 if key.startswith("stages") else -1]
    assert name in str(failed.value)
    assert "was begun otherwise" in str(failed.value)
    assert held(whole) == before


def test_run_that_is_looked_at_saved_or_logged_otherwise_goes_on(tmp_path, data, whole):
    run = tmp_path / "run"
    with Trainer(text_config(data, run)) as first:
        list(first.events(until=6))
    free = {"run.save_every": 5, "run.eval_every": 3, "run.eval_batches": 2, "run.keep": 3}
    told = list(events(text_config(data, run, free)))
    assert isinstance(told[0], Resumed)
    # By the new setting an evaluation was due where it stopped, and there was none.
    assert [(event.step, event.final) for event in told if isinstance(event, Evaluated)] == [
        (6, False), (9, False), (12, False), (12, True),
    ]  # fmt: skip
    assert {k: v for k, v in held(run).items() if k != "state"} == {
        k: v for k, v in held(whole).items() if k != "state"
    }


@pytest.mark.filterwarnings("ignore:the logger Report failed")
def test_command_on_a_full_disk_fails_and_the_same_command_continues(tmp_path, data, whole, monkeypatch, capsys):
    """R4 and R6 as a person sees them: the exit status, and one line that says what to do."""
    file = tmp_path / "config.toml"
    file.write_text(text_config(data, tmp_path / "run").to_toml())
    monkeypatch.setattr(files, "DISK", BrokenDisk(150, errno.ENOSPC, lasting=True))
    assert main(["train", str(file), "--json"]) == 1
    said = capsys.readouterr().err
    assert "No space left on device" in said
    assert "Traceback" not in said
    monkeypatch.setattr(files, "DISK", QuickDisk())
    learn = TrainStep.step

    def step(self, *args, **more):
        if more["step"] == 9:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(self, *args, **more)

    monkeypatch.setattr(TrainStep, "step", step)
    assert main(["train", str(file)]) == 143
    assert "stopped after step 10 of 12, and saved. Go on: anyformer train" in capsys.readouterr().err
    monkeypatch.setattr(TrainStep, "step", learn)
    assert main(["train", str(file), "--json"]) == 0
    assert held(tmp_path / "run") == held(whole)
