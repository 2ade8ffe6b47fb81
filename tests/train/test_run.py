"""The run: it learns, what it leaves behind, and that one which was interrupted ends as one that was not."""

import json
import os
import shutil
import signal

import pytest
import torch
from safetensors.torch import load_file

import anyformer as af
from anyformer.data.objectives import Objective
from anyformer.data.tokenizer import train_bpe
from anyformer.errors import CapabilityError, CheckpointError, DataError, InputError, SpecError, TrainingError
from anyformer.train.components import restaged
from anyformer.train.config import Config
from anyformer.train.loggers import read_metrics
from anyformer.train.resolve import specs_of
from anyformer.train.trainer import Evaluated, Resumed, Sampled, Saved, Step, Stopped, Trainer
from tests.data.feeding import INDEX, examples_for, make, spec_for
from tests.train.small_data import text_config, text_data, text_examples, write_data


def events(config, **more):
    with Trainer(config, **{k: v for k, v in more.items() if k == "sample"}) as run:
        return list(run.events(until=more.get("until")))


def files(run, step):
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {file.name: file.read_bytes() for file in folder.iterdir() if file.suffix == ".safetensors"}


def measured(run):
    """metrics.jsonl without what a clock or the machine decides."""
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{k: v for k, v in line.items() if k not in ("seconds", "memory")} for line in lines]


def steps_of(run):
    return [line for line in measured(run) if line["event"] == "step"]


@pytest.fixture
def data(tmp_path):
    return text_data(tmp_path / "data")


@pytest.mark.quick
def test_run_learns_looks_saves_and_leaves_a_model_that_loads(tmp_path, data):
    told = events(text_config(data, tmp_path / "run", {"stages.steps": 40}))
    losses = [event.loss for event in told if isinstance(event, Step)]
    assert len(losses) == 40
    assert losses[-1] < 0.8 * losses[0]
    looks = [event for event in told if isinstance(event, Evaluated)]
    assert looks[-1].final
    assert looks[-1].loss < looks[0].loss
    assert looks[-1].bits_per_byte is not None
    assert [event.step for event in told if isinstance(event, Saved)] == [0, *range(4, 41, 4)]
    model = af.load(tmp_path / "run")
    weights = af.load(tmp_path / "run" / "checkpoints" / "step-00000040")
    for a, b in zip(model.parameters(), weights.parameters(), strict=True):
        assert torch.equal(a, b)
    kept = sorted(folder.name for folder in (tmp_path / "run" / "checkpoints").iterdir())
    assert kept == ["step-00000036", "step-00000040"]
    assert Config.from_file(tmp_path / "run" / "config.toml").steps == 40
    assert af.spec(tmp_path / "run") == model.spec


VARIANTS = {
    "plain": {},
    "adamw": {"optim.kind": "adamw", "schedule.kind": "cosine"},
    "ema": {"run.ema": 0.8},
    "dropout": {"model.spec.block": {"dropout": 0.2}},
    "guarded": {"guard.spike": 1.5},
    "micro": {"compute.micro": 2},
    "padded": {"data.rows": "padded"},
    "stream": {"data.rows": "stream"},
}


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.filterwarnings("ignore:step .* the weights were left as they were")
def test_run_interrupted_and_resumed_is_the_uninterrupted_one_to_the_bit(tmp_path, data, variant):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    events(text_config(data, whole, VARIANTS[variant]))
    for until in (3, 8, None):
        events(text_config(data, parts, VARIANTS[variant]), until=until)
    assert files(parts, 12) == files(whole, 12)
    assert steps_of(parts) == steps_of(whole)
    assert [line["step"] for line in steps_of(parts)] == list(range(1, 13))


def test_run_that_lost_steps_after_its_checkpoint_measures_them_again(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    with Trainer(config) as run:
        for event in run.events():
            if isinstance(event, Step) and event.step == 7:
                break
    told = events(config)
    assert isinstance(told[0], Resumed)
    assert told[0].step == 4
    assert [line["step"] for line in measured(tmp_path / "run") if line["event"] == "step"] == list(range(1, 13))


def test_run_that_is_over_does_nothing_more(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    events(config)
    before = files(tmp_path / "run", 12), measured(tmp_path / "run")
    told = events(config)
    assert [type(event) for event in told] == [Resumed]
    assert (files(tmp_path / "run", 12), measured(tmp_path / "run")) == before


def test_run_speaks_when_it_is_due_with_the_averaged_weights(tmp_path, data):
    heard = []

    def speak(made, step):
        heard.append([p.detach().clone() for p in made.model.parameters()])
        return f"after {step}"

    config = text_config(data, tmp_path / "run", {"run.sample_every": 6, "run.ema": 0.5})
    told = [event for event in events(config, sample=speak) if isinstance(event, Sampled)]
    assert [(event.step, event.text) for event in told] == [(6, "after 6"), (12, "after 12")]
    shown = af.load(tmp_path / "run")
    for a, b in zip(heard[-1], shown.parameters(), strict=True):
        assert torch.equal(a, b)


def sample(made, step):
    ids = torch.tensor([[1, 2, 3]])
    return str(af.generate(made.model, ids, max_new_tokens=4, temperature=0.8, seed=step).tolist())


def tensors(run, step):
    return load_file(run / "checkpoints" / f"step-{step:08d}" / "model.safetensors")


@pytest.mark.quick
def test_run_that_takes_samples_learns_as_one_that_takes_none_to_the_bit(tmp_path, data):
    quiet, loud = tmp_path / "quiet", tmp_path / "loud"
    often = {"run.save_every": 3, "run.keep": 99}
    events(text_config(data, quiet, often))
    events(text_config(data, loud, often | {"run.sample_every": 2}), sample=sample)
    assert files(loud, 12) == files(quiet, 12)
    # Every matrix moves between every two checkpoints, before and after samples.
    for before, after in ((0, 3), (3, 6), (6, 9), (9, 12)):
        first, second = tensors(loud, before), tensors(loud, after)
        assert [name for name in first if torch.equal(first[name], second[name])] == []


def test_run_with_samples_evaluations_and_ema_resumes_to_the_bit(tmp_path, data):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    more = {"run.sample_every": 2, "run.eval_every": 3, "run.ema": 0.8}
    events(text_config(data, whole, more), sample=sample)
    for until in (3, 5, 8, None):
        events(text_config(data, parts, more), sample=sample, until=until)
    assert files(parts, 12) == files(whole, 12)
    assert steps_of(parts) == steps_of(whole)


@pytest.mark.parametrize("kind", Objective.kinds())
def test_run_of_every_objective_learns_resumes_and_measures(tmp_path, kind):
    objective = make(kind)
    parts = {"train": examples_for(objective, 24), "valid": examples_for(objective, 9, seed=1)}
    data = write_data(tmp_path / "data", parts, ids=INDEX.ids)
    index = json.loads((data / "index.json").read_text())
    (data / "index.json").write_text(json.dumps(index | {"sentinels": list(INDEX.sentinels)}))
    spec = tmp_path / "spec.toml"
    spec.write_text(spec_for(objective).to_toml())
    table = text_config(data, tmp_path / "run").to_data()
    table |= {"model": {"base": str(spec)}, "objective": {"kind": kind}}
    table["data"]["rows"] = objective.ways[0]
    config = Config.from_data(table)
    events(config, until=5)
    told = events(config)
    looks = [event for event in told if isinstance(event, Evaluated)]
    assert looks[-1].final
    assert looks[-1].labels > 0
    assert looks[-1].figures
    assert all(event.loss == event.loss for event in told if isinstance(event, Step))


def test_run_in_stages_changes_sizes_and_pattern_and_keeps_every_weight(tmp_path, data):
    table = text_config(data, tmp_path / "run").to_data()
    table["stages"] = [
        {"steps": 4, "length": 16, "batch": 4, "spec": {"attention.pattern": "window(4)"}},
        {"steps": 4, "length": 32, "batch": 2},
    ]
    config = Config.from_data(table)
    with Trainer(config) as run:
        seen = {}
        for event in run.events():
            if isinstance(event, Step):
                layer = run.components.model.spec.stacks[-1].layers[0]
                seen[event.step] = (event.stage, str(layer.attention.pattern))
    assert seen[1] == (0, "window(4)")
    assert seen[8] == (1, "None")
    resumed = Config.from_data(table | {"run": table["run"] | {"folder": str(tmp_path / "parts")}})
    for until in (2, 6, None):
        events(resumed, until=until)
    assert files(tmp_path / "parts", 8) == files(tmp_path / "run", 8)


def test_stages_place_every_step_and_refuse_what_changes_a_weight():
    table = {"model": {"base": "x"}, "data": {"folder": "d"}, "run": {"folder": "r"}, "stages": [
        {"steps": 2, "length": 8, "batch": 1}, {"steps": 3, "length": 64, "batch": 1, "spec": {"width": 64}},
        {"steps": 1, "length": 8, "batch": 1, "spec": {"attention.pattern": "windw(3)"}},
    ]}  # fmt: skip
    config = Config.from_data(table)
    stages = config.stages
    assert [config.place(step) for step in range(7)] == [
        (0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (2, 0), (2, 1),
    ]  # fmt: skip
    spec = spec_for(make("causal"))
    with pytest.raises(SpecError) as caught:
        specs_of(spec.vary({"context": 32}), stages)
    told = str(caught.value)
    assert "stages[1].spec: changes the shape of" in told
    assert "stages[1].length: 64 is more than the context, 32" in told
    assert "stages[2].spec." in told


def test_restaged_model_shares_its_parameters_and_computes_the_other_spec():
    spec = spec_for(make("causal"))
    model = af.build(spec)
    other = spec.vary({"attention.pattern": "window(2)"})
    made = restaged(model, other)
    ids = torch.randint(8, 40, (2, 12))
    assert all(a is b for a, b in zip(model.parameters(), made.parameters(), strict=True))
    fresh = af.build(other)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(made(ids).logits, fresh(ids).logits)
    assert not torch.allclose(made(ids).logits, model(ids).logits)


def test_run_begins_from_the_weights_of_a_folder(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    first = events(config)
    begun = text_config(data, tmp_path / "next", {"model.weights": str(tmp_path / "run"), "optim.kind": "adamw"})
    second = events(begun)
    losses = [[e.loss for e in told if isinstance(e, Step)] for told in (first, second)]
    assert losses[1][0] < losses[0][0]
    wider = text_config(data, tmp_path / "wide", {"model.weights": str(tmp_path / "run"), "model.spec.width": 32})
    with pytest.raises(InputError, match=r"model\.weights: .* does not fit the spec in \d+ places"):
        events(wider)
    assert not (tmp_path / "wide").exists()


@pytest.mark.parametrize(
    ("changes", "kind", "told"),
    [
        ({"data.folder": "nowhere"}, DataError, "nowhere: there is no such folder"),
        ({"data.valid": "test"}, DataError, "has no part 'test' to measure on"),
        ({"data.train": "trian"}, DataError, "has no part 'trian'"),
        ({"stages.length": 64}, SpecError, "64 is more than the context, 32"),
        ({"objective.kind": "translate"}, InputError, "needs a column 'source'"),
        ({"model.spec.vocab": 16}, DataError, "is not among the 16"),
        ({"compute.device": "cuda:77"}, Exception, "cuda:77"),
        ({"compute.capture": True, "compute.device": "cpu"}, CapabilityError, "only steps on a CUDA device"),
        ({"compute.recompute": "block", "model.spec.block": {"wiring": "reversible"}}, InputError, "reversible stack"),
        ({"model.weights": "nowhere"}, InputError, "model.weights: nowhere: there is no such folder"),
        ({"data.rows": "stream", "stages.length": 1}, DataError, "length: 1 leaves no token to predict"),
    ],
)
def test_run_with_bad_input_fails_before_its_folder_is_made(tmp_path, data, changes, kind, told):
    with pytest.raises(kind) as caught:
        events(text_config(data, tmp_path / "run", changes))
    assert told in str(caught.value)
    if "vocab" not in str(changes):
        assert not (tmp_path / "run").exists()


def test_run_refuses_a_tokenizer_larger_than_the_spec(tmp_path):
    data = write_data(
        tmp_path / "data", {"train": text_examples(), "valid": text_examples(9, 1)}, train_bpe(["ab"], 257)
    )
    with pytest.raises(SpecError, match="vocab: 32 is less than the 257 tokens of the data's tokenizer"):
        events(text_config(data, tmp_path / "run"))


def test_run_with_changed_data_is_refused_by_name(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    events(config, until=4)
    shutil.rmtree(data)
    write_data(data, {"train": text_examples(seed=5), "valid": text_examples(20, 1)})
    before = files(tmp_path / "run", 4)
    with pytest.raises(CheckpointError, match=r"data\.train: was .*, is "):
        events(config)
    assert files(tmp_path / "run", 4) == before


def test_two_runs_in_one_folder_are_refused(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    with Trainer(config), pytest.raises(TrainingError, match="is training here"), Trainer(config):
        pass


def test_run_asked_to_stop_saves_and_tells(tmp_path, data):
    config = text_config(data, tmp_path / "run")
    with Trainer(config) as run:
        told = []
        for event in run.events():
            told.append(event)
            if isinstance(event, Step) and event.step == 6:
                os.kill(os.getpid(), signal.SIGTERM)
    assert isinstance(told[-1], Stopped)
    assert (told[-1].step, told[-1].status) == (7, 143)
    assert isinstance(events(config)[0], Resumed)
    whole = text_config(data, tmp_path / "whole")
    events(whole)
    assert files(tmp_path / "run", 12) == files(tmp_path / "whole", 12)


def test_finished_run_without_a_held_out_part_takes_its_last_sample_once(tmp_path, data):
    config = text_config(data, tmp_path / "run", {"data.valid": "", "run.sample_every": 6})
    for _ in range(3):
        events(config, sample=sample)
    assert [seen["step"] for seen in read_metrics(tmp_path / "run", "sample")] == [6, 12]
