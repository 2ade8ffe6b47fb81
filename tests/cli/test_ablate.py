"""`anyformer ablate`: a study as people begin it, look at it, stop it and go on with it."""

import json
import os
import shutil
import signal
import sys
import time
from pathlib import Path

import pytest

import anyformer as af
from anyformer.cli import ablate
from anyformer.errors import CapabilityError
from anyformer.lab.engine import ray_engine
from anyformer.lab.engine.queue import JobEvent
from anyformer.lab.engine.train_job import run_job
from anyformer.lab.results import Results
from anyformer.lab.statistics import estimates as statistics
from tests.cli.command import run
from tests.cli.small_study import ran, write_base

ROOT = Path(af.__file__).parents[1]
ARGV = ("ablate", "small.toml", "--vary", "position.kind=alibi,rope", "--vary", "ffn.kind=relu", "--match", "params",
        "--tolerance", "0.02", "--seeds", "2", "--no-speeds", "--out", "runs/made")  # fmt: skip


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with a finished study, and what the command that made it printed."""
    folder = tmp_path_factory.mktemp("ablate")
    write_base(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = ran(*ARGV)
    assert done.status == 0, done.err
    return folder, done


@pytest.fixture
def here(made, tmp_path, monkeypatch):
    """A copy of that folder of one's own, as the current one."""
    place = tmp_path / "here"
    shutil.copytree(made[0], place)
    monkeypatch.chdir(place)
    return place


@pytest.fixture
def asked(monkeypatch):
    """Studies that would have been carried out, in place of carrying them out."""
    found = []
    monkeypatch.setattr(ablate, "carry_out", lambda study, folder, given: found.append((study, folder)) or 0)
    return found


def test_ablate_prints_what_matching_chose_then_table_verdict_and_report(made):
    folder, done = made
    plan, _, rest = done.out.partition("Variants of small.toml")
    assert "data/foxes: text" in plan
    assert "ffn=relu" in plan
    # A gate has three matrices: without one, the feed-forward is wider at the same parameters.
    assert "ffn.width=" in plan
    assert "6 runs (3 variants, 2 seeds)" in plan
    assert "Equal parameters" in plan
    assert "The base has ffn.kind=swiglu, position.kind=rope." in plan
    for words in (
        "held-out loss",
        "difference",
        "position=alibi",
        "Held-out loss over 2 seeds",
        "runs/made/report.html",
    ):
        assert words in rest, words
    assert "training: 6 of 6 runs, 100%" in done.err
    assert "%" not in done.out.partition("runs/made/report.html")[2]
    names = {place.name for place in (folder / "runs" / "made").iterdir()}
    assert names >= {"study.toml", "plan.json", "results.json", "report.html", "plots", "runs"}
    assert (folder / "runs" / "made" / "plots" / "final.png").stat().st_size > 1000
    results = Results.read(folder / "runs" / "made")
    assert results.command == "anyformer " + " ".join(ARGV)
    assert [each.name for each in results.variants] == ["base", "ffn=relu", "position=alibi"]
    assert all(abs(each.off_by or 0) <= 0.02 for each in results.variants)


def test_ablate_of_a_finished_folder_reads_it_again_and_trains_nothing(made, here, capsys):
    results = {place: place.stat().st_mtime_ns for place in here.rglob("result.json")}
    again = run(capsys, "ablate", "runs/made")
    assert (again.status, again.err) == (0, "")
    # The same table, verdict and place of the report; the plan says that all is done.
    assert again.out.partition("Variants of")[2] == made[1].out.partition("Variants of")[2]
    assert "6 are done already" in again.out
    assert {place: place.stat().st_mtime_ns for place in here.rglob("result.json")} == results
    assert Results.read("runs/made").command == "anyformer " + " ".join(ARGV)
    by_hand = af.lab.run("runs/made/study.toml", "runs/made", plots=False)
    assert by_hand.variants == af.lab.read("runs/made").variants
    assert af.lab.summarize(by_hand)[0] in " ".join(again.out.split())


def test_ablate_as_json_prints_one_document(here, capsys):
    told = run(capsys, "ablate", "runs/made", "--json", "--no-plots").json
    assert told["report"] == "runs/made/report.html"
    assert (told["runs"], told["lost"]) == (6, 0)
    assert [row["name"] for row in told["rows"]] == ["base", "ffn=relu", "position=alibi"]
    assert told["verdict"][0].startswith("Held-out loss over 2 seeds")


def test_ablate_of_another_study_in_the_folder_names_what_differs(here, capsys):
    before = sorted(here.rglob("*"))
    again = run(capsys, *ARGV[:-2], "--grid", "--out", "runs/made")
    assert again.status == 2
    assert "runs/made holds another study" in again.err
    assert "design: was 'one', is 'grid'" in again.err
    assert sorted(here.rglob("*")) == before


def test_ablate_in_which_some_runs_were_lost_says_which_and_succeeds(here, capsys):
    _lose(here / "runs/made/runs/position=alibi/seed-1/result.json")
    done = run(capsys, "ablate", "runs/made", "--no-plots")
    assert done.status == 0
    assert "position=alibi: seed 1 diverged: the loss is not a number" in done.out
    assert "diverged in 1 of 2 seeds" in done.out


def test_ablate_in_which_all_runs_were_lost_fails(here, capsys):
    for place in (here / "runs/made/runs").rglob("result.json"):
        _lose(place)
    done = run(capsys, "ablate", "runs/made", "--no-plots")
    assert done.status == 1
    assert "all 6 runs failed" in done.err
    assert Path("runs/made/report.html").is_file()


def _lose(place: Path) -> None:
    data = json.loads(place.read_text())
    data |= {"status": "diverged", "reason": "the loss is not a number", "metrics": {"loss": None}}
    place.write_text(json.dumps(data))


def test_ablate_with_another_engine_gives_it_the_runs_that_are_left(here, capsys, monkeypatch):
    given = []

    class Engine:
        def __init__(self, **options):
            given.append(options)

        def run(self, jobs):
            for job in jobs:
                given.append((job.variant, job.seed))
                yield JobEvent(job=job, event="done", value=vars(run_job(job, device="cpu")))

    monkeypatch.setattr(ray_engine, "RayEngine", Engine)
    monkeypatch.setattr(ray_engine, "import_ray", lambda: None)
    argv = ("--seeds", "3", "--engine", "ray", "--ray-address", "10.0.0.1:6379", "--jobs", "2", "--no-plots")
    done = run(capsys, "ablate", "runs/made", *argv)
    assert done.status == 0, done.err
    assert given[0] == {"address": "10.0.0.1:6379", "device": "", "at_once": 2}
    assert sorted(given[1:]) == [("base", 2), ("ffn=relu", 2), ("position=alibi", 2)]
    assert "Held-out loss over 3 seeds" in done.out


def test_ablate_plan_only_writes_the_plan_says_the_cost_and_trains_nothing(here, capsys):
    done = run(capsys, *ARGV[:-2], "--plan-only", "--out", "runs/ahead")
    assert done.status == 0, done.err
    assert "of training on this machine" in done.out
    assert "Begin: anyformer ablate runs/ahead" in done.out
    assert "FLOP in all" in done.out
    assert Path("runs/ahead/plan.json").is_file()
    assert not Path("runs/ahead/runs").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--vary", "positon.kind=alibi"], "did you mean 'position'?"),
        (["--vary", "position.kind=alibbi"], "did you mean 'alibi'?"),
        (["--vary", "position.kind"], "'position.kind' is not NAME=VALUES"),
        (["--vary", "position.kind=alibi", "--vary", "position.kind=none"], "position.kind is given twice"),
        (["--vary", "position.kind=alibi", "--budget", "3q"], "write a time (90s, 5m, 2h)"),
        (["--vary", "position.kind=alibi", "--budget", "10 tokens"], "10 tokens are less than one step takes, 64"),
        (["--vary", "width=64", "--match", "params"], "params can't be matched within 0.50% of the base by ffn.width"),
        (["--vary", "position.kind=alibi", "--match", "flops", "--by", "ffn.wdth"], "did you mean 'ffn.width'?"),
        (["--vary", "position.kind=alibi", "--by", "width"], "--by: nothing is matched"),
        (["--seeds", "1"], "nothing is varied, and one run has nothing to be compared with"),
        (["--leave-out", "position.kind"], "there is nothing to leave out"),
        (["--leave-out", "attention.qk_norm", "--grid"], "give either --leave-out, or --vary"),
        (["--vary", "position.kind=alibi", "--ray-address", "auto"], "--ray-address: is for --engine ray"),
        (["--vary", "position.kind=alibi", "--slurm=--gres=gpu:1"], "--slurm: is for --engine slurm"),
        (["--vary", "position.kind=alibi", "--tune-lr", "1,x"], "'1,x' is no list of numbers"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_ablate_with_bad_input_says_what_to_do_and_begins_nothing(here, capsys, options, words):
    done = run(capsys, "ablate", "small.toml", *options, "--out", "runs/bad")
    assert done.status == 2
    assert words in done.err
    assert not Path("runs/bad/plan.json").exists()


@pytest.mark.parametrize(
    ("base", "words"),
    [
        ("missing.toml", "missing.toml: can't be read: No such file"),
        ("gpt-22", "'gpt-22' is no preset"),
        ("gpt2", "give --text FILE, or --set data.folder=DIR"),
        ("runs", "is the folder of no study, no run and no model"),
        (" ", "BASE: is empty"),
    ],
)
def test_ablate_of_no_base_says_what_one_is(here, capsys, base, words):
    done = run(capsys, "ablate", base, "--vary", "position.kind=alibi", "--out", "runs/bad")
    assert done.status == 2
    assert words in done.err


def test_ablate_without_scipy_says_so_before_anything_is_trained(here, capsys, monkeypatch):
    def missing():
        raise CapabilityError("the lab's statistics need scipy: pip install 'anyformer[lab]'")

    monkeypatch.setattr(statistics, "special", missing)
    done = run(capsys, *ARGV[:-2], "--out", "runs/bare")
    assert done.status == 1
    assert "pip install 'anyformer[lab]'" in done.err
    assert not Path("runs/bare").exists()


def test_ablate_where_nothing_can_be_written_names_the_folder(here, capsys, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    monkeypatch.setattr(Path, "mkdir", refuse)
    done = run(capsys, *ARGV[:-2], "--out", "closed/study")
    assert done.status == 2
    assert "--out: closed/study: Permission denied" in done.err


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--vary", "attention.pattern=causal & window(8),causal & window(4, 2)"],
         {"vary": {"attention": {"pattern": ["causal & window(8)", "causal & window(4, 2)"]}}}),
        (["--vary", "width=16,32", "--vary", "lr=0.5..2:log:3", "--grid"],
         {"vary": {"lr": [0.5, 1.0, 2.0], "width": [16, 32]}, "design": "grid"}),
        (["--leave-out", "attention.qk_norm", "--leave-out", "ffn.kind=relu"],
         {"vary": {"attention": {"qk_norm": []}, "ffn": {"kind": ["relu"]}}, "design": "leave-one-out"}),
        (["--vary", "width=32", "--match", "flops", "--by", "depth,ffn.width", "--tolerance", "0.1"],
         {"match": {"to": "flops", "by": ["depth", "ffn.width"], "tolerance": 0.1}}),
        (["--vary", "width=32", "--set", "stages.length=8", "--set", "depth=2"],
         {"set": {"depth": 2, "stages": {"length": 8}}}),
        (["--vary", "width=32", "--lengths", "8,16", "--metric", "loss@32"],
         {"metric": "loss@32"}),
        (["--vary", "width=32", "--lengths", "8,16"], {"metric": "loss"}),
        (["--vary", "width=32", "--tune-lr", "0.5,1,2", "--seeds", "7", "--budget", "5m"],
         {"tune": {"factors": [0.5, 1.0, 2.0], "seeds": 1}, "seeds": 7, "budget": "5m"}),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)  # fmt: skip
def test_ablate_options_are_the_keys_of_a_study(here, capsys, asked, options, expected):
    assert run(capsys, "ablate", "small.toml", *options).status == 0
    data = asked[0][0].to_data()
    assert {name: data[name] for name in expected} == expected


def test_ablate_metric_of_a_length_is_measured_without_being_asked_for(here, capsys, asked):
    run(capsys, "ablate", "small.toml", "--vary", "width=32", "--metric", "loss@32")
    run(capsys, "ablate", "small.toml", "--vary", "width=32", "--metric", "loss@32", "--lengths", "8,16")
    assert [study.measure.lengths for study, _ in asked] == [(32,), (8, 16, 32)]


def test_ablate_of_a_study_file_takes_its_keys_and_options_go_first(here, capsys, asked):
    study = 'title = "Wide, and wider"\nbase = "small.toml"\nseeds = 5\n[vary]\n"width" = [32, 64]\n[set]\ndepth = 2\n'
    Path("wide.toml").write_text(study)
    run(capsys, "ablate", "wide.toml", "--seeds", "4", "--set", "context=64")
    found, folder = asked[0]
    assert (found.seeds, found.base, found.axes()) == (4, "small.toml", {"width": [32, 64]})
    assert found.to_data()["set"] == {"context": 64, "depth": 2}
    assert folder == Path("runs/wide-and-wider")


def test_ablate_without_a_folder_is_called_after_base_and_axes(here, capsys, asked):
    run(capsys, "ablate", "small.toml", "--vary", "position.kind=alibi", "--vary", "ffn.kind=relu")
    assert asked[0][1] == Path("runs/small-ffn-position")


def test_ablate_of_quickstart_tokenizes_a_text_beside_the_study_once(here, capsys, asked):
    argv = ("ablate", "quickstart", "--text", "foxes.txt", "--vary", "position.kind=alibi", "--out", "runs/quick")
    assert run(capsys, *argv).status == run(capsys, *argv).status == 0
    first, second = (study.to_data()["set"]["data"] for study, _ in asked)
    assert first == second
    assert first["rows"] == "stream"
    assert Path(first["folder"]).parent == Path("runs/data")
    assert (Path(first["folder"]) / "index.json").is_file()
    assert run(capsys, *argv[:3], "nowhere.txt", *argv[4:]).status == 2


def test_ablate_stopped_by_ctrl_c_saves_and_the_same_command_goes_on(here, capsys, launch):
    argv = ["ablate", "small.toml", "--vary", "position.kind=alibi", "--seeds", "1", "--budget", "900 steps", "--no-speeds",
            "--no-plots", "--out", "runs/stopped"]  # fmt: skip
    process = launch(
        [sys.executable, "-m", "anyformer", *argv], env=os.environ | {"PYTHONPATH": str(ROOT)}, text=True,
        stdout=-1, stderr=-1,
    )  # fmt: skip
    while process.poll() is None and not _steps(here / "runs/stopped"):
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 130, said
    assert "The same command goes on: anyformer ablate small.toml --vary position.kind=alibi" in said
    done = _steps(here / "runs/stopped")
    assert 0 < done < 1800
    on = run(capsys, *argv)
    assert on.status == 0, on.err
    # Each step was made once: the runs went on where they were.
    assert _steps(here / "runs/stopped") == 1800
    assert all(len(each.runs) == 1 and not each.lost for each in Results.read("runs/stopped").variants)


def _steps(folder: Path) -> int:
    """Steps that all runs of a study have noted."""
    texts = [place.read_text() for place in folder.glob("runs/*/*/metrics.jsonl")]
    return sum('"gradient_norm"' in line for each in texts for line in each.splitlines())
