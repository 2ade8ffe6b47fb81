"""A study as Slurm jobs: the script is executed with an sbatch that runs everything at once."""

import os
import subprocess
from pathlib import Path

import pytest

import anyformer as af
from anyformer.errors import InputError
from anyformer.lab.engine import slurm
from anyformer.lab.engine.job import Job
from anyformer.lab.results import Results
from anyformer.lab.study import Study
from tests.cli.command import run
from tests.cli.small_study import write_base

SBATCH = """#!/bin/bash
# What sbatch does with a script: it keeps a copy, and runs that later with its arguments, once for each of an array.
set -eu
spool="$FAKE/spool"; mkdir -p "$spool"
number=$(( $(ls "$spool" | wc -l) + 1 ))
echo "$*" >> "$FAKE/calls"
array=""
while [[ "$1" == --* ]]; do
    case "$1" in --array=*) array="${1#--array=}" ;; esac
    shift
done
copy="$spool/job$number"
cp "$1" "$copy"; shift
array="${array%%%*}"
if [ -n "$array" ]; then
    for i in $(seq "${array%-*}" "${array#*-}"); do
        SLURM_ARRAY_TASK_ID=$i bash "$copy" "$@" > "$FAKE/log-$number-$i" 2>&1 &
    done
    wait
else
    bash "$copy" "$@" > "$FAKE/log-$number" 2>&1
fi
echo "$number;cluster"
"""
STUDY = """
title = "Two runs, one after the other"
base = "small.toml"
seeds = 1
[vary]
"then.stages.steps" = [4]
[then.set]
stages = { steps = 2 }
[measure]
speeds = false
"""


def test_slurm_script_makes_all_results_and_the_table_of_a_local_run(tmp_path, monkeypatch, capsys):
    write_base(tmp_path)
    monkeypatch.chdir(tmp_path)
    Path("study.toml").write_text(STUDY)
    local = run(capsys, "ablate", "study.toml", "--out", "runs/here", "--no-plots", "--jobs", "1")
    assert local.status == 0, local.err

    argv = ("ablate", "study.toml", "--out", "runs/it's there", "--engine", "slurm", "--jobs", "2")
    planned = run(capsys, *argv, "--slurm=--partition=small --comment='two words; and more'")
    assert planned.status == 0, planned.err
    script = tmp_path / "runs/it's there/slurm.sh"
    assert f"Submit: bash '{tmp_path}" in planned.out
    assert not Path("runs/it's there/runs").exists()
    text = script.read_text()
    assert "#SBATCH --partition=small\n#SBATCH '--comment=two words; and more'\n" in text

    fake = tmp_path / "fake"
    fake.mkdir()
    (fake / "sbatch").write_text(SBATCH)
    (fake / "sbatch").chmod(0o755)
    paths = {"PATH": f"{fake}:{os.environ['PATH']}", "FAKE": str(fake)}
    paths["PYTHONPATH"] = str(Path(af.__file__).parents[1])
    # It may be submitted from anywhere.
    done = subprocess.run(
        ["bash", str(script)], env=os.environ | paths, capture_output=True, text=True, cwd="/", check=False
    )
    logs = "\n".join(place.read_text() for place in sorted(fake.glob("log-*")))
    assert done.returncode == 0, done.stderr + logs
    first, second, last = (fake / "calls").read_text().splitlines()
    # Both variants begin from the same first run.
    assert "--array=0-0%2" in first
    assert "--dependency" not in first
    assert "--array=1-2%2" in second
    assert "--dependency=afterok:1" in second
    assert "--dependency=afterany:2" in last
    assert "--array" not in last

    here, there = Results.read("runs/here"), Results.read("runs/it's there")
    assert [each.runs for each in there.variants] == [_as_run(each.runs, there) for each in here.variants]
    told = [run(capsys, "ablate", place, "--no-plots").out for place in ("runs/here", "runs/it's there")]
    assert told[1].partition("Two runs")[2].replace("it's there", "here") == told[0].partition("Two runs")[2]


def _as_run(runs, other):
    """Runs with the seconds of those that did the same: only these may differ."""
    from dataclasses import replace

    seconds = {run.metrics["loss"]: run.seconds for each in other.variants for run in each.runs}
    return [replace(run, seconds=seconds.get(run.metrics["loss"], -1.0)) for run in runs]


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", []),
        ("--partition=x --gres gpu:1", ["#SBATCH --partition=x", "#SBATCH --gres gpu:1"]),
        ("-p x -t 2:00:00", ["#SBATCH -p x", "#SBATCH -t 2:00:00"]),
        ("--comment='$(rm -rf /)'", ["#SBATCH '--comment=$(rm -rf /)'"]),
    ],
)
def test_slurm_options_are_lines_of_the_script(text, lines):
    assert slurm.options(text) == lines


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("--array=1-9", "--array is what the script itself sets"),
        ("-d afterok:3", "-d is what the script itself sets"),
        ("partition", "'partition' is no option"),
        ("--comment='x", "can't be read as options of sbatch"),
        ("--comment='a\nrm -rf /'", "has a line break"),
    ],
)
def test_slurm_options_that_would_break_the_script_are_refused(text, words):
    with pytest.raises(InputError, match=words.replace("(", r"\(")):
        slurm.options(text)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"budget": "5m"}, "is a time"),
        ({"match": {"to": "time"}}, "times can't be measured"),
        ({"tune": {"factors": [1, 2]}}, "an array of Slurm is fixed"),
    ],
)
def test_slurm_study_that_needs_the_machine_first_is_refused(keys, words):
    with pytest.raises(InputError, match=words):
        slurm.check_study(Study.from_data({"base": "small.toml", "vary": {"width": [32]}, **keys}))


def test_slurm_script_without_second_runs_has_one_array(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    jobs = [Job(id=str(i), folder="-", variant="base", seed=i, config={}) for i in range(3)]
    text = slurm.write_script(tmp_path, jobs, device="cuda", reader="sweep").read_text()
    assert text.count("--array=") == 1
    assert '--array="0-2"' in text
    assert "--device cuda" in text
    assert '-m anyformer sweep "$study"' in text
