"""Held-out loss while a run goes on: one sample for all points of a curve, and the whole part once, under its own key."""

import json
import shutil

import numpy as np
import pytest
import torch

from anyformer.cli.main import main
from anyformer.data.dataset import Examples
from anyformer.train.config import Config
from anyformer.train.loggers import finals, points, read_metrics
from anyformer.train.perplexity import evaluate
from anyformer.train.report import About, Report
from anyformer.train.report.page import headline, page
from anyformer.train.train_step import Precision
from anyformer.train.trainer import Evaluated, Step, Trainer
from tests.train.small_data import text_config, text_data, text_examples, write_data


def mixed(count=400, seed=1):
    """Short documents that are all alike, and a few long ones of noise, which best fit puts into the first rows."""
    draw = np.random.default_rng(seed)
    easy = [(4 + np.arange(n)) % 28 + 4 for n in draw.integers(3, 9, count)]
    hard = [draw.integers(4, 32, 29) for _ in range(count // 20)]
    return Examples.of({"tokens": [*easy, *hard]}, bytes=1)


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data", {"train": text_examples(), "valid": mixed()})


def events(config, until=None):
    with Trainer(config) as run:
        return list(run.events(until=until))


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_sample_of_the_held_out_rows_is_near_the_whole_where_the_first_rows_are_not(tmp_path, data):
    """Trained on the easy documents: rows of noise, which stand first, are far above the mean."""
    easy = write_data(tmp_path / "easy", {"train": mixed(seed=2), "valid": mixed()})
    with Trainer(text_config(easy, tmp_path / "run", {"stages.steps": 60, "run.eval_every": 1000})) as run:
        list(run.events())
        made = run.components

        def measured(few):
            return evaluate(made.model, made.valid, made.objective, precision=Precision(), batches=few).loss

        whole = measured(0)
        rows = {name: torch.from_numpy(array) for name, array in next(made.valid.sweep()).inputs.items()}
        assert made.objective.loss(made.model, rows).total.item() > 1.3 * whole
        for few in (4, 8, 12):
            assert abs(measured(few) - whole) < 0.15 * whole


def test_curve_has_one_sample_for_all_points_and_the_whole_part_has_its_own_key(tmp_path, data):
    told = events(text_config(data, tmp_path / "run", {"run.eval_batches": 2}))
    looks = [event for event in told if isinstance(event, Evaluated)]
    assert [(event.step, event.final) for event in looks] == [(5, False), (10, False), (12, False), (12, True)]
    assert {event.rows for event in looks[:-1]} == {8}
    assert {event.all_rows for event in looks} == {looks[-1].rows}
    assert looks[-1].rows > 8
    written = [line for line in lines(tmp_path / "run") if line["event"] in ("look", "final")]
    assert [(line["event"], line["step"]) for line in written] == [
        ("look", 5), ("look", 10), ("look", 12), ("final", 12),
    ]  # fmt: skip
    assert all("final" not in line for line in written)
    assert [line["loss"] for line in written] == [event.loss for event in looks]
    assert [line["step"] for line in points(tmp_path / "run")] == [5, 10, 12]
    assert [line["loss"] for line in finals(tmp_path / "run")] == [looks[-1].loss]


def test_points_of_a_curve_are_of_the_same_rows_whatever_the_seed(tmp_path, data):
    def digests(seed):
        with Trainer(text_config(data, tmp_path / f"run{seed}", {"run.seed": seed})) as run:
            return [batch.digest for batch in run.components.valid.sweep(few=2)]

    assert digests(1) == digests(2)


def test_masked_rows_that_are_measured_are_masked_alike_whatever_the_seed_and_the_stages(tmp_path, data):
    def digests(seed, stages):
        changes = {"run.seed": seed, "objective.kind": "masked", "objective.mask": 3, "model.spec.topology": "encoder"}
        config = text_config(data, tmp_path / f"run{seed}{stages}", changes).to_data()
        config["stages"] = [*config["stages"]] * stages
        with Trainer(Config.from_data(config)) as run:
            return [batch.digest for batch in run.components.valid.sweep(few=2)]

    assert digests(1, 1) == digests(2, 1) == digests(1, 2)


def test_held_out_part_that_is_small_is_measured_whole_at_each_point_and_once_at_the_end(tmp_path, monkeypatch):
    import anyformer.train.trainer as running

    calls = []
    monkeypatch.setattr(
        running, "evaluate", lambda *args, **more: (calls.append(more["batches"]), evaluate(*args, **more))[1]
    )
    data = text_data(tmp_path / "data")
    told = events(text_config(data, tmp_path / "run", {"run.eval_batches": 50}))
    looks = [event for event in told if isinstance(event, Evaluated)]
    assert [(event.step, event.final) for event in looks] == [(5, False), (10, False), (12, False), (12, True)]
    assert {event.rows for event in looks} == {looks[0].all_rows}
    assert looks[-1].loss == looks[-2].loss
    assert len(calls) == 3


def test_run_interrupted_before_its_last_measurement_does_only_what_is_missing(tmp_path, data):
    config = text_config(data, tmp_path / "run", {"run.eval_batches": 2})
    whole = [event for event in events(config) if isinstance(event, Evaluated)]
    file = tmp_path / "run" / "metrics.jsonl"
    for dropped, again in ((("final",), [(12, True)]), (("final", "look"), [(12, False), (12, True)])):
        left = [line for line in lines(tmp_path / "run") if line["event"] not in dropped or line["step"] < 12]
        file.write_text("".join(json.dumps(line) + "\n" for line in left))
        found = [event for event in events(config) if isinstance(event, Evaluated)]
        assert [(event.step, event.final) for event in found] == again
        assert found[-1].loss == whole[-1].loss
    assert not [event for event in events(config) if isinstance(event, Evaluated)]


def test_run_that_goes_on_with_another_sample_keeps_two_curves_apart(tmp_path, data):
    run = tmp_path / "run"
    events(text_config(data, run, {"run.eval_batches": 2, "run.eval_every": 2}), until=6)
    events(text_config(data, run, {"run.eval_batches": 4, "run.eval_every": 2}))
    report = Report(run, About(name="mine", total=12, params=1, stretches=()))
    report.begin("mine", {}, 0)
    assert [seen["step"] for seen in report.curve()] == [8, 10, 12]
    assert [[seen["step"] for seen in other] for other in report.other_curves()] == [[2, 4, 6]]
    said = page(report)
    assert "other rows" in said
    assert "all rows" in said


def test_report_of_metrics_in_which_the_last_point_was_of_all_rows_takes_it_from_the_curve(tmp_path):
    """As it was written before: the end of the run stands among the points, marked as final."""
    old = [
        {"event": "step", "step": i, "loss": 4.0 / i, "tokens": i, "seconds": i, "rate": 1.0, "gradient_norm": 1.0}
        for i in range(1, 11)
    ]
    old += [
        {"event": "look", "step": i, "tokens": i, "loss": 6.0 - 0.1 * i, "figures": {}, "labels": 9, "final": i == 10}
        for i in (5, 8, 10)
    ]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in old))
    assert [line["step"] for line in points(tmp_path)] == [5, 8]
    assert [line["step"] for line in finals(tmp_path)] == [10]
    assert len(read_metrics(tmp_path, "look")) == 3
    report = Report(tmp_path, About(name="mine", total=10, params=1, stretches=()))
    report.begin("mine", {}, 0)
    assert [seen["step"] for seen in report.curve()] == [5, 8]
    assert headline(report) == "held-out loss 5.0000 after 10 steps"
    assert "all rows" in page(report)


def test_progress_of_a_measurement_is_told_by_rows(tmp_path, data):
    seen = []
    with Trainer(text_config(data, tmp_path / "run", {"run.eval_batches": 2})) as run:
        run.on_eval_rows = lambda done, total: seen.append((done, total))
        whole = run.components.valid.swept()
        list(run.events())
    assert [pair for pair in seen if pair[1] == 8] == [(0, 8), (4, 8), (8, 8)] * 3
    rest = [pair for pair in seen if pair[1] == whole]
    assert rest[0] == (0, whole)
    assert rest[-1] == (whole, whole)
    assert len(rest) > 3


def test_train_as_json_ends_with_the_whole_held_out_part_also_when_it_was_finished(tmp_path, data, capsys):
    config = text_config(data, tmp_path / "run")
    (tmp_path / "run.toml").write_text(config.to_toml())
    for status in ("finished", "was finished"):
        assert main(["train", str(tmp_path / "run.toml"), "--json"]) == 0
        told = json.loads(capsys.readouterr().out)
        assert told["status"] == status
        assert told["held_out"]["loss"] == finals(tmp_path / "run")[-1]["loss"]


def test_logger_is_told_of_the_end_under_a_name_of_its_own(tmp_path, data):
    class Notes:
        def __init__(self):
            self.told = []

        def begin(self, name, config, step):
            pass

        def log(self, event, values):
            self.told.append((event, values["step"]))

        def end(self):
            pass

    notes = Notes()
    with Trainer(text_config(data, tmp_path / "run"), loggers=[notes]) as run:
        list(run.events())
    assert [told for told in notes.told if told[0] in ("look", "final")] == [
        ("look", 5), ("look", 10), ("look", 12), ("final", 12),
    ]  # fmt: skip


def test_step_that_follows_a_measurement_is_as_without_one(tmp_path, data):
    """Looking learns nothing: losses are the same to the bit however often it is done."""
    found = []
    for every in (1, 1000):
        config = text_config(data, tmp_path / f"run{every}", {"run.eval_every": every, "run.ema": 0.9})
        found.append([event.loss for event in events(config) if isinstance(event, Step)])
        shutil.rmtree(tmp_path / f"run{every}")
    assert found[0] == found[1]
    assert isinstance(config, Config)
