"""More steps for a run than it was begun with: exact where the schedule permits, said where it does not, else refused."""

import json
import shutil
import warnings

import pytest

import anyformer as af
from anyformer.cli.main import main
from anyformer.errors import CheckpointError
from anyformer.train.config import Config
from anyformer.train.loggers import finals
from anyformer.train.trainer import Evaluated, Step, Trainer
from tests.assets.make import VERSIONS
from tests.train.small_data import text_config, text_data

CONSTANT = {"schedule.kind": "constant", "schedule.warmup": 3, "run.ema": 0.9}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text_data(tmp_path_factory.mktemp("extension") / "data")


def events(config, until=None):
    with Trainer(config) as run:
        return list(run.events(until=until))


def held(run, step):
    folder = run / "checkpoints" / f"step-{step:08d}"
    return {file.name: file.read_bytes() for file in folder.glob("*.safetensors")}


def steps(told):
    return [(event.step, event.loss, event.batch, event.rate) for event in told if isinstance(event, Step)]


@pytest.mark.parametrize("first", [12, 7])
def test_run_given_more_steps_ends_as_if_they_had_been_asked_for_from_the_start(tmp_path, data, first):
    """Finished, or stopped on the way: nothing in a constant schedule depends on the end."""
    whole = events(text_config(data, tmp_path / "whole", CONSTANT | {"stages.steps": 20}))
    events(text_config(data, tmp_path / "run", CONSTANT), until=first)
    told = events(text_config(data, tmp_path / "run", CONSTANT | {"stages.steps": 20}))
    assert steps(told) == steps(whole)[first:]
    assert held(tmp_path / "run", 20) == held(tmp_path / "whole", 20)
    ends = [event.loss for event in told if isinstance(event, Evaluated) and event.final]
    assert ends == [event.loss for event in whole if isinstance(event, Evaluated) and event.final]
    assert [seen["step"] for seen in finals(tmp_path / "run")] == ([12, 20] if first == 12 else [20])
    assert Config.from_file(tmp_path / "run" / "config.toml").steps == 20


def test_run_whose_schedule_knows_its_end_goes_on_and_says_what_the_rate_does(tmp_path, data):
    events(text_config(data, tmp_path / "run"))
    longer = text_config(data, tmp_path / "run", {"stages.steps": 20})
    with pytest.warns(UserWarning, match="goes on to 20 steps") as heard:
        told = events(longer)
    said = [str(each.message) for each in heard]
    assert len(said) == 1
    assert "goes on to 20 steps, and was begun with 12" in said[0]
    # From 1/6, the last factor of 12 steps, to that of the 13th of 20: both half down from the middle on.
    assert "from 0.167 to 0.8" in said[0]
    assert "wsd" in said[0]
    whole = events(text_config(data, tmp_path / "whole", {"stages.steps": 20}))
    assert [row[2:] for row in steps(told)] == [row[2:] for row in steps(whole)][12:]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert steps(events(longer)) == []


def test_run_extended_twice_remembers_what_its_schedule_was(tmp_path, data):
    """Its last checkpoint only says 14; that the first 12 were those of a run of 12 still matters."""
    spans = {"schedule.kind": "wsd", "schedule.decay": 2, "schedule.warmup": 0}
    events(text_config(data, tmp_path / "run", spans))
    for total in (14, 16):
        with pytest.warns(UserWarning, match=f"goes on to {total} steps"):
            events(text_config(data, tmp_path / "run", spans | {"stages.steps": total}))
    state = json.loads((tmp_path / "run" / "checkpoints" / "step-00000016" / "state.json").read_text())
    assert state["totals"] == [[0, 12], [12, 14], [14, 16]]


def test_run_extended_before_its_schedule_goes_down_is_exact(tmp_path, data):
    spans = {"schedule.kind": "wsd", "schedule.decay": 2, "schedule.warmup": 1}
    events(text_config(data, tmp_path / "run", spans), until=8)
    told = events(text_config(data, tmp_path / "run", spans | {"stages.steps": 20}))
    whole = events(text_config(data, tmp_path / "whole", spans | {"stages.steps": 20}))
    assert steps(told) == steps(whole)[8:]
    assert held(tmp_path / "run", 20) == held(tmp_path / "whole", 20)


def staged(data, run, *sizes):
    stages = [{"steps": steps, "length": length, "batch": 4} for steps, length in sizes]
    return Config.from_data({**text_config(data, run, CONSTANT).to_data(), "stages": stages})


def test_run_given_another_stage_at_its_end_is_exact(tmp_path, data):
    events(staged(data, tmp_path / "run", (4, 16), (4, 32)))
    told = events(staged(data, tmp_path / "run", (4, 16), (6, 32), (3, 16)))
    whole = events(staged(data, tmp_path / "whole", (4, 16), (6, 32), (3, 16)))
    assert steps(told) == steps(whole)[8:]
    assert held(tmp_path / "run", 13) == held(tmp_path / "whole", 13)


@pytest.mark.parametrize(
    "sizes", [((6, 16), (4, 32)), ((4, 16), (3, 32)), ((4, 16),), ((4, 16), (9, 16))],
    ids=["earlier stage", "fewer", "gone", "other length"],
)  # fmt: skip
def test_run_whose_steps_so_far_would_be_others_is_refused(tmp_path, data, sizes):
    events(staged(data, tmp_path / "run", (4, 16), (4, 32)))
    with pytest.raises(CheckpointError, match=r"was begun otherwise.*\n  stages\["):
        events(staged(data, tmp_path / "run", *sizes))


@pytest.mark.filterwarnings("ignore:.*goes on elsewhere than it began")
def test_finished_run_of_an_earlier_version_is_given_more_steps(tmp_path):
    for version in VERSIONS.iterdir():
        run = tmp_path / version.name
        shutil.copytree(version / "finished", run)
        changes = {"data.folder": str(version / "data"), "run.folder": str(run), "stages.steps": 12}
        told = events(Config.from_file(run / "config.toml", changes))
        whole = events(Config.from_file(run / "config.toml", changes | {"run.folder": str(tmp_path / "whole")}))
        assert [row[2:] for row in steps(told)] == [row[2:] for row in steps(whole)][8:]
        shutil.rmtree(tmp_path / "whole")


def test_command_on_a_finished_run_says_how_it_is_given_more_steps(tmp_path, data, capsys):
    file = tmp_path / "run.toml"
    file.write_text(text_config(data, tmp_path / "run", CONSTANT).to_toml())
    for words in ("", "is finished: 12 steps"):
        assert main(["train", str(file), "--set", "compute.threads=1"]) == 0
        said = capsys.readouterr().out
        assert words in said
    assert "--set stages.0.steps=24" in said
    assert main(["train", str(file), "--set", "compute.threads=1", "--set", "stages.steps=14", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["status"], told["step"]) == ("finished", 14)


def test_run_given_a_stage_of_another_spec_says_so_in_its_folder(tmp_path, data):
    first = staged(data, tmp_path / "run", (4, 16))
    events(first)
    changed = {"steps": 2, "length": 16, "batch": 4, "spec": {"attention.pattern": "window(6)"}}
    stages = first.to_data()["stages"]
    events(Config.from_data({**first.to_data(), "stages": [*stages, changed]}))
    model = af.load(tmp_path / "run")
    assert str(model.spec.attention.pattern) == "window(6)"
    assert af.spec(tmp_path / "run") == model.spec
