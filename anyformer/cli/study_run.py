"""What `ablate`, `sweep` and `scale` share: options, how a study is carried out, and what is printed of it."""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Container, flag, option, whole
from anyformer.cli.terminal import console, print_all, print_json, ruled, text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.cli.study_live import StudyLive
    from anyformer.lab.experiment import Experiment
    from anyformer.lab.plan import Plan, PlannedVariant
    from anyformer.lab.results import Results
    from anyformer.lab.study import Study

ENGINES = ("local", "slurm", "ray")
QUALITY = ("difference", "mark", "lost runs", "lr factor")
"""Columns beside the metric, where a table is too wide for one."""
PLANNED = ("solved",)
"""Columns that the plan has shown already."""
MOST_NOTES, MOST_LETTERS = 12, 40
"""Notes that are printed, and letters of a variant's name that are never broken up."""


def add_run_options(parser: Container, *, budget: bool = True) -> None:
    """How runs are executed, and where everything goes."""
    parser.set_defaults(budget=None)
    if budget:
        words = "of each run: 5m, 90s, 2000 steps, 20M tokens, 1e15 flops (the steps of the config)"
        option(parser, "--budget", words, "B")
    option(parser, "--seeds", "runs of each variant (3)", whole(1))
    option(parser, "--metric", "what variants are compared by (loss, the held-out loss)", "NAME")
    flag(parser, "--no-speeds", "measure no tokens per second and no memory of each variant after the runs")
    option(parser, "--text", "train on this text, as quickstart does (quickstart without it: Python's library)", "FILE")
    option(parser, "--out", "the folder of the study (runs/ and a name after what is varied)", "DIR")
    option(parser, "--device", "cpu, cuda or cuda:1 (all CUDA devices if there are some)", "NAME")
    option(parser, "--jobs", "runs at a time on each device (as many as cores and memory allow)", whole(1))
    words = (
        "local processes; slurm writes a script of job arrays; ray: tasks of Ray, with files that all machines share"
    )
    option(parser, "--engine", words, ENGINES, default="local")
    option(parser, "--slurm", "options of sbatch, e.g. --slurm='--partition=gpu --gres=gpu:1'", "OPTIONS")
    option(parser, "--ray-address", "the Ray cluster to join (start Ray on this machine)", "ADDRESS")
    flag(parser, "--plan-only", "write the plan and show sizes, steps and estimated cost; train nothing")
    flag(parser, "--no-plots", "draw no PNG and SVG files (the report has its own)")
    flag(parser, "--json", "print nothing but the end, as JSON")


@dataclass(frozen=True, kw_only=True)
class More:
    """What a command adds to the results of a study."""

    page: Sequence[Any] = ()
    data: Mapping[str, Any] = field(default_factory=dict)
    notes: Sequence[str] = ()
    """For the report."""
    alone: bool = False
    """Whether the page stands in place of the table and the verdict."""


Extend = Callable[["Results", Path], More]


def carry_out(
    study: Study, folder: Path, given: argparse.Namespace, extend: Extend = lambda results, folder: More()
) -> int:
    """Execute a study, or go on with it, and print what was found; the exit status."""
    from anyformer.cli.study_live import StudyLive
    from anyformer.lab.statistics.estimates import special

    _check_engine(study, given)
    ahead = given.plan_only or given.engine == "slurm"
    if not ahead:
        # Nobody should train for hours to be told in the end that a package is missing.
        special()
    live = StudyLive(quiet=given.json)
    experiment = _experiment(study, folder, given, live)
    try:
        with live:
            found = experiment.plan() if ahead else experiment.run()
    except KeyboardInterrupt:
        said = "stopped; finished runs are kept, and those in progress were saved. The same command goes on"
        sys.stderr.write(f"anyformer: {said}: {shlex.join(['anyformer', *given.words])}\n")
        return 130
    if isinstance(found, tuple):
        return _show_plan(study, folder, given, *found)
    return _show_results(found, folder, given, extend)


def _check_engine(study: Study, given: argparse.Namespace) -> None:
    """Refuse options of an engine that is not used, and studies that one can't carry out."""
    from anyformer.lab.engine import slurm

    for name, engine in (("slurm", "slurm"), ("ray_address", "ray")):
        if getattr(given, name) is not None and given.engine != engine:
            raise InputError(f"--{name.replace('_', '-')}: is for --engine {engine}; add that, or leave it out")
    if given.engine == "slurm":
        slurm.check_study(study)
        slurm.options(given.slurm or "")
    if given.engine == "ray" and not given.plan_only:
        from anyformer.lab.engine.ray_engine import import_ray

        import_ray()


def _experiment(study: Study, folder: Path, given: argparse.Namespace, live: StudyLive) -> Experiment:
    from anyformer.lab.experiment import Experiment

    engine = None
    if given.engine == "ray":
        from anyformer.lab.engine.ray_engine import RayEngine

        engine = RayEngine(address=given.ray_address or "", device=given.device or "", at_once=given.jobs or 0)
    elsewhere = given.engine == "slurm" or bool(given.ray_address)

    def planned(plan: Plan) -> None:
        if given.json:
            return
        with live.paused():
            print_all(console(), _plan_page(study, folder, plan, given))

    return Experiment(
        study=study, folder=folder, device="" if elsewhere else given.device or "", at_once=given.jobs or 0,
        command=_command(folder, given), watch=live, planned=planned, engine=engine, elsewhere=elsewhere,
    )  # fmt: skip


def _command(folder: Path, given: argparse.Namespace) -> str:
    """What repeats a study elsewhere: not what went on with it, but what it was begun with."""
    from anyformer.lab.experiment import STUDY
    from anyformer.lab.results import FILE, Results

    if Path(given.base) != folder:
        return shlex.join(["anyformer", *given.words])
    before = Results.read(folder).command if (folder / FILE).is_file() else ""
    return before or shlex.join(["anyformer", given.command, str(folder / STUDY)])


def _plan_page(study: Study, folder: Path, plan: Plan, given: argparse.Namespace) -> Iterator[Any]:
    """What is compared, with the sizes that matching chose."""
    from anyformer.specs.number_format import flops, params, short

    names = ["variant", "solved", "params", "steps", "tokens", "FLOPs a run"]
    rows = [
        [
            each.name, _solved(each), params(each.params), f"{each.steps:,}",
            short(each.steps * each.tokens_per_step), flops(each.train_flops),
        ]
        for each in plan.variants
    ]  # fmt: skip
    yield from (table(names, rows), "")
    jobs = plan.jobs(study, folder)
    done, tuning = sum(job.result() is not None for job in jobs), plan.tuning_jobs(study, folder)
    total = sum(each.train_flops for each in plan.variants) * (study.seeds + len(tuning) / len(plan.variants))
    more = f", and {len(tuning)} to tune learning rates" if tuning else ""
    before = f"; {done} are done already" if done else ""
    yield text(
        f"{len(jobs)} runs ({len(plan.variants)} variants, {study.seeds} seed{'s' * (study.seeds > 1)}{more}), "
        f"{flops(total)} in all{before}."
    )
    same = len({each.steps for each in plan.variants}) == 1
    runs = f"Each run: {plan.budget}" if same else f"A run of the base: {plan.budget}"
    yield text(f"{runs}. {plan.match[0].upper()}{plan.match[1:]}.")
    own = {name: value for name, value in plan.variants[0].changes.items() if value is not None}
    if own:
        yield text(f"The base has {', '.join(f'{name}={value}' for name, value in own.items())}.")
    ignored = [f"--{name}" for name in ("device", "jobs") if getattr(given, name) is not None]
    on = sum(device == plan.devices[0] for device in plan.devices)
    other = (given.jobs or on) != on or not plan.devices[0].startswith(given.device or plan.devices[0])
    if ignored and (done or other) and given.engine == "local":
        yield text(f"{' and '.join(ignored)}: the study goes on as it was planned, on {', '.join(plan.devices)}.")
    yield ""


def _solved(variant: PlannedVariant) -> str:
    """What matching chose, and what it left."""
    chosen = ", ".join(f"{name}={value}" for name, value in variant.solved.items())
    return " ".join(filter(None, (chosen, "" if variant.off_by is None else f"({variant.off_by:+.2%})")))


def table(names: Sequence[str], rows: Sequence[Sequence[str]]) -> Any:
    """A table of texts; a column without any is left out, and names of variants are kept in one piece."""
    kept = [i for i in range(len(names)) if not i or any(row[i] for row in rows)]
    table = ruled([names[i] for i in kept], [[text(row[i]) for i in kept] for row in rows])
    table.columns[0].min_width = min(MOST_LETTERS, max(len(row[0]) for row in rows))
    return table


def _show_plan(study: Study, folder: Path, given: argparse.Namespace, plan: Plan, seconds: float | None) -> int:
    """What was planned, how long it will take, and how to begin."""
    from anyformer.train.report.page import duration

    script = None
    if given.engine == "slurm":
        from anyformer.lab.engine.slurm import write_script

        script = write_script(
            folder, plan.jobs(study, folder), slurm=given.slurm or "", device=given.device or "",
            at_once=given.jobs or 0, reader=given.command,
        )  # fmt: skip
    begin = f"anyformer {given.command} {shlex.quote(str(folder))}"
    if given.json:
        data = {"folder": str(folder), "plan": asdict(plan), "seconds": seconds, "begin": begin}
        print_json(data | ({"script": str(script)} if script else {}))
        return 0
    lines = [] if seconds is None else [f"About {duration(seconds)} of training on this machine."]
    if script is None:
        lines.append(f"Begin: {begin}")
    else:
        lines += [f"Submit: bash {shlex.quote(str(script))}", f"Look at what there is so far: {begin}"]
    print_all(console(), [*_plan_page(study, folder, plan, given), *map(text, lines)])
    return 0


def _show_results(results: Results, folder: Path, given: argparse.Namespace, extend: Extend) -> int:
    from anyformer.cli.model import working
    from anyformer.lab.run_study import PLOTS, finish
    from anyformer.lab.statistics.table import to_data

    found = to_data(results)
    more = extend(results, folder)
    if more.notes:
        results = replace(results, notes=[*results.notes, *more.notes])
        results.save(folder)
    with working("writing the report"):
        report = finish(results, folder, plots=not given.no_plots)
    runs = [run for variant in results.variants for run in variant.runs]
    lost = sum(run.status != "finished" for run in runs)
    if given.json:
        about = {name: getattr(results, name) for name in ("command", "budget", "match", "machine", "seconds", "notes")}
        print_json({
            "folder": str(folder), "report": str(report), "runs": len(runs), "lost": lost, **about, **found, **more.data,
        })  # fmt: skip
    else:
        screen = console()
        if not more.alone:
            print_all(screen, _results_page(results, found, screen.width))
        print_all(screen, [*more.page, *([""] if more.page else [])])
        plots = "" if given.no_plots else f"; pictures in {folder / PLOTS}"
        screen.print(f"Look at it: {report}{plots}", markup=False, soft_wrap=True)
    if lost == len(runs):
        sys.stderr.write(f"anyformer: all {lost} runs failed; the notes say why\n")
        return 1
    return 0


def _results_page(results: Results, found: Mapping[str, Any], width: int) -> Iterator[Any]:
    from anyformer.lab.statistics.table import legend

    yield text(results.title, "bold")
    yield ""
    yield from _tables(results, width)
    yield from (text(line, "dim") for line in legend(results))
    yield ""
    yield from map(text, found["verdict"])
    if found["claims"]:
        yield from ("", text("Claims of the literature", "bold"))
    for each in found["claims"]:
        yield text(f"{each['claim']['claim']} ({each['claim']['paper']})")
        yield text(f"  {each['words']}")
    if results.notes:
        yield from ("", text("Notes", "bold"))
        yield from map(text, results.notes[:MOST_NOTES])
        left = len(results.notes) - MOST_NOTES
        yield from [text(f"and {left} more, in results.json")] if left > 0 else []
    yield ""


def _tables(results: Results, width: int) -> Iterator[Any]:
    """The table of a study; if it is too wide, what was found first and what it costs below."""
    from anyformer.lab.statistics.table import cells

    every, full = cells(results)
    if not full:
        return
    shown = [i for i, name in enumerate(every) if name not in PLANNED]
    names, rows = [every[i] for i in shown], [[row[i] for i in shown] for row in full]
    widths = [max(len(row[i]) for row in [names, *rows]) for i in range(len(names))]
    if sum(widths) + 3 * len(widths) <= width:
        yield from (table(names, rows), "")
        return
    parts = [i for i, name in enumerate(names) if i == 1 or name in QUALITY]
    for some in (parts, [i for i in range(1, len(names)) if i not in parts]):
        if some:
            yield from (table([names[i] for i in (0, *some)], [[row[i] for i in (0, *some)] for row in rows]), "")
