"""`anyformer sweep`: a number over a range, the best value, and what is said about it."""

from pathlib import Path

import pytest

from anyformer.cli import sweep
from tests.cli.command import run
from tests.cli.small_study import write_base


@pytest.fixture
def here(tmp_path, monkeypatch):
    write_base(tmp_path)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def asked(monkeypatch):
    found = []
    monkeypatch.setattr(sweep, "carry_out", lambda study, folder, given, extend: found.append((study, folder)) or 0)
    return found


def test_sweep_finds_the_best_value_and_warns_that_it_lies_at_the_end(here, capsys):
    argv = ("sweep", "small.toml", "--set", "optim.matrices=0.0005..0.05:log:2", "--set", "run.clip=1.0", "--seeds", "2",
            "--no-speeds", "--out", "runs/swept")  # fmt: skip
    done = run(capsys, *argv)
    assert done.status == 0, done.err
    said = " ".join(done.out.split())
    assert "Best: optim.matrices=0.05, with a held-out loss of" in said
    assert "optim.matrices=0.05 is the largest value that was tried, and a better one may lie beyond" in said
    assert "6 runs (3 variants, 2 seeds)" in done.out
    # The config's own value is one of three, which is what a curve is drawn of.
    assert Path("runs/swept/plots/sweep-optim.matrices.png").is_file()
    told = run(capsys, "sweep", "runs/swept", "--json", "--no-plots").json
    assert told["best"]["values"] == {"optim.matrices": 0.05}
    assert told["best"]["ends"] == {"optim.matrices": "largest"}
    assert told["best"]["estimate"]["n"] == 2


def test_sweep_of_several_ranges_is_a_grid_and_one_value_is_fixed(here, capsys, asked):
    argv = ("--set", "lr=0.5..2:log:3", "--set", "width=16,32", "--set", "depth=2")
    assert run(capsys, "sweep", "small.toml", *argv).status == 0
    study, folder = asked[0]
    assert study.axes() == {"lr": [0.5, 1.0, 2.0], "width": [16, 32]}
    assert (study.design, study.to_data()["set"]) == ("grid", {"depth": 2})
    assert folder == Path("runs/small-sweep-lr-width")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ([], "nothing is swept; give a range"),
        (["--set", "lr=2"], "nothing is swept; give a range"),
        (["--set", "lr=0..1:log:3"], "0 has no logarithm"),
        (["--set", "lr=0.1..1"], "says not how many values it has"),
        (["--set", "lr=1,2", "--set", "lr=4"], "lr is given twice"),
        (["--set", "optim.matrces=1,2"], "did you mean 'matrices'?"),
        (["--set", "lr=-1,1"], "lr: -1 is not a factor above 0"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_sweep_with_bad_input_says_what_to_do(here, capsys, options, words):
    done = run(capsys, "sweep", "small.toml", *options)
    assert done.status == 2
    assert words in done.err
