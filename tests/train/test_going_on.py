"""Going on with a run: what may be otherwise than it was, who is told of it, and what nothing may depend on."""

import gc
import json
import warnings
import weakref

import pytest
import torch

import anyformer as af
from anyformer.errors import CheckpointError, DataError
from anyformer.train import checkpoint
from anyformer.train.checkpoint import Saver
from anyformer.train.config import Config
from anyformer.train.cpu_workers import CpuWorkers, draws
from anyformer.train.train_step import Precision
from anyformer.train.trainer import Evaluated, Step, Trainer
from tests.train.small_data import text_config, text_data, text_examples, write_data

WINDOWED = {"stages.spec": {"attention": {"pattern": "causal & window(2)"}}}


@pytest.fixture
def data(tmp_path):
    return text_data(tmp_path / "data")


def events(config, until=None):
    with Trainer(config) as run:
        return list(run.events(until=until))


def test_run_whose_last_look_was_lost_measures_the_model_of_its_last_stage(tmp_path, data):
    config = text_config(data, tmp_path / "run", WINDOWED)
    first = [event for event in events(config) if isinstance(event, Evaluated)][-1]
    file = tmp_path / "run" / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines if line["event"] != "final"))
    again = [event for event in events(config) if isinstance(event, Evaluated)]
    assert [event.loss for event in again] == [first.loss]


@pytest.mark.parametrize(
    ("name", "value"), [("compute.micro", 2), ("compute.recompute", "block"), ("guard.action", "stop")]
)
def test_run_goes_on_with_settings_that_its_own_errors_advise_and_says_so(tmp_path, data, name, value):
    events(text_config(data, tmp_path / "run"), until=4)
    with pytest.warns(UserWarning, match=rf"goes on with other settings than it began with:\n  {name}: was "):
        told = events(text_config(data, tmp_path / "run", {name: value}), until=5)
    assert any(isinstance(event, Step) and event.step == 5 for event in told)
    assert str(value) in (tmp_path / "run" / "config.toml").read_text()


def test_run_with_another_dtype_is_refused_by_name(tmp_path, data):
    events(text_config(data, tmp_path / "run"), until=4)
    with pytest.raises(CheckpointError, match=r"compute\.dtype: was "):
        events(text_config(data, tmp_path / "run", {"compute.dtype": "float64"}))
    assert Config.from_file(tmp_path / "run" / "config.toml").compute.dtype == "float32"


def test_run_with_another_number_of_threads_is_warned_though_each_worker_has_one(tmp_path, data):
    events(text_config(data, tmp_path / "run", {"compute.threads": 2}), until=4)
    with pytest.warns(UserWarning, match=r"machine\.threads: was 2, is 1"):
        events(text_config(data, tmp_path / "run", {"compute.threads": 1}), until=5)


def test_folder_tells_the_config_of_the_last_part_of_a_run(tmp_path, data):
    events(text_config(data, tmp_path / "run"), until=4)
    moved = tmp_path / "moved"
    data.rename(moved)
    events(text_config(moved, tmp_path / "run"), until=5)
    assert Config.from_file(tmp_path / "run" / "config.toml").data.folder == str(moved)


def test_run_that_is_over_is_let_go_of(tmp_path, data):
    with Trainer(text_config(data, tmp_path / "run")) as run:
        list(run.events(until=2))
    held = weakref.ref(run.components)
    del run
    gc.collect()
    assert held() is None


def test_run_with_a_stage_that_draws_random_numbers_is_trained_in_one_thread(tmp_path, data):
    changes = {"block": {"dropout": 0.1}}
    stages = [{"steps": 1, "length": 32, "batch": 4}, {"steps": 1, "length": 32, "batch": 4, "spec": changes}]
    config = text_config(data, tmp_path / "run")
    plain = Config.from_data({**config.to_data(), "compute": {"threads": 2}, "stages": stages[:1]})
    drawn = Config.from_data({**config.to_data(), "compute": {"threads": 2}, "stages": stages})
    for given, size in ((plain, 2), (drawn, 1)):
        with Trainer(given) as run:
            assert run.components.train_step.workers.size == size


def test_run_whose_loss_is_of_a_whole_batch_is_not_cut_up_for_threads(tmp_path, data):
    """How evenly routers choose over two halves is not the mean of how evenly they do in each."""
    routed = {"model.spec.ffn": {"kind": "moe", "experts": 4, "top_k": 2}, "compute.threads": 2}
    for weight, size in ((0.0, 2), (0.01, 1)):
        with Trainer(text_config(data, tmp_path / f"{size}", routed | {"model.spec.loss": {"balance": weight}})) as run:
            assert run.components.train_step.workers.size == size


def test_draws_names_dropout_and_attention_that_is_not_exact():
    base = {"vocab": 8, "width": 8, "depth": 1, "context": 8, "attention": {"heads": 2}}
    assert not draws(af.spec(base))
    assert draws(af.spec(base | {"ffn": {"kind": "relu", "dropout": 0.1}}))
    assert draws(af.spec(base | {"attention": {"heads": 2, "mixer": "lsh"}}))


def test_save_that_fails_in_the_background_is_heard_of_before_the_next_one(tmp_path, data, monkeypatch):
    def full(run, step, contents, keep):
        if step:
            raise CheckpointError("the disk is full")

    monkeypatch.setattr(checkpoint, "write", full)
    with Trainer(text_config(data, tmp_path / "run", {"stages.steps": 80, "run.save_every": 40})) as run:
        run.components.saver = Saver(tmp_path / "run", background=True)
        with pytest.raises(CheckpointError, match="the disk is full"), run.components.saver:
            list(run.events())
    steps = [json.loads(line)["step"] for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert 40 <= max(steps) < 80


def test_valid_part_that_is_too_short_is_named(tmp_path):
    data = write_data(tmp_path / "data", {"train": text_examples(), "valid": text_examples(1, 1, longest=4)})
    with pytest.raises(DataError, match=r"data\.valid: the part 'valid' can't be measured on: the text .* has \d+ tok"):
        events(text_config(data, tmp_path / "run", {"data.rows": "stream"}))
    assert not (tmp_path / "run").exists()


def test_products_of_the_backward_pass_round_as_those_of_the_forward_pass(tmp_path, data, monkeypatch):
    """The flag is looked at when a kernel is launched, and the backward pass launches two thirds of them."""
    products, seen = Precision.products, []
    monkeypatch.setattr(Precision, "products", lambda self, device: products(self, torch.device("cuda")))
    with Trainer(text_config(data, tmp_path / "run", {"compute.tf32": True, "compute.threads": 1})) as run:
        assert isinstance(run.components.train_step.workers, CpuWorkers)
        for parameter in run.components.model.parameters():
            parameter.register_hook(lambda _: seen.append(torch.get_float32_matmul_precision()))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            list(run.events(until=1))
    assert set(seen) == {"high"}
    assert torch.get_float32_matmul_precision() == "highest"
