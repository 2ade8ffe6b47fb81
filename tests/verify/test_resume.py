"""`verify resume`: it passes on a sound run, leaves it alone, and finds out one that does not resume exactly."""

import json
import os

import pytest
import torch

from anyformer.cli.main import main
from anyformer.errors import CheckpointError, InputError
from anyformer.train import trainer as running
from anyformer.train.optim import Optimizers
from anyformer.train.trainer import Trainer
from anyformer.verify.resume import Resume, Row, resume
from tests.train.small_data import text_config, text_data


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    return text_data(tmp_path_factory.mktemp("resume") / "data")


@pytest.fixture
def run(data, tmp_path):
    with Trainer(text_config(data, tmp_path / "run", {"run.ema": 0.9})) as made:
        list(made.events())
    return tmp_path / "run"


def content(folder):
    files = [file for file in sorted(folder.rglob("*")) if file.is_file()]
    return {file: (file.read_bytes(), file.stat().st_mtime_ns, file.stat().st_ino) for file in files}


def test_resume_of_a_sound_run_is_exact_and_leaves_it_alone(run, tmp_path):
    before = content(run)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    ticks = []
    answer = resume(run, steps=4, scratch=scratch, report=lambda done, total: ticks.append((done, total)))
    assert (answer.begin, answer.middle, answer.end) == (8, 10, 12)
    assert answer.same
    assert [row.name for row in answer.rows] == [
        "batches", "losses", "gradient norms", "ema", "model", "optimizer", "state", "losses in metrics.jsonl",
    ]  # fmt: skip
    assert all(row.compared for row in answer.rows)
    assert ticks[-1] == (8, 8)
    assert answer.notes == ()
    assert answer.advice == ""
    assert content(run) == before
    assert os.listdir(scratch) == []


def test_resume_to_the_end_of_a_run_does_not_measure_it_again(run, monkeypatch):
    monkeypatch.setattr(running, "evaluate", lambda *_, **__: pytest.fail("it looked"))
    assert resume(run, steps=4).end == 12


def test_resume_that_forgets_the_optimizer_is_found_out(run, monkeypatch):
    """A run whose momentum is not taken over: the losses after the interruption show it."""
    state = Optimizers.state

    def forgetful(self):
        return {name: tensor.clone() for name, tensor in state(self).items()}

    monkeypatch.setattr(Optimizers, "state", forgetful)
    answer = resume(run, steps=4)
    assert not answer.same
    wrong = {row.name: row for row in answer.rows if not row.same}
    assert "batches" not in wrong
    assert {"model", "optimizer"} <= wrong.keys()
    assert wrong["model"].difference > 0
    assert "A CPU gives the same bits each time" in answer.advice
    assert "look at ema, model, optimizer" in answer.advice
    assert "CUDA" not in answer.advice


def test_resume_of_a_run_whose_log_says_otherwise_is_found_out(run):
    file = run / "metrics.jsonl"
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    for line in lines:
        if line["event"] == "step" and line["step"] == 10:
            line["loss"] += 1e-12
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    answer = resume(run, steps=4)
    assert [row.first for row in answer.rows if not row.same] == ["step 10"]
    assert "the run's own log that says otherwise from step 10 on" in answer.advice
    assert "CUDA" not in answer.advice


def test_resume_elsewhere_is_compared_with_itself_and_not_with_the_log(run):
    threads = torch.get_num_threads() + 1
    torch.set_num_threads(threads)
    try:
        answer = resume(run, steps=2)
    finally:
        torch.set_num_threads(threads - 1)
    assert answer.same
    assert "losses in metrics.jsonl" not in [row.name for row in answer.rows]
    assert any(f"machine.threads: was {threads - 1}, is {threads}" in note for note in answer.notes)


FOUND = {
    "batches": "The batches themselves differ from step 9 on",
    "model": "not taken up from it; look at model",
    "losses in metrics.jsonl": "the run's own log",
}


@pytest.mark.parametrize("name", FOUND)
@pytest.mark.parametrize(("device", "deterministic"), [("cpu", False), ("cuda", False), ("cuda", True)])
def test_advice_fits_the_device_and_what_was_found(name, device, deterministic):
    rows = [Row(name=each, compared=1, difference=0.0) for each in ("batches", "losses", "model", "optimizer")]
    rows = [row for row in rows if row.name != name] + [Row(name=name, compared=1, difference=1.0, first="step 9")]
    answer = Resume(
        run="r", begin=8, middle=10, end=12, rows=tuple(rows), notes=(), device=device, deterministic=deterministic
    )
    helps = device == "cuda" and not deterministic and name != "batches"
    assert ("compute.deterministic = true" in answer.advice) == helps
    if not helps or name != "model":
        assert FOUND[name] in answer.advice


def test_resume_says_what_it_needs(tmp_path, run):
    with pytest.raises(InputError, match=r"holds no config.toml, so it is no folder of a run"):
        resume(tmp_path)
    with pytest.raises(InputError, match="steps: 1 can't be interrupted"):
        resume(run, steps=1)
    (run / "checkpoints" / "step-00000008" / "state.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"no whole checkpoint with two steps or more to go\n.*has 2 bytes"):
        resume(run)


def test_command_on_a_cpu_does_not_advise_settings_of_cuda(run, capsys, monkeypatch):
    state = Optimizers.state
    monkeypatch.setattr(Optimizers, "state", lambda self: {n: t.clone() for n, t in state(self).items()})
    assert main(["verify", "resume", str(run), "--steps", "4"]) == 1
    out = " ".join(capsys.readouterr().out.split())
    assert "an interrupted run ends otherwise" in out
    assert "look at ema, model, optimizer" in out
    assert "CUDA" not in out


def test_command_prints_a_table_and_ends_with_the_status(run, capsys):
    assert main(["verify", "resume", str(run), "--steps", "2"]) == 0
    # The table is as wide as the terminal.
    out = " ".join(capsys.readouterr().out.split())
    assert "steps 9 to 10, straight and interrupted after 9" in out
    assert "an interrupted run ends as an uninterrupted one, to the bit" in out
    assert main(["verify", "resume", str(run), "--steps", "2", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["same"] is True
    assert {row["difference"] for row in told["rows"]} == {0}
    assert main(["verify", "resume", str(run / "nowhere")]) == 2
