"""`anyformer train`: start a run, or go on with it."""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli import tokenize
from anyformer.cli.parser import Command, Parser, add_set, change_text
from anyformer.cli.terminal import console, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.train.config import Config
    from anyformer.train.trainer import Trainer


def arguments(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("config", metavar="CONFIG", help="a TOML file such as those in recipes/")
    add_set(parser, "the config", "run.seed=3")
    parser.add_argument("--dry-run", action="store_true",
                        help="only look ahead: parameters, FLOPs, memory, steps and time; nothing is written")  # fmt: skip
    parser.add_argument(
        "--rows-png", metavar="FILE", help="with --dry-run: draw how documents fill rows, by each kind of packing"
    )
    parser.add_argument("--json", action="store_true", help="print nothing but the end, as JSON")


def run(given: argparse.Namespace) -> int:
    """Train."""
    from anyformer.train.config import Config

    if given.rows_png and not given.dry_run:
        raise InputError("--rows-png: only a look ahead draws rows; add --dry-run")
    # torch takes a second to load; a config that is wrong should not have to wait for it.
    config = Config.from_file(given.config, dict(given.changes))
    from anyformer.train.resolve import needs

    # Nor should one that can't be trained wait until its data are made.
    needs(config).settle()
    _make_data(config, given)
    if given.dry_run:
        from anyformer.cli.train_dry_run import look_ahead

        return look_ahead(config, json=given.json, rows=given.rows_png)
    return _train(config, given)


def _make_data(config: Config, given: argparse.Namespace) -> None:
    """Tokenize what the config says, if the folder is not there yet."""
    from anyformer.data.shards import INDEX

    folder = config.data.folder
    if not config.data.make or (Path(folder) / INDEX).is_file():
        return
    try:
        words = [*shlex.split(config.data.make), "--out", folder]
    except ValueError as error:
        raise InputError(f"data.make: can't be read as a command line: {error}") from error
    if given.dry_run or _among_many():
        raise InputError(f"{folder}: is not made yet; make it first: {shlex.join(['anyformer', 'tokenize', *words])}")
    parser = Parser(prog="data.make")
    tokenize.arguments(parser)
    asked = parser.parse_args(words)
    # Whoever reads standard output gets JSON alone.
    with redirect_stdout(sys.stderr) if given.json else nullcontext():
        tokenize.run(asked)


def _among_many() -> bool:
    """Whether torchrun started this process: several would make the same folder."""
    from torch.distributed import is_torchelastic_launched

    return is_torchelastic_launched()


def _train(config: Config, given: argparse.Namespace) -> int:
    from anyformer.cli.model import working
    from anyformer.cli.train_live import Live
    from anyformer.lab.train_run import peak, training
    from anyformer.train.dry_run import stretches
    from anyformer.train.events import Evaluated, Resumed, Step, Stopped

    made = training(config)
    end: dict[str, Any] = {"status": "finished", "step": 0}
    with ExitStack() as stack:
        with working("getting ready"):
            stack.enter_context(made)
        first = made.setup.team.is_rank0
        live = Live(made, stretches(made.setup), peak(made.setup), quiet=given.json or not first)
        stack.enter_context(live)
        made.on_eval_rows = live.on_eval_rows
        live.begin()
        for event in made.events():
            if isinstance(event, Stopped):
                end |= {"status": "stopped", "exit": event.status}
            elif isinstance(event, Resumed):
                end |= {"step": event.step, "status": "was finished" if event.step >= made.total else "finished"}
            elif isinstance(event, Step):
                end |= {"step": event.step, "tokens": event.tokens, "seconds": event.seconds, "loss": event.loss}
            elif isinstance(event, Evaluated):
                end["held_out"] = {"loss": event.loss, "bits_per_byte": event.bits_per_byte, **event.figures}
            live.show(event)
    if first:
        _told(made, end, given)
    return int(end.get("exit", 0))


def _told(made: Trainer, end: dict[str, Any], given: argparse.Namespace) -> None:
    """How it ended, and what to do next."""
    again = shlex.join(["anyformer", "train", given.config, *_changes(given)])
    folder = shlex.quote(str(made.folder))
    if end["status"] == "was finished":
        end |= _before(made)
    if given.json:
        told = {name: value for name, value in end.items() if name != "exit"}
        print_json({"folder": str(made.folder), "params": made.setup.spec.count().params, **_sound(told)})
    elif end["status"] == "stopped":
        sys.stderr.write(
            f"anyformer: stopped after step {end['step']:,} of {made.total:,}, and saved. Go on: {again}\n"
        )
    else:
        from anyformer.train.report import FILE

        out = console()
        if end["status"] == "was finished":
            held = end.get("held_out", {}).get("loss")
            result = "" if held is None else f", with a held-out loss of {held:.4f}"
            line = f"{made.folder} is finished: {made.total:,} steps{result}. Nothing was done."
            more = made.config.stages[-1].steps + made.total
            name = f"stages.{len(made.config.stages) - 1}.steps"
            out.print(line, markup=False, soft_wrap=True)
            out.print(f"Give it more steps: {again} --set {name}={more}", markup=False, soft_wrap=True)
        out.print(f"Look at it: {made.folder / FILE}", markup=False, soft_wrap=True)
        if made.setup.spec.head.predicts_tokens and made.setup.spec.topology != "encoder":
            out.print(f"Go on: anyformer generate {folder}", markup=False, soft_wrap=True)


def _before(made: Trainer) -> dict[str, Any]:
    """The end of a run that was finished before."""
    from anyformer.train.loggers import finals, read_metrics

    found: dict[str, Any] = {}
    for step in read_metrics(made.folder, "step")[-1:]:
        found |= {name: step.get(name) for name in ("tokens", "seconds", "loss")}
    for look in finals(made.folder)[-1:]:
        figures = look.get("figures") or {}
        found["held_out"] = {"loss": look.get("loss"), "bits_per_byte": look.get("bits_per_byte"), **figures}
    return found


def _sound(values: dict[str, Any]) -> dict[str, Any]:
    from anyformer.train.loggers import sound

    return sound(values)


def _changes(given: argparse.Namespace) -> list[str]:
    """The changes as they are written on a command line."""
    return [part for name, value in given.changes for part in ("--set", change_text(name, value))]


COMMAND = Command(
    name="train",
    summary="train a model by a config, or go on with its run",
    example="""
anyformer train recipes/shakespeare.toml
anyformer train recipes/shakespeare.toml --set run.seed=3 --set run.folder=runs/three
anyformer train recipes/shakespeare.toml --dry-run
anyformer train recipes/wikitext-2.toml --dry-run --rows-png rows.png
""",
    arguments=arguments,
    run=run,
)
