"""`anyformer train`: start a run, or go on with it.

anyformer train recipes/shakespeare.toml
anyformer train recipes/shakespeare.toml --set run.seed=3 --set run.folder=runs/three
anyformer train recipes/shakespeare.toml --dry-run
anyformer train recipes/wikitext-2.toml --dry-run --rows-png rows.png
"""

from __future__ import annotations

import argparse
import shlex
import sys
from contextlib import ExitStack, nullcontext, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli import tokenize
from anyformer.cli.parser import Command, Parser, add_set, change_text, flag, option
from anyformer.cli.terminal import console, print_json
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.train.config import Config
    from anyformer.train.trainer import Trainer


def _arguments(parser: argparse.ArgumentParser) -> None:
    option(parser, "config", "a TOML file such as those in recipes/", "CONFIG")
    add_set(parser, "the config", "run.seed=3")
    flag(parser, "--dry-run", "only look ahead: parameters, FLOPs, memory, steps and time; nothing is written")
    option(parser, "--rows-png", "with --dry-run: draw how documents fill rows, by each kind of packing", "FILE")
    flag(parser, "--json", "print nothing but the end, as JSON")


def _run(given: argparse.Namespace) -> int:
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
        from anyformer.cli.train_dry_run import dry_run

        return dry_run(config, json=given.json, rows=given.rows_png)
    return _train(config, given)


def _make_data(config: Config, given: argparse.Namespace) -> None:
    """Tokenize what the config says, if the folder is not there yet."""
    from torch.distributed import is_torchelastic_launched

    from anyformer.data.shards import INDEX

    folder = config.data.folder
    if not config.data.make or (Path(folder) / INDEX).is_file():
        return
    try:
        words = [*shlex.split(config.data.make), "--out", folder]
    except ValueError as error:
        raise InputError(f"data.make: can't be read as a command line: {error}") from error
    # Several processes would make the same folder.
    if given.dry_run or is_torchelastic_launched():
        raise InputError(f"{folder}: is not made yet; make it first: {shlex.join(['anyformer', 'tokenize', *words])}")
    parser = Parser(prog="data.make")
    tokenize.arguments(parser)
    arguments = parser.parse_args(words)
    # Whoever reads standard output gets JSON alone.
    with redirect_stdout(sys.stderr) if given.json else nullcontext():
        tokenize.run(arguments)


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
        first = made.components.ranks.is_rank0
        live = Live(made, stretches(made.components), peak(made.components), quiet=given.json or not first)
        stack.enter_context(live)
        made.on_eval_rows = live.on_eval_rows
        live.begin()
        for event in made.events():
            match event:
                case Stopped():
                    end |= {"status": "stopped", "exit": event.status}
                case Resumed():
                    end |= {"step": event.step, "status": "was finished" if event.step >= made.total else "finished"}
                case Step():
                    end |= {"step": event.step, "tokens": event.tokens, "seconds": event.seconds, "loss": event.loss}
                case Evaluated():
                    end["held_out"] = {"loss": event.loss, "bits_per_byte": event.bits_per_byte, **event.figures}
            live.show(event)
    if first:
        _summarize(made, end, given)
    return int(end.get("exit", 0))


def _summarize(made: Trainer, end: dict[str, Any], given: argparse.Namespace) -> None:
    """How it ended, and what to do next."""
    from anyformer.train.loggers import sound
    from anyformer.train.report import FILE

    changes = [part for name, value in given.changes for part in ("--set", change_text(name, value))]
    again = shlex.join(["anyformer", "train", given.config, *changes])
    if end["status"] == "was finished":
        end |= _before(made)
    if given.json:
        figures = sound({name: value for name, value in end.items() if name != "exit"})
        print_json({"folder": str(made.folder), "params": made.components.spec.count().params, **figures})
        return
    if end["status"] == "stopped":
        sys.stderr.write(
            f"anyformer: stopped after step {end['step']:,} of {made.total:,}, and saved. Go on: {again}\n"
        )
        return
    lines: list[str] = []
    if end["status"] == "was finished":
        held = end.get("held_out", {}).get("loss")
        result = "" if held is None else f", with a held-out loss of {held:.4f}"
        more, last = made.config.stages[-1].steps + made.total, len(made.config.stages) - 1
        lines.append(f"{made.folder} is finished: {made.total:,} steps{result}. Nothing was done.")
        lines.append(f"Give it more steps: {again} --set stages.{last}.steps={more}")
    lines.append(f"Look at it: {made.folder / FILE}")
    if made.components.spec.head.predicts_tokens and made.components.spec.topology != "encoder":
        lines.append(f"Go on: anyformer generate {shlex.quote(str(made.folder))}")
    for line in lines:
        console().print(line, markup=False, soft_wrap=True)


def _before(made: Trainer) -> dict[str, Any]:
    """The end of a run that was finished before."""
    from anyformer.train.loggers import finals, read_metrics

    found: dict[str, Any] = {}
    for step in read_metrics(made.folder, "step")[-1:]:
        found |= {name: step.get(name) for name in ("tokens", "seconds", "loss")}
    for final in finals(made.folder)[-1:]:
        figures = final.get("figures") or {}
        found["held_out"] = {"loss": final.get("loss"), "bits_per_byte": final.get("bits_per_byte"), **figures}
    return found


COMMAND = Command("train", "train a model by a config, or go on with its run", __doc__, _arguments, _run)
