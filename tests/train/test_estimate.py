"""The estimate of memory against what a step really takes, what is advised against a lack of it, and arithmetic."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import anyformer as af
from anyformer.errors import TrainingError
from anyformer.evals.memory import used
from anyformer.explain.costs import MACHINES, peak_of
from anyformer.train.components import Components
from anyformer.train.dry_run import advice, explain_oom, forecast, is_oom, load_of, stretches
from anyformer.train.estimate import EFFICIENCY, Cure, cures, memory, product_rate, step_flops
from anyformer.train.trainer import Trainer
from tests.tolerances import TABLE
from tests.train.small_data import text_config, text_data

CPU = torch.device("cpu")
SIZES = {
    "model.spec.width": 64, "model.spec.depth": 3, "model.spec.context": 128, "stages.length": 128, "stages.batch": 8,
    "compute.threads": 1, "compute.device": "cpu",
}  # fmt: skip
CASES = {
    "plain": {},
    "pieces": {"compute.micro": 2},
    "blocks recomputed": {"compute.recompute": "block", "model.spec.depth": 6},
    "cheap things recomputed": {"compute.recompute": "selective"},
    "layernorm and gelu": {"model.spec.ffn": {"kind": "gelu"}, "model.spec.norm": {"kind": "layernorm"}},
    "window and adamw": {"model.spec.attention.pattern": "window(32)", "optim.kind": "adamw"},
    "scores stored": {"model.spec.attention.dropout": 0.1},
    "averaged": {"run.ema": 0.9},
    "fp64": {"compute.dtype": "float64"},
    "streamed": {"data.rows": "stream"},
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text_data(tmp_path_factory.mktemp("estimate") / "data")


@pytest.fixture
def ready(tmp_path, data):
    """Setups that are open, by their changes of the config."""
    made = []

    def open_one(**changes):
        setup = Components(text_config(data, tmp_path / f"run{len(made)}", SIZES | changes))
        setup.open()
        made.append(setup)
        return setup

    yield open_one
    for setup in made:
        setup.close()


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_memory_of_a_step_is_as_estimated(ready, changes):
    setup = ready(**changes)
    setup.enter(0)
    batch = setup.loader(0).batch(0)

    def step():
        setup.train_step.step(batch, seed=0, step=0, factor=1.0)

    step()
    found = memory(load_of(setup, 0, CPU))
    weights = sum(p.nbytes for p in setup.model.parameters())
    state = sum(t.nbytes for t in setup.optimizers.state().values())
    assert found.weights == weights
    assert found.optimizer == state
    assert found.average == (weights if setup.ema is not None else 0)
    real = found.weights + found.optimizer + found.average + used(step).peak
    limit, reason = TABLE["memory"]
    assert abs(found.total / real - 1) <= limit, f"{found.total:,} against {real:,} ({reason})"


def test_memory_of_threads_counts_what_each_of_them_holds(ready):
    load = load_of(ready(), 0, CPU)
    alone, workers = memory(load), memory(replace(load, workers=2))
    assert workers.gradients == 2 * alone.gradients
    # Two threads with half of the rows each keep as much as one with all of them.
    assert workers.activations == pytest.approx(alone.activations, rel=0.01)


def test_memory_cut_over_processes_falls_by_weights_and_state(ready):
    load = load_of(ready(), 0, CPU)
    alone, cut = memory(load), memory(replace(load, shards=4))
    assert cut.optimizer == alone.optimizer // 4
    assert cut.weights < alone.weights


def test_memory_under_autocast_is_less_than_in_fp32(ready):
    load = load_of(ready(), 0, CPU)
    narrow = memory(replace(load, compute=replace(load.compute, autocast="bfloat16"), device="cuda"))
    assert narrow.activations < 0.9 * memory(replace(load, device="cuda")).activations
    assert narrow.weights == memory(load).weights


def test_cures_save_what_they_say_and_come_in_order(ready):
    load = load_of(ready(), 0, CPU)
    found = cures(load)
    assert {cure.setting for cure in found} >= {"compute.micro = 1", 'compute.recompute = "block"'}
    now = memory(load).total
    assert all(cure.total < now for cure in found)
    same = [cure.total for cure in found if cure.same]
    assert same == sorted(same)
    # What changes the result is never advised first.
    assert [cure.same for cure in found] == sorted((cure.same for cure in found), reverse=True)
    one = next(cure for cure in found if cure.setting == "compute.micro = 1")
    assert one.total == memory(replace(load, compute=replace(load.compute, micro=1))).total


def test_cures_on_an_accelerator_name_narrower_numbers(ready):
    load = replace(load_of(ready(), 0, CPU), device="cuda")
    assert 'compute.autocast = "bfloat16"' in [cure.setting for cure in cures(load)]


def test_advice_without_a_cure_says_so():
    assert "smaller model" in advice([])[0]
    assert "another result" in advice([Cure("x", 10, False)])[1]


@pytest.mark.parametrize(
    ("error", "found"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB"), True),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:130] DefaultCPUAllocator: can't allocate memory: you tried"),
            True,
        ),
        (MemoryError(), True),
        (RuntimeError("The size of tensor a (3) must match"), False),
        (ValueError("out of memory"), False),
    ],
    ids=["cuda", "cpu", "python", "another", "not ours"],
)
def test_shortage_is_told_from_other_errors(error, found):
    assert is_oom(error) is found


def test_shortage_becomes_an_error_with_the_estimate_and_what_to_change(ready):
    setup = ready()
    with pytest.raises(TrainingError) as caught, explain_oom(setup, 0):
        # More than any machine has: the allocator's own words.
        torch.empty(2**60)
    words = str(caught.value)
    for piece in ("8 rows of 128 tokens", "activations", "weights", "compute.micro = 1", "recompute", "unharmed"):
        assert piece in words, piece


def test_shortage_lets_other_errors_through(ready):
    with pytest.raises(RuntimeError, match="something else"), explain_oom(ready(), 0):
        raise RuntimeError("something else")


def test_step_flops_are_three_forward_passes_of_all_rows():
    spec = af.spec({"vocab": 32, "width": 16, "depth": 2, "context": 32, "attention": {"heads": 2}})
    flops, cells = step_flops(spec, {"input_ids": np.zeros((4, 20), np.int64)})
    assert flops == 3 * 4 * spec.count().flops(20).total
    assert cells == 80


def test_step_flops_of_an_encoder_decoder_count_both_sides():
    spec = af.spec(
        {"topology": "encoder-decoder", "vocab": 32, "width": 16, "depth": 2, "context": 32, "attention": {"heads": 2}}
    )
    inputs = {"input_ids": np.zeros((4, 20), np.int64), "decoder_input_ids": np.zeros((4, 8), np.int64)}
    assert step_flops(spec, inputs) == (3 * 4 * spec.count().flops(8, 20).total, 4 * 28)


def test_forecast_counts_stages_epochs_and_flops(ready):
    setup = ready()
    found = forecast(setup, CPU)
    (one,) = found.stretches
    assert (one.first, one.steps, one.cells) == (0, 12, 8 * 128)
    assert one.epochs == 12 * 8 / setup.loader(0).rows
    assert 0 < one.waste < 1
    assert found.flops == 12 * one.flops
    parts = found.parts()
    assert parts["steps"] == pytest.approx(found.flops / found.rate / found.efficiency)
    assert found.seconds == pytest.approx(sum(parts.values()))
    assert stretches(setup) is stretches(setup)


def test_forecast_counts_every_row_that_will_be_measured_on(tmp_path, monkeypatch):
    """Against the run itself: the rows that it reads, and their arithmetic as a third of training's."""
    seen = []
    config = text_config(text_data(tmp_path / "data"), tmp_path / "run", {"stages.batch": 2})
    with Trainer(config) as run:
        found = forecast(run.components, CPU)
        run.on_eval_rows = lambda done, total: seen.append(total) if not done else None
        list(run.events())
        whole = run.components.valid.swept()
        batch = next(run.components.valid.sweep())
    assert seen == [2, 2, 2, whole]
    assert (found.evals.count, found.evals.rows, found.evals.all_rows) == (3, 2, whole)
    each = step_flops(run.components.spec, batch.inputs)[0] / 3 / batch.units
    assert found.evals.flops == pytest.approx(each * sum(seen))
    assert found.parts()["held-out loss"] == pytest.approx(found.evals.flops / found.rate / found.efficiency)
    assert found.parts()["checkpoints"] > 0


def test_product_rate_is_that_of_a_machine():
    assert 1e8 < product_rate(CPU, torch.float32, seconds=0.01) < 1e14
    assert 0 < EFFICIENCY["cpu"] <= 1


@pytest.mark.parametrize("name", MACHINES)
def test_peak_of_a_device_is_found_by_what_its_driver_calls_it(name):
    assert peak_of(f"NVIDIA {name.upper()}-SXM4-80GB", "bfloat16") == MACHINES[name].flops


def test_peak_of_an_unknown_device_or_dtype_is_none():
    assert peak_of("cpu", "bfloat16") is None
    assert peak_of("NVIDIA H200", "float32") is None
