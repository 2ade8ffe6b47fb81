"""`anyformer sweep`: one number of a config over a range, or several over a grid; the best value, and how sure that is.

anyformer sweep recipes/shakespeare.toml --set optim.matrices=0.002..0.05:log:5 --seeds 3 --budget 2m
anyformer sweep quickstart --set lr=0.25..4:log:5 --set width=64,128 --budget '500 steps'
anyformer sweep recipes/shakespeare.toml --set optim.kind=adamw --set optim.matrices=0.0005..0.008:log:5
anyformer sweep runs/shakespeare-sweep-optim.matrices
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, option
from anyformer.cli.study_read import axis, override, place_of, read_base, with_data
from anyformer.cli.study_run import More, add_run_options, carry_out
from anyformer.cli.terminal import text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.lab.results import Results


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = "a config, a run's folder, a spec, a preset, or quickstart; or a sweep's folder to go on with"
    option(parser, "base", words, "CONFIG")
    words = (
        "a dotted name of the config or the spec, or lr, a factor on all learning rates: FIRST..LAST:COUNT, "
        "FIRST..LAST:log:COUNT or values between commas are swept (several make a grid); one value is fixed"
    )
    many: dict[str, Any] = {"action": "append", "default": [], "dest": "swept", "metavar": "NAME=RANGE"}
    option(parser, "--set", words, axis, **many)
    add_run_options(parser)


def _run(given: argparse.Namespace) -> int:
    """Sweep."""
    from anyformer.lab.study import Study

    asked = read_base(given.base)
    twice = [name for name, _ in given.swept if [other for other, _ in given.swept].count(name) > 1]
    if twice:
        raise InputError(f"--set: {twice[0]} is given twice; write its values with commas between them")
    ranges = {name: list(values) for name, values in given.swept if len(values) > 1}
    given.changes = [(name, values[0]) for name, values in given.swept if len(values) == 1]
    override(asked, given)
    if ranges:
        asked.data.update(vary=ranges, design="grid")
    elif not asked.data.get("vary"):
        raise InputError("--set: nothing is swept; give a range, e.g. --set optim.matrices=0.002..0.05:log:5")
    study = Study.from_data(asked.data, asked.source)
    keys = list(study.axes())
    folder = place_of(asked, given, study, ["sweep", *keys])

    def extend(results: Results, _: Path) -> More:
        from anyformer.lab.statistics.best import best_of

        best = best_of(results, keys)
        if best is None:
            return More(page=[text("No value has a result to choose by.")], data={"best": None})
        return More(page=[text(line, "bold") for line in best.words], data={"best": asdict(best)})

    return carry_out(with_data(study, folder, given), folder, given, extend)


COMMAND = Command("sweep", "a number of a config over a range: the best value", __doc__, _arguments, _run)
