"""The loop: it learns, it repeats to the bit, and nothing that is not finite reaches the weights."""

import itertools
import json
import math
import time

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.data.dataset import Examples
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives.causal import Causal
from anyformer.errors import TrainingError
from anyformer.lab.quickstart import train
from anyformer.lab.quickstart_plan import Budget
from anyformer.optim.schedule import Trapezoid
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.loggers import Metrics, read_metrics
from anyformer.train.optim import Optimizers
from anyformer.train.optim_config import Optim
from anyformer.train.report import running_mean
from anyformer.train.report.chart import draw_curve
from anyformer.train.train_step import Precision, SpikeGuard, TrainStep
from tests.contract.draw import BASE

SPEC = af.spec(BASE | {"vocab": 16, "context": 16})


def feed(tokens, batch=4):
    examples = Examples.of({"tokens": [np.asarray(tokens)]})
    return BatchLoader(examples, Causal(), spec=SPEC, length=16, batch=batch, seed=0, rows="stream")


def learner(model, workers=None, **more):
    optimizers = Optimizers(model, Optim())
    return TrainStep(
        model=model, objective=Causal(), optimizers=optimizers, precision=Precision(), guard=SpikeGuard(),
        workers=workers or CpuWorkers(), **more,
    )  # fmt: skip


def run(steps: int, spec=SPEC, hook=None, workers=None):
    """Train on a sequence that can be learned: each token follows from the one before."""
    model = af.build(spec)
    if hook is not None:
        hook(model)
    rows = feed(np.arange(2000) * 3 % 16)
    return model, train(learner(model, workers), rows, budget=Budget(steps=steps), schedule=Trapezoid(), seed=0)


def test_training_lowers_the_loss_of_what_can_be_learned():
    _, records = run(40)
    losses = [r.loss for r in records]
    assert len(losses) == 40
    assert losses[0] > math.log(16) / 2
    assert losses[-1] < 0.3 * losses[0]


def test_training_by_steps_repeats_to_the_bit():
    ends = []
    for _ in range(2):
        model, records = run(8)
        losses = [r.loss for r in records]
        ends.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))


def test_training_records_count_tokens_and_end_at_the_end():
    model, records = run(5)
    made = list(records)
    assert [r.step for r in made] == [1, 2, 3, 4, 5]
    assert [r.tokens for r in made] == [64, 128, 192, 256, 320]
    assert made[-1].progress == 1.0
    assert all(a.seconds < b.seconds for a, b in itertools.pairwise(made))
    assert not model.training


def test_training_by_the_clock_ends_soon_after_it():
    model = af.build(SPEC)
    rows = feed(np.arange(500) % 16, batch=2)
    made = list(train(learner(model), rows, budget=Budget(seconds=0.3), schedule=Trapezoid(), seed=0))
    assert made[-2].seconds < 0.3 <= made[-1].seconds
    assert made[-1].progress == 1.0


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_training_never_lets_a_number_that_is_not_finite_reach_the_weights(bad):
    def spoil_third(model):
        calls = itertools.count()

        def hook(module, inputs, output):
            if next(calls) == 2:
                output.loss = output.loss * bad
            return output

        model.register_forward_hook(hook)

    model, records = run(6, hook=spoil_third)
    with pytest.warns(UserWarning, match="step 3: .* on batch [0-9a-f]+; the weights were left as they were"):
        seen = [(record, [p.detach().clone() for p in model.parameters()]) for record in records]
    assert [record.skipped for record, _ in seen] == [False, False, True, False, False, False]
    assert all(w.isfinite().all() for _, weights in seen for w in weights)
    assert all(torch.equal(a, b) for a, b in zip(seen[1][1], seen[2][1], strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(seen[2][1], seen[3][1], strict=True))


def test_training_that_stays_broken_gives_up_and_says_what_to_try():
    def spoil(model):
        with torch.no_grad():
            model.get_parameter("decoder.final_norm.weight").fill_(float("nan"))

    _, records = run(50, hook=spoil)
    with pytest.warns(UserWarning, match="left as they were"), pytest.raises(TrainingError, match="10 steps in a row"):
        list(records)


def test_budget_is_seconds_or_steps():
    with pytest.raises(TypeError, match="either seconds or steps"):
        Budget()
    with pytest.raises(TypeError, match="either seconds or steps"):
        Budget(seconds=1.0, steps=2)
    assert Budget(steps=4).progress(1, 99.0) == 0.25
    assert Budget(seconds=4.0).progress(99, 1.0) == 0.25


def test_metrics_are_read_back_and_a_torn_last_line_is_passed_over(tmp_path):
    with Metrics(tmp_path) as metrics:
        metrics.write("step", loss=1.5, step=1)
        metrics.write("step", loss=float("nan"), step=2)
        metrics.write("result", loss=1.0)
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"event": "step", "lo')
    assert read_metrics(tmp_path, "step") == [
        {"event": "step", "loss": 1.5, "step": 1},
        {"event": "step", "loss": None, "step": 2},
    ]
    assert [r["loss"] for r in read_metrics(tmp_path, "result")] == [1.0]
    assert read_metrics(tmp_path / "nowhere", "step") == []
    json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[1], parse_constant=pytest.fail)


def test_smoothed_points_are_means_of_their_neighbours():
    made = running_mean([float(i % 2) for i in range(100)], share=0.04)
    assert len(made) == 100
    assert made[50] == pytest.approx(sum(i % 2 for i in range(48, 53)) / 5)
    assert running_mean([3.0]).tolist() == [3.0]


def test_curve_is_a_png_that_shows_something(tmp_path):
    from matplotlib.image import imread

    train_points = [(i * 1000.0, 5 * math.exp(-i / 30) + 1) for i in range(100)]
    draw_curve(
        tmp_path / "a.png", title="t", train=train_points, held_out=train_points[::20], yardsticks={"gzip -9": 2.0}
    )
    picture = imread(tmp_path / "a.png")
    assert picture.shape[:2] == (675, 1200)
    assert 0.01 < (picture[..., :3] < 0.9).any(-1).mean() < 0.5
    draw_curve(tmp_path / "b.png", title="empty", train=[], held_out=[(1.0, 2.0)], yardsticks={})
    assert (tmp_path / "b.png").stat().st_size > 1000


@pytest.mark.parametrize(("size", "micro"), [(2, 0), (3, 0), (1, 1), (1, 4), (2, 2)])
def test_gradients_in_pieces_of_any_number_are_those_of_the_whole_batch(size, micro):
    model = af.build(SPEC, dtype=torch.float64)
    batch = feed(np.random.default_rng(0).integers(16, size=400), batch=6).batch(0)
    found = []
    for workers, rows in ((1, 0), (size, micro)):
        with CpuWorkers(workers) as workers:
            made = learner(model, workers, micro=rows)
            terms = made._gradients(batch, torch.device("cpu"))
        found.append((float(terms["total"]), [p.grad.clone() for p in model.parameters()]))
        made.optimizers.forget()
    assert found[0][0] == pytest.approx(found[1][0], rel=1e-12)
    for alone, shared in zip(found[0][1], found[1][1], strict=True):
        assert torch.allclose(alone, shared, rtol=1e-9, atol=1e-12)
    ids = torch.from_numpy(batch.inputs["input_ids"])
    assert found[0][0] == pytest.approx(model(ids, labels=ids).loss.item(), rel=1e-12)


def test_crew_repeats_training_to_the_bit():
    ends = []
    for _ in range(2):
        with CpuWorkers(3) as workers:
            model, records = run(6, workers=workers)
            losses = [r.loss for r in records]
        ends.append((losses, [p.detach().clone() for p in model.parameters()]))
    assert ends[0][0] == ends[1][0]
    assert all(torch.equal(a, b) for a, b in zip(ends[0][1], ends[1][1], strict=True))


def test_crew_answers_in_order_and_gives_cores_back():
    before = torch.get_num_threads()
    with CpuWorkers(3) as workers:
        # The first is the slowest.
        made = list(workers.map(lambda i: (time.sleep(0.05 if i == 0 else 0), i)[1], range(20)))
    assert made == list(range(20))
    assert torch.get_num_threads() == before


def test_crew_passes_an_error_on():
    def fail(i):
        if i == 2:
            raise KeyError(i)
        return i

    with CpuWorkers(2) as workers, pytest.raises(KeyError, match="2"):
        list(workers.map(fail, range(5)))


def test_crew_is_one_beside_a_device_and_no_larger_than_the_work():
    assert CpuWorkers.on(torch.device("cuda"), 8).size == 1
    assert CpuWorkers.on(torch.device("cpu"), 1).size == 1
    assert 1 <= CpuWorkers.on(torch.device("cpu"), 99).size <= 4


def test_budget_by_the_clock_with_least_steps_ends_on_time_on_a_fast_machine_and_later_on_a_slow_one():
    budget = Budget(seconds=100.0, least_steps=500, most_seconds=300.0)

    def end(speed: float) -> tuple[int, float]:
        step, before = 0, 0.0
        while (progress := budget.progress(step, step / speed)) < 1:
            assert progress >= before
            before, step = progress, step + 1
        return step, step / speed

    assert end(10.0) == (1000, 100.0)
    assert end(5.0) == (500, 100.0)
    assert end(2.5) == (500, 200.0)
    assert end(1.0) == (300, 300.0)
    assert budget.expected(25, 10.0) == pytest.approx(200.0)
    assert budget.words == "100 s, or 500 steps in at most 300 s"
    for odd in ({"least_steps": 3, "seconds": 1.0}, {"steps": 3, "least_steps": 2, "most_seconds": 2.0}):
        with pytest.raises(TypeError, match="go together"):
            Budget(**odd)
