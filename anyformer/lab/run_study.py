"""A study in one call, from its file to its report: what `af.lab` offers, and what the commands are made of."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from anyformer.lab.engine.progress import Watch
from anyformer.lab.experiment import Engine, Experiment
from anyformer.lab.report import write_report
from anyformer.lab.results import Results
from anyformer.lab.study import Study

PLOTS = "plots"
"""The folder of pictures inside of a study's folder."""


def run(
    study: Study | Mapping[str, Any] | str | Path,
    folder: str | Path,
    *,
    device: str = "",
    jobs: int = 0,
    engine: Engine | None = None,
    watch: Watch = lambda stage: None,
    plots: bool = True,
) -> Results:
    """Carry out a study in a folder, or go on with it; its table, plots and report.html are written there too.

    `study` may be a TOML file, or its plain data. `jobs` are runs at a time on each device (0: as many as cores and memory
    allow), and `watch` is told how far it is. Workers are programs of their own: a script that calls this needs no
    `if __name__ == "__main__":`.
    """
    if isinstance(study, str | Path):
        study = Study.from_file(study)
    elif not isinstance(study, Study):
        study = Study.from_data(study)
    made = Experiment(study=study, folder=Path(folder), device=device, at_once=jobs, engine=engine, watch=watch)
    results = made.run()
    finish(results, Path(folder), plots=plots)
    return results


def read(folder: str | Path) -> Results:
    """The results in a study's folder."""
    return Results.read(folder)


def finish(results: Results, folder: Path, *, plots: bool = True) -> Path:
    """Write the pictures and the report of a study; where the report is."""
    if plots:
        from anyformer.lab.plots.draw import draw_all

        draw_all(results, folder / PLOTS)
    return write_report(results, folder)
