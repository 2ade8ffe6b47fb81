"""`anyformer scale`: a ladder of sizes from the command line, its law, and what is refused."""

from pathlib import Path

import pytest

from anyformer.cli import scale
from anyformer.lab.results import Results
from tests.cli.command import run
from tests.cli.small_study import write_base


@pytest.fixture
def here(tmp_path, monkeypatch):
    write_base(tmp_path, width=48, depth=2, heads=6)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_scale_trains_a_ladder_fits_a_law_and_draws_it(here, capsys):
    argv = ("scale", "small.toml", "--sizes", "4", "--factor", "2", "--tokens-per-param", "0.02", "--seeds", "1",
            "--vary", "ffn.kind=relu", "--no-speeds", "--out", "runs/ladder")  # fmt: skip
    done = run(capsys, *argv)
    assert done.status == 0, done.err
    assert "8 runs (8 variants, 1 seed)" in done.out
    # A table of sizes stands in place of the comparison with the base.
    assert "Holm" not in done.out
    said = " ".join(done.out.split())
    assert "base: loss = " in said
    assert "10 times its largest size) the law expects a loss of" in said
    assert "ffn=relu has the lower loss at" in said
    for ending in ("png", "svg"):
        assert Path(f"runs/ladder/plots/scaling.{ending}").stat().st_size > 5000
    assert "the law expects a loss of" in Path("runs/ladder/report.html").read_text()
    sizes = {each.name: each for each in Results.read("runs/ladder").variants}
    others = [name for name in sizes if name.endswith("ffn=relu")]
    assert len(others) == 4
    # Tokens in proportion to parameters.
    shares = [each.steps * each.tokens_per_step / each.params for each in sizes.values()]
    assert min(shares) > 0.015
    assert max(shares) < 0.025

    told = run(capsys, "scale", "runs/ladder", "--to", "1e12", "--json", "--no-plots").json["scaling"]
    assert told["to"] == 1e12
    assert [law["choice"] for law in told["laws"]] == ["base", "ffn=relu"]
    base = told["laws"][0]
    assert [size["params"] for size in base["sizes"]] == sorted(size["params"] for size in base["sizes"])
    assert base["law"]["extended"]["low"] <= base["law"]["extended"]["mean"] <= base["law"]["extended"]["high"]
    assert told["advantages"]["ffn=relu"]["at"] == 1e12
    settled = run(capsys, "scale", "runs/ladder", "--sizes", "5")
    assert (settled.status, "has its ladder already" in settled.err) == (2, True)
    # Read by another command, it is a study like any other.
    assert "Holm" in run(capsys, "ablate", "runs/ladder", "--no-plots").out


def test_scale_with_learning_rates_has_a_grid_of_sizes_and_rates(here, capsys, monkeypatch):
    asked = []
    monkeypatch.setattr(scale, "carry_out", lambda study, folder, given, extend: asked.append((study, folder)) or 0)
    argv = ("--sizes", "2", "--lr", "0.5,1,2", "--base-width", "24", "--tokens-per-param", "0.02", "--end", "smallest")
    assert run(capsys, "scale", "small.toml", *argv).status == 0
    study, folder = asked[0]
    assert study.to_data()["set"]["optim"] == {"base_width": 24}
    assert [each.name.partition(", ")[2] for each in study.variants] == ["lr=0.5", "lr=2", "lr=0.5", "", "lr=2"]
    # The base is the smallest size, with the steps of its tokens; the other one is wider, and trained longer.
    steps = [
        study.to_data()["set"]["stages"]["0"]["steps"],
        *(each.set.written()["stages"]["0"]["steps"] for each in study.variants),
    ]
    assert steps[0] == steps[1] == steps[2] < steps[3] == steps[4] == steps[5]
    assert (study.seeds, folder) == (3, Path("runs/small-scale"))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--sizes", "3"], "3 are too few to tell a law from a line"),
        (["--vary", "width=32"], "width can't be a choice here, it is what the sizes of a ladder differ in"),
        (["--vary", "lr=2"], "lr can't be a choice here, --lr tries learning rates"),
        (["--vary", "ffn.kind=relo"], "did you mean 'relu'?"),
        (["--sizes", "9", "--factor", "4"], "there is no size of about"),
        (["--factor", "1"], "1 is not above 1"),
        (["--lr", "0.5,1,2", "--sizes", "3", "--factor", "1.5"], "two sizes have the same width"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_scale_with_bad_input_says_what_to_do(here, capsys, options, words):
    done = run(capsys, "scale", "small.toml", *options, "--out", "runs/bad")
    assert done.status == 2
    assert words in done.err
    assert not Path("runs/bad/plan.json").exists()


def test_scale_of_another_study_says_which_command_reads_it_and_trains_nothing(here, capsys):
    Path("runs/other").mkdir(parents=True)
    Path("runs/other/study.toml").write_text('base = "small.toml"\n[vary]\nwidth = [24]\n')
    done = run(capsys, "scale", "runs/other")
    assert done.status == 2
    assert "read this study with anyformer ablate" in done.err
    assert not Path("runs/other/plan.json").exists()
