"""Studies as a whole: killed and continued they end as one that was not; lost runs are marked, and budgets recorded."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from anyformer.errors import InputError, TrainingError
from anyformer.lab import experiment
from anyformer.lab.engine.queue import Queue, Slot
from anyformer.lab.engine.train_job import prepared, run_job
from anyformer.lab.experiment import TUNED, Experiment
from anyformer.lab.plan import FILE, TUNING_SEEDS, Plan
from anyformer.lab.results import BASE, Results
from anyformer.lab.study import Study
from anyformer.train.lock import Lock
from anyformer.train.loggers import points, read_metrics
from anyformer.train.train_step import TrainStep
from anyformer.train.trainer import Step, Stopped, Trainer
from tests.lab.small_study import (
    MEASURED,
    children,
    differing,
    found_by,
    is_running,
    job_of,
    read_base,
    study_of,
    wait_until,
    write_base,
)

STEPS = 40
HOT = "lr=1e+30"
KILLS = 3


def carried_out(study: Study, folder: Path, **more) -> Results:
    return Experiment(study=study, folder=folder, device="cpu", at_once=1, **more).run()


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("experiment"), STEPS)


@pytest.fixture(scope="module")
def study(base):
    return study_of(base, vary={"ffn.kind": ["relu"], "lr": [1e30]}, measure=MEASURED, title="small")


@pytest.fixture(scope="module")
def whole(study, tmp_path_factory):
    """A study that nothing happened to."""
    folder = tmp_path_factory.mktemp("experiment") / "whole"
    return folder, carried_out(study, folder)


def results_of(folder: Path) -> dict[str, int]:
    """When each run's result was written."""
    return {str(place.parent): place.stat().st_mtime_ns for place in folder.glob("runs/*/*/result.json")}


def test_experiment_runs_every_variant_with_every_seed_and_marks_what_diverged(whole, study):
    folder, found = whole
    assert [each.name for each in found.variants] == ["base", "ffn=relu", HOT]
    assert all([run.seed for run in each.runs] == [0, 1] for each in found.variants)
    for each in found.variants[:2]:
        assert [run.status for run in each.runs] == ["finished"] * 2
        assert len(each.values("loss@8")) == len(each.values("gradient@end.layer0")) == 2
        assert len(set(each.values("loss").values())) == 2
    hot = found.variant(HOT)
    assert [run.status for run in hot.runs] == ["diverged"] * 2
    assert hot.values("loss") == {}
    assert 0 < hot.runs[0].steps < STEPS
    assert any(note.startswith(f"{HOT}: seed 0 diverged: step ") for note in found.notes)
    assert Results.read(folder) == found
    assert Study.from_file(folder / "study.toml") == study
    assert found.seconds > 0
    assert found.budget == "40 steps"
    assert children(os.getpid()) == []


def test_runs_of_one_seed_read_the_same_batches_whatever_is_varied(whole):
    folder, _ = whole
    read = {
        (name, seed): [step["batch"] for step in read_metrics(folder / "runs" / name / f"seed-{seed}", "step")]
        for name in ("base", "ffn=relu") for seed in (0, 1)
    }  # fmt: skip
    assert len(read["base", 0]) == len(set(read["base", 0])) == STEPS
    assert read["base", 0] == read["ffn=relu", 0]
    assert read["base", 1] == read["ffn=relu", 1]
    assert not set(read["base", 0]) & set(read["base", 1])


def training(folder: Path) -> int:
    """Steps and evaluations that runs have written down so far."""
    return sum(place.read_bytes().count(b"\n") for place in folder.glob("runs/*/*/metrics.jsonl"))


def test_experiment_killed_at_random_and_continued_ends_as_one_that_was_not(whole, study, tmp_path, launch):
    """SIGKILL to the parent and its group, once while it plans, then while it trains. Its worker ends by itself."""
    draw, folder, file = random.Random(5), tmp_path / "killed", tmp_path / "study.toml"
    file.write_text(study.to_toml())
    command = [sys.executable, "-m", "tests.lab.small_study", str(file), str(folder)]
    half_done = 0
    for kill in range(KILLS):
        child = launch(command, start_new_session=True, stderr=subprocess.DEVNULL)
        assert wait_until(lambda child=child: children(child.pid))
        if kill:
            before = training(folder)
            assert wait_until(lambda before=before: training(folder) != before)
            enough = training(folder) + draw.randrange(40)
            assert wait_until(lambda enough=enough: training(folder) >= enough, every=0.002)
        else:
            wait_until(lambda: False, draw.uniform(0.0, 0.5))
        workers = children(child.pid)
        os.killpg(child.pid, signal.SIGKILL)
        assert child.wait() == -signal.SIGKILL
        for worker in workers:
            assert wait_until(lambda worker=worker: not is_running(worker))
        assert not (folder / "results.json").exists()
        half_done += any(str(place.parent) not in results_of(folder) for place in folder.glob("runs/*/*/metrics.jsonl"))
    assert half_done
    assert len(results_of(folder)) < 6
    child = launch(command, start_new_session=True)
    assert child.wait() == 0
    assert differing(Results.read(folder), whole[1]) == []


def test_experiment_continued_keeps_what_is_there_and_tries_again_what_failed(whole, study, tmp_path):
    folder, more = tmp_path / "copy", replace(study, seeds=3)
    shutil.copytree(whole[0], folder)
    before = results_of(folder)
    # Where a run's folder would be there is a file: that one can't be done.
    stone = folder / "runs" / "base" / "seed-2"
    stone.touch()
    found = carried_out(more, folder)
    assert results_of(folder).items() >= before.items()
    assert [run.status for run in found.variant(BASE).runs] == ["finished", "finished", "failed"]
    assert "seed-2" in found.variant(BASE).runs[2].reason
    assert [run.status for run in found.variant("ffn=relu").runs] == ["finished"] * 3
    # One that has left a result failed too: it went out of memory.
    lost = folder / "runs" / "ffn=relu" / "seed-2"
    data = json.loads((lost / "result.json").read_text())
    shutil.rmtree(lost)
    lost.mkdir()
    (lost / "result.json").write_text(json.dumps(data | {"status": "out of memory", "metrics": {}}))
    stone.unlink()
    kept = results_of(folder)
    again = carried_out(more, folder)
    assert [run.status for run in again.variant(BASE).runs] == ["finished"] * 3
    assert found_by(again.variant("ffn=relu").runs[2]) == found_by(found.variant("ffn=relu").runs[2])
    assert [run.status for run in again.variant(HOT).runs] == ["diverged"] * 3
    # Only these two were done; what diverged has an answer, and stays.
    now = results_of(folder)
    assert {place for place in now if now[place] != kept.get(place)} == {str(stone), str(lost)}
    # With the third seed taken away, it is the study that it was.
    shorter = [replace(each, runs=each.runs[:2]) for each in again.variants]
    notes = [note for note in again.notes if "seed 2" not in note]
    assert differing(replace(again, variants=shorter, notes=notes, study=whole[1].study), whole[1]) == []
    assert again.seconds > found.seconds > whole[1].seconds


def test_experiment_in_the_folder_of_another_is_refused_by_name(whole, study, base):
    folder, _ = whole
    other = study_of(base, vary={"ffn.kind": ["gelu"], "lr": [1e30]}, measure=MEASURED, title="small")
    written = {place: place.stat().st_mtime_ns for place in folder.rglob("*") if place.is_file()}
    with pytest.raises(InputError) as caught:
        carried_out(other, folder)
    assert f"{folder} holds another study, and can't be continued as this one:" in str(caught.value)
    assert "vary.ffn.kind: was ['relu'], is ['gelu']" in str(caught.value)
    with Lock(folder), pytest.raises(TrainingError, match="two would spoil each other's files"):
        carried_out(study, folder)
    del written[folder / ".lock"]
    assert all(place.stat().st_mtime_ns == at for place, at in written.items())


def test_run_that_failed_in_the_middle_goes_on_from_its_checkpoint(base, tmp_path, monkeypatch):
    run = read_base(study_of(base))
    job, plain = (job_of(run, tmp_path / name, measure=MEASURED) for name in ("broken", "plain"))
    learn, done = TrainStep.step, list[int]()

    def step(self, batch, **given):
        done.append(given["step"])
        if given["step"] == 21 and done.count(21) == 1:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")
        return learn(self, batch, **given)

    monkeypatch.setattr(TrainStep, "step", step)
    found = run_job(job)
    assert (found.status, found.steps) == ("failed", 21)
    assert found.reason == "RuntimeError: CUDA error: an illegal memory access was encountered"
    (tmp_path / "broken" / "result.json").unlink()
    again = run_job(job)
    assert done[22:] == list(range(20, STEPS))
    assert found_by(again) == found_by(run_job(plain))


def test_experiment_tunes_learning_rates_on_other_seeds_and_counts_the_cost(base, tmp_path):
    """With a second run, whose first one is shared: by factors and variants, when tuning and when judging."""
    tuned = study_of(
        base, set={"stages.steps": 12}, seeds=1, then={"set": {"stages.steps": 4}, "convert": {"kv_heads": 1}},
        vary={"then.convert.pool": ["first"]}, tune={"factors": [1e-4, 1.0]},
    )  # fmt: skip
    found = carried_out(tuned, tmp_path / "study")
    assert [(each.name, each.lr_factor) for each in found.variants] == [(BASE, 1.0), ("then.convert.pool=first", 1.0)]
    tuning = sorted(place.parent for place in (tmp_path / "study" / "tuning").glob("*/*/*/result.json"))
    assert {place.name for place in tuning} == {f"seed-{TUNING_SEEDS}"}
    assert len(tuning) == 4
    first = sorted((tmp_path / "study" / "runs").glob("first-*/*"))
    # Each factor has a first run to tune by, and the one that is judged is shared.
    assert [place.name for place in first].count("seed-0") == 1
    assert len(first) == 3
    for each in found.variants:
        assert [run.seed for run in each.runs] == [0]
        # Two factors on one seed each cost as much as two runs.
        assert each.tuning_flops == pytest.approx(2 * each.train_flops)
        assert each.runs[0].metrics["before.loss"] is not None
    one, other = (each.runs[0].metrics for each in found.variants)
    assert one["before.loss"] == other["before.loss"]
    assert one["loss"] != other["loss"]
    # Decided once, and where the results are read again.
    assert json.loads((tmp_path / "study" / TUNED).read_text()) == {BASE: 1.0, "then.convert.pool=first": 1.0}
    assert Experiment(study=tuned, folder=tmp_path / "study").results().variants == found.variants


def test_tuning_chooses_the_best_factor_by_the_metric_of_the_study(base, tmp_path):
    """Of a loss the smallest, of an accuracy the largest; one without a number never."""
    for metric, expected in (("loss", 2.0), ("accuracy", 8.0)):
        chosen = study_of(base, vary={"depth": [2]}, metric=metric, tune={"factors": [0.5, 2.0, 8.0, 16.0]})
        made = Experiment(study=chosen, folder=tmp_path / metric, device="cpu")
        made.folder.mkdir()
        every = made._draft()
        plan = experiment.plan_of(every, chosen, budget="", match="", machine={}, devices=["cpu"], date="")
        for _, factor, job in plan.tuning_jobs(chosen, made.folder):
            place = Path(job.folder)
            place.mkdir(parents=True)
            values = {"loss": abs(factor - 2), "accuracy": min(factor, 8.0)} if factor < 16 else {}
            (place / "result.json").write_text(json.dumps({"seed": job.seed, "status": "finished", "metrics": values}))
        assert made._tuned(plan) == {BASE: expected, "depth=2": expected}


def test_budget_of_seconds_is_converted_once_and_kept(base, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "CALIBRATION", 0.1)
    timed = study_of(base, vary={"ffn.kind": ["relu"]}, seeds=1, budget="1s", measure={"decode_batch": 2})
    folder = tmp_path / "study"

    def made(**changes) -> Experiment:
        return Experiment(study=replace(timed, **changes), folder=folder, device="cpu", at_once=1)

    with Queue([Slot(device="cpu", threads=1)], tmp_path / "logs") as queue:
        with pytest.raises(
            InputError, match=r"budget: 0.001 s are too few for one evaluation, which takes .* at least 0\.\d"
        ):
            made(budget="0.001s").make_plan(queue)
        plan = made().make_plan(queue)
    steps = plan.variants[0].steps
    assert plan.budget.startswith(f"1 s a run, converted into {steps:,} steps of ")
    assert steps > 20
    assert [each.steps for each in plan.variants] == [steps] * 2
    # As if it had been stopped here; few steps, so that they are over soon, and not those that would be measured again.
    few = [
        replace(each, steps=7, config={**each.config, "stages": [{**each.config["stages"][0], "steps": 7}]})
        for each in plan.variants
    ]
    folder.mkdir()
    replace(plan, variants=few, budget="1 s a run, converted into 7 steps").save(folder)
    found = made().run()
    assert found.budget == "1 s a run, converted into 7 steps"
    assert Plan.read(folder) == replace(plan, variants=few, budget=found.budget)
    assert [run.steps for each in found.variants for run in each.runs] == [7, 7]
    # Speeds are measured of each variant, in as many rounds.
    for each in found.variants:
        assert {name: len(rounds) for name, rounds in each.speeds.items()} == {
            "train_tokens_per_second": 5, "decode_tokens_per_second": 5,
        }  # fmt: skip
        assert each.peak_memory
    assert (folder / FILE).is_file()


@pytest.mark.parametrize(
    ("budget", "steps"), [("9 steps", 9), ("640 tokens", 10), ("700 tokens", 10), ("{flops} flops", 5)]
)
def test_budget_in_steps_tokens_or_flops_says_how_many_steps(base, tmp_path, budget, steps):
    one = read_base(study_of(base))
    flops = 5.5 * one.train_flops / STEPS
    given = study_of(base, vary={"depth": [2]}, budget=budget.format(flops=f"{flops:.6e}"))
    made = Experiment(study=given, folder=tmp_path / "none", device="cpu")
    made.check()
    assert [each.run.config.steps for each in made._draft()] == [steps] * 2
    assert not (tmp_path / "none").exists()


def test_budget_of_less_than_a_step_is_refused(base, tmp_path):
    given = study_of(base, vary={"depth": [2]}, budget="63 tokens")
    with pytest.raises(InputError, match="budget: 63 tokens are less than one step takes, 64"):
        Experiment(study=given, folder=tmp_path / "none", device="cpu").run()
    assert not (tmp_path / "none").exists()


def test_study_whose_base_changed_is_refused_by_the_name_of_the_setting(base, tmp_path):
    study = study_of(base, vary={"position.kind": ["alibi"]}, seeds=1, measure={"speeds": False})
    Experiment(study=study, folder=tmp_path / "study", device="cpu").plan()
    text = Path(base).read_text()
    Path(base).write_text(text.replace('kind = "adamw"', 'kind = "adamw"\nmatrices = 0.5'))
    try:
        with pytest.raises(InputError, match=r"the base\.config\.optim\.matrices: was 0\.002, is 0\.5"):
            Experiment(study=study, folder=tmp_path / "study", device="cpu").check()
    finally:
        Path(base).write_text(text)
    Experiment(study=study, folder=tmp_path / "study", device="cpu").check()


def test_jobs_of_a_planned_study_are_those_of_the_seeds_it_has_now(base, tmp_path):
    given = {"vary": {"position.kind": ["alibi"]}, "measure": {"speeds": False}}
    for seeds in (1, 3):
        study = study_of(base, seeds=seeds, **given)
        plan, _ = Experiment(study=study, folder=tmp_path / "study", device="cpu").plan()
        assert experiment.read_jobs(tmp_path / "study") == plan.jobs(study, tmp_path / "study")
        assert len(experiment.read_jobs(tmp_path / "study")) == 2 * seeds


def test_study_on_the_device_that_its_config_names_is_planned_there(base, tmp_path):
    study = study_of(base, vary={"position.kind": ["alibi"]}, seeds=1, set={"compute.device": "cpu"})
    plan, _ = Experiment(study=study, folder=tmp_path / "study").plan()
    assert set(plan.devices) == {"cpu"}


def test_run_stopped_between_a_step_and_its_evaluation_has_the_whole_curve(base, tmp_path):
    run = read_base(study_of(base))

    def curve(folder: Path, *, stop_after: int = 0) -> list[dict]:
        config = prepared(job_of(run, folder))
        while True:
            with Trainer(config, about=None) as trainer:
                events = list(_stopped(trainer, stop_after))
            if not any(isinstance(event, Stopped) for event in events):
                return points(folder)
            stop_after = 0

    def _stopped(trainer: Trainer, after: int):
        for event in trainer.events():
            if isinstance(event, Step) and event.step == after:
                signal.raise_signal(signal.SIGTERM)
            yield event

    # Evaluations are due after each fifth step, and the stop is obeyed after the next one.
    whole = curve(tmp_path / "whole")
    assert [point["step"] for point in whole][:2] == [5, 10]
    assert curve(tmp_path / "stopped", stop_after=4) == whole
