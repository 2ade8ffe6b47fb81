"""A planned study as Slurm jobs: an array of its runs, an array of second runs after it, and a job that reads the results.

One script does all of it. Called by hand it submits itself three times, each time with the part that it has to play:

    bash runs/ffn/slurm.sh
"""

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from anyformer.errors import InputError
from anyformer.files import replace_file
from anyformer.lab.engine.job import Job
from anyformer.lab.study import Budget, Study

FILE = "slurm.sh"
OWN = {
    "--array": "-a", "--dependency": "-d", "--parsable": "", "--wrap": "", "--output": "-o", "--error": "-e",
    "--job-name": "-J", "--chdir": "-D",
}  # fmt: skip
"""Options of sbatch that the script gives itself, with their short names."""
SCRIPT = """#!/bin/bash
{header}
# The runs of a study. To submit them: bash {script}
set -euo pipefail
cd {here}
study={study}
case "${{1:-submit}}" in
run)
    exec {python} -m anyformer.lab.engine.worker --study "$study" --job "$SLURM_ARRAY_TASK_ID"{device}
    ;;
read)
    exec {python} -m anyformer {reader} "$study"
    ;;
submit)
    mkdir -p "$study/slurm"
    send() {{ sbatch --parsable --job-name={name} --output="$study/slurm/%j-%x.log" "$@" | cut -d ';' -f 1; }}
{submit}
    echo "submitted; job $last, the last one, writes $study/results.json and $study/report.html"
    ;;
esac
"""


def check_study(study: Study) -> None:
    """Refuse what needs the machine that runs before it is known."""
    if study.budget and Budget.parse(study.budget).kind == "seconds":
        raise InputError(
            f"budget: {study.budget!r} is a time, and how long a step takes on the machines of Slurm is not known here; give "
            "steps, tokens or flops"
        )
    if study.match.to == "time":
        raise InputError(
            "match: times can't be measured on the machines of Slurm before runs begin; match flops or params"
        )
    if study.tune.factors:
        raise InputError("tune: which runs there are depends on others before them, and an array of Slurm is fixed; "
                         "vary lr as an axis, or run the study on one machine")  # fmt: skip


def options(text: str) -> list[str]:
    """Options of sbatch as lines of a script: `--partition=x --gres gpu:1` gives two."""
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise InputError(f"--slurm: {text!r} can't be read as options of sbatch: {error}") from error
    lines: list[str] = []
    taken = {name for pair in OWN.items() for name in pair if name}
    for word in words:
        name = word.partition("=")[0] if word.startswith("--") else word[:2]
        if any(ord(letter) < 32 for letter in word):
            raise InputError(f"--slurm: {word!r} has a line break or another control character in it; leave it out")
        if name in taken:
            raise InputError(f"--slurm: {name} is what the script itself sets; leave it out")
        if word.startswith("-"):
            lines.append(f"#SBATCH {shlex.quote(word)}")
        elif lines:
            lines[-1] += f" {shlex.quote(word)}"
        else:
            raise InputError(f"--slurm: {word!r} is no option; write e.g. --slurm '--partition=gpu --gres=gpu:1'")
    return lines


def write_script(
    folder: Path,
    jobs: Sequence[Job],
    *,
    slurm: str = "",
    device: str = "",
    at_once: int = 0,
    reader: str = "ablate",
    python: str = sys.executable,
) -> Path:
    """Write the script of a planned study into its folder; where it is.

    `at_once` is how many runs Slurm may execute at a time (0: no limit), `slurm` are further options of sbatch, and
    `reader` is the command that reads the results.
    """
    study = folder.resolve()
    place, limit = study / FILE, f"%{at_once}" if at_once else ""
    first = sum(not job.after for job in jobs)
    again = '"$study/' + FILE + '"'
    # Second runs begin from what first ones left; Slurm starts them when all of those have ended well, and if one has
    # not, it takes them out of its queue, so that the job that reads need not wait for them.
    lines = [f'    last=$(send --array="0-{first - 1}{limit}" {again} run)']
    if first < len(jobs):
        after = '--kill-on-invalid-dep=yes --dependency="afterok:$last"'
        lines.append(f'    last=$(send --array="{first}-{len(jobs) - 1}{limit}" {after} {again} run)')
    # Read in any case: runs that failed are part of the results, or tried once more.
    lines.append(f'    last=$(send --dependency="afterany:$last" {again} read)')
    text = SCRIPT.format(
        header="\n".join(options(slurm)) or "# No further options of sbatch.", script=shlex.quote(str(place)),
        here=shlex.quote(str(Path.cwd())), study=shlex.quote(str(study)), python=shlex.quote(python),
        device=f" --device {shlex.quote(device)}" if device else "", name=shlex.quote(f"anyformer-{study.name}"),
        submit="\n".join(lines), reader=reader,
    )  # fmt: skip
    replace_file(place, lambda beside: beside.write_text(text, encoding="utf-8"))
    return place
