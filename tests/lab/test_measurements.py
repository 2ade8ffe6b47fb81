"""What a study measures of a trained model, against plain computations of the same."""

from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest
import torch

from anyformer.data.loader import DRAW, VERSION, BatchLoader
from anyformer.lab.engine.costs import opened, step_seconds
from anyformer.lab.engine.measurements import SPIKE, WINDOW, layer_gradients, loss_at, measurements, spikes, steps_to
from anyformer.lab.engine.train_job import prepared, run_job
from anyformer.lab.study import Measure
from anyformer.lab.variants import changed
from anyformer.model.build import build
from anyformer.train.loggers import finals
from anyformer.train.perplexity import evaluate
from anyformer.train.train_step import on_device
from anyformer.train.trainer import Trainer
from tests.lab.small_study import MEASURED, found_by, job_of, read_base, study_of, write_base


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    return write_base(tmp_path_factory.mktemp("measurements"))


@contextmanager
def trained(base, folder, **changes):
    """The parts of a run that has come to its end."""
    job = job_of(read_base(study_of(base, set=changes)), folder)
    with Trainer(prepared(job), about=None) as trainer:
        for _ in trainer.events():
            pass
        yield trainer


@pytest.fixture(scope="module")
def done(base, tmp_path_factory):
    with trained(base, tmp_path_factory.mktemp("measurements") / "run", depth=3) as trainer:
        yield trainer


def test_loss_at_a_length_is_that_of_evaluation_on_rows_of_that_length(done):
    components = done.components
    for length in (8, 16, 31):
        loader = BatchLoader(
            components.held_out, components.objective, spec=components.spec, length=length, batch=1, seed=DRAW, rows="stream",
            version=VERSION,
        )  # fmt: skip
        alone = evaluate(components.model, loader, components.objective, precision=components.precision)
        assert loss_at(components, length=length) == pytest.approx(alone.loss, rel=1e-6)
    # At the length of training it is what the run itself found at its end.
    assert loss_at(components, length=16) == finals(done.folder)[-1]["loss"]
    assert loss_at(components) == finals(done.folder)[-1]["loss"]
    assert len({loss_at(components, length=length) for length in (8, 16, 31)}) == 3


def test_loss_at_more_tokens_than_the_model_reads_is_no_number(done):
    assert loss_at(done.components, length=32) is not None
    assert loss_at(done.components, length=33) is None


def test_loss_in_rows_of_another_kind_is_that_of_evaluation_on_such_rows(done):
    components = done.components
    for rows in ("packed", "padded"):
        loader = BatchLoader(
            components.held_out, components.objective, spec=components.spec, length=16, batch=2, seed=DRAW, rows=rows,
            packing=components.config.data.packing, version=VERSION,
        )  # fmt: skip
        alone = evaluate(components.model, loader, components.objective, precision=components.precision)
        assert loss_at(components, rows=rows) == pytest.approx(alone.loss, rel=1e-6)


def test_loss_at_a_length_is_that_of_the_averaged_weights_where_there_are_any(base, tmp_path):
    with trained(base, tmp_path / "run", **{"run.ema": 0.9}) as trainer:
        assert loss_at(trainer.components, length=16) == finals(trainer.folder)[-1]["loss"]


def plain_norms(components, model) -> list[float]:
    """The norm of each layer's gradient on the first batch, by autograd and arithmetic alone."""
    inputs = on_device(components.loader(0).batch(0), components.device)
    total = components.objective.loss(model, inputs).total
    named = dict(model.named_parameters())
    found = torch.autograd.grad(total, list(named.values()), allow_unused=True)
    squares: dict[int, float] = {}
    for name, gradient in zip(named, found, strict=True):
        if ".blocks." in name and gradient is not None:
            layer = int(name.split(".blocks.")[1].split(".")[0])
            squares[layer] = squares.get(layer, 0.0) + float((gradient.double() ** 2).sum())
    return [squares[i] ** 0.5 for i in sorted(squares)]


def test_layer_gradients_are_those_of_autograd_and_leave_the_model_alone(done):
    components, model = done.components, done.components.model
    kept = {name: p.detach().clone() for name, p in model.named_parameters()}
    for i, p in enumerate(model.parameters()):
        # Some have a gradient of an earlier step, some none.
        p.grad = torch.full_like(p, 0.5) if i % 2 else None
    held = [p.grad for p in model.parameters()]
    drawn = torch.random.get_rng_state()
    norms = layer_gradients(components, model)
    assert len(norms) == 3
    assert norms == pytest.approx(plain_norms(components, model), rel=1e-5)
    assert layer_gradients(components, model) == norms
    assert torch.equal(torch.random.get_rng_state(), drawn)
    assert model.training
    for p, before in zip(model.parameters(), held, strict=True):
        assert p.grad is before
        assert before is None or bool((before == 0.5).all())
    assert all(torch.equal(p, kept[name]) for name, p in model.named_parameters())
    for p in model.parameters():
        p.grad = None


def test_gradients_at_the_start_are_of_the_weights_that_the_run_began_with(done):
    components = done.components
    found = measurements(components, Measure(gradients=True, speeds=False), [], [])
    first = build(components.spec, seed=components.config.run.seed).train()
    for when, model in (("start", first), ("end", components.model)):
        expected = plain_norms(components, model)
        assert [found[f"gradient@{when}.layer{i}"] for i in range(3)] == pytest.approx(expected, rel=1e-5)
        assert found[f"gradient@{when}.last_over_first"] == pytest.approx(expected[2] / expected[0], rel=1e-5)
    assert found["gradient@start.layer0"] != found["gradient@end.layer0"]


def test_gradients_with_dropout_do_not_depend_on_what_was_drawn_before(base, tmp_path):
    with trained(base, tmp_path / "run", **{"block.dropout": 0.3}) as trainer:
        components = trainer.components
        torch.manual_seed(1)
        one = layer_gradients(components, components.model)
        torch.manual_seed(2)
        assert layer_gradients(components, components.model) == one


def test_second_run_measures_gradients_from_the_weights_that_it_began_with(base, tmp_path):
    run = read_base(study_of(base))
    measure = {"gradients": True, "speeds": False}
    first = run_job(job_of(run, tmp_path / "first", measure=measure))
    after: dict[str, Any] = {
        "after": "first",
        "start": str(tmp_path / "first"),
        "convert": {"kv_heads": 1, "pool": "mean"},
    }
    second = run_job(job_of(run, tmp_path / "second", measure=measure, **after))
    plain = run_job(job_of(run, tmp_path / "plain", measure=measure, **after | {"convert": {}}))
    assert plain.status == second.status == "finished", (plain.reason, second.reason)
    # The same batch of the same seed, and the weights that the first run ended with.
    assert plain.metrics["gradient@start.layer0"] == first.metrics["gradient@end.layer0"]
    assert second.metrics["gradient@start.layer0"] != first.metrics["gradient@end.layer0"]
    assert plain.metrics["before.loss"] == first.metrics["loss"]
    assert (plain.value("loss") or 9) < (first.value("loss") or 0)
    assert not (tmp_path / "second" / "start").exists()


@pytest.mark.parametrize(("status", "left"), [("diverged", "diverged"), ("out of memory", "out of memory")])
def test_second_run_of_a_lost_first_one_is_lost_with_it(base, tmp_path, status, left):
    run = read_base(study_of(base, set={"guard.patience": 2}))
    hot = replace(run.config, optim=replace(run.config.optim, tables=1e30, vectors=1e30))
    first = run_job(job_of(replace(run, config=hot), tmp_path / "first"))
    assert first.status == "diverged"
    text = (tmp_path / "first" / "result.json").read_text().replace('"diverged"', f'"{status}"')
    (tmp_path / "first" / "result.json").write_text(text)
    after: dict[str, Any] = {"after": "first", "start": str(tmp_path / "first")}
    second = run_job(job_of(run, tmp_path / "second", **after))
    assert (second.status, second.steps) == (left, 0)
    assert second.reason.startswith(f"the run that it begins from {status}: ")
    gone = run_job(job_of(run, tmp_path / "third", **after | {"start": str(tmp_path / "none")}))
    assert (gone.status, gone.reason) == ("failed", "the run that it begins from has no result")


def test_job_executed_twice_is_done_once_and_all_measurements_are_there(base, tmp_path):
    job = job_of(read_base(study_of(base)), tmp_path / "run", measure=MEASURED, seed=4)
    found = run_job(job)
    place = tmp_path / "run" / "result.json"
    written = place.stat().st_mtime_ns
    assert found_by(run_job(job)) == found_by(found)
    assert place.stat().st_mtime_ns == written
    assert (found.seed, found.status, found.steps, found.tokens) == (4, "finished", 12, 12 * 64)
    assert {
        "loss",
        "loss@8",
        "loss@16",
        "steps_to_3.3",
        "gradient_spikes",
        "gradient@end.layer0",
    } <= found.metrics.keys()
    assert [step for step, _, _ in found.curve] == [5, 10, 12]
    # Only what a resume needs is gone.
    assert not (tmp_path / "run" / "checkpoints").exists()
    assert (tmp_path / "run" / "model.safetensors").is_file()


def test_spikes_are_norms_far_above_the_median_of_those_before():
    usual = [1.0, 1.2, 0.8] * 10
    assert spikes([]) == 0
    assert spikes(usual) == 0
    assert spikes([*usual, SPIKE * 1.01]) == 1
    assert spikes([*usual, SPIKE * 0.99]) == 0
    assert spikes([*usual, 50.0, 60.0, 1.0]) == 2
    # Too few to say what is usual.
    assert spikes([1.0] * (WINDOW // 4 - 1) + [100.0]) == 0
    assert spikes([1.0] * (WINDOW // 4) + [100.0]) == 1
    # What is no number is always one.
    assert spikes([None, 1.0, float("nan"), float("inf")]) == 3
    # Only the last ones count: norms that grow slowly are none.
    assert spikes([1.01**i for i in range(500)]) == 0
    assert spikes([1.0] * 200 + [3.0] * 200 + [11.0]) == 0
    assert spikes([1.0] * 200 + [3.0] * 200 + [12.1]) == 1


def test_steps_to_a_loss_are_read_off_a_straight_line():
    curve = [(10, 640, 4.0), (20, 1280, 3.0), (30, 1920, 2.0)]
    assert steps_to(3.5, curve) == 15.0
    assert steps_to(3.0, curve) == 20.0
    assert steps_to(2.0, curve) == 30.0
    assert steps_to(1.9, curve) is None
    assert steps_to(4.0, curve) == 10.0
    assert steps_to(9.0, curve) == 10.0
    assert steps_to(3.0, []) is None
    # The first time counts: it may rise again.
    assert steps_to(2.5, [(10, 0, 3.0), (20, 0, 2.0), (30, 0, 3.0), (40, 0, 2.0)]) == 15.0
    assert steps_to(2.5, [(5, 0, 2.0), (10, 0, 3.0), (15, 0, 1.5)]) == 5.0


def test_speed_counts_the_tokens_of_the_batches_that_were_timed(base, tmp_path):
    run = changed(read_base(study_of(base)), {}, {"data.rows": "padded"})
    with opened(job_of(run, tmp_path / "run"), "cpu") as components:
        _, tokens = step_seconds(components, 2, 0.0, 3)
        batches = [components.loader(0).batch(i).tokens for i in (2, 3, 4)]
    assert len(set(batches)) > 1
    assert tokens == sum(batches) / 3
