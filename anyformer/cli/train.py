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
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from anyformer.cli import tokenize
from anyformer.cli.model import working
from anyformer.cli.parser import Command, add_set, change_text, flag, option
from anyformer.cli.terminal import console, print_json, ruled, show
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.train.components import Components
    from anyformer.train.config import Config
    from anyformer.train.dry_run import Forecast
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
    from torch.distributed import is_torchelastic_launched

    # Several processes would make the same folder.
    refuse = given.dry_run or is_torchelastic_launched()
    tokenize.make_data(config.data.folder, config.data.make, quiet=given.json, refuse=refuse)
    if given.dry_run:
        return _dry_run(config, given)
    return _train(config, given)


def _train(config: Config, given: argparse.Namespace) -> int:
    from anyformer.cli.model import working
    from anyformer.cli.train_live import Live
    from anyformer.lab.train_run import peak, training
    from anyformer.train.dry_run import stretches
    from anyformer.train.trainer import Evaluated, Resumed, Step, Stopped

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
    from anyformer.train.report import FILE

    changes = [part for name, value in given.changes for part in ("--set", change_text(name, value))]
    again = shlex.join(["anyformer", "train", given.config, *changes])
    if end["status"] == "was finished":
        end |= _before(made)
    if given.json:
        figures = {name: value for name, value in end.items() if name != "exit"}
        print_json({"folder": str(made.folder), "params": made.components.spec.count().params, **figures})
    elif end["status"] == "stopped":
        said = f"stopped after step {end['step']:,} of {made.total:,}, and saved. Go on: {again}"
        sys.stderr.write(f"anyformer: {said}\n")
    else:
        lines = [f"Look at it: {made.folder / FILE}"]
        if end["status"] == "was finished":
            held = end.get("held_out", {}).get("loss")
            result = "" if held is None else f", with a held-out loss of {held:.4f}"
            more = f"stages.{len(made.config.stages) - 1}.steps={made.config.stages[-1].steps + made.total}"
            lines.insert(0, f"Give it more steps: {again} --set {more}")
            lines.insert(0, f"{made.folder} is finished: {made.total:,} steps{result}. Nothing was done.")
        if made.components.spec.head.predicts_tokens and made.components.spec.topology != "encoder":
            lines.append(f"Go on: anyformer generate {shlex.quote(str(made.folder))}")
        console().print("\n".join(lines), markup=False, soft_wrap=True)


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


def _dry_run(config: Config, given: argparse.Namespace) -> int:
    """What a run would be, from its config and its data; nothing is written but a picture of rows."""
    from anyformer.kernels.memory import free
    from anyformer.train.components import Components, device_of
    from anyformer.train.dry_run import forecast

    device, setup = device_of(config.compute.device), Components(config)
    with working("looking ahead"):
        setup.read()
        found, room = forecast(setup, device), free(device)
        if given.rows_png is not None:
            from anyformer.data.packing import save_figure

            save_figure(given.rows_png, *setup.loader(len(config.stages) - 1).every_packing())
    named = (setup, found, str(device), room)
    show(given.json, lambda: _forecast_data(*named), _forecast_page(*named))
    return 0


def _forecast_page(setup: Components, found: Forecast, device: str, room: int) -> Iterator[Any]:
    from anyformer.explain.report import summary
    from anyformer.specs.number_format import data, flops, short
    from anyformer.train.dry_run import advice
    from anyformer.train.report.page import duration

    yield summary(setup.spec)
    names = ("stage", "steps", "tokens", "epochs", "rows", "padding", "FLOPs/token")
    rows = [
        (
            each.words, f"{each.steps:,}", short(each.tokens), f"{each.epochs:.3g}", f"{each.rows:,}",
            f"{each.waste:.2%}", flops(each.flops_per_token),
        )
        for each in found.stretches
    ]  # fmt: skip
    yield from ("", ruled(names, rows), "")
    tokens, params = short(sum(each.tokens for each in found.stretches)), setup.spec.count().params
    yield f"{params:,} parameters, {setup.config.steps:,} steps, {tokens} tokens, {flops(found.flops)} in all."
    fits = "" if found.memory.total <= room else f"more than the {data(room)} that are free"
    parts = sorted(found.memory.parts().items(), key=lambda part: -part[1])
    most = ("[bold]at most at once[/]", f"[bold]{data(found.memory.total)}[/]", f"[bold]{fits}[/]")
    yield from ("", ruled(("memory", "", ""), [*((name, data(size), "") for name, size in parts), most]), "")
    times = ", ".join(f"{name} {duration(seconds)}" for name, seconds in found.parts().items())
    rate, speed = (short(each, "FLOP/s") for each in (found.rate, found.rate * found.efficiency))
    yield (
        f"About {duration(found.seconds)} on {device}: products run at {rate}, of which a step is expected to reach "
        f"{found.efficiency:.0%} ({speed}). Of these: {times}."
    )
    if found.evals.count:
        sample = f"{found.evals.rows:,} of {found.evals.all_rows:,} held-out rows {found.evals.count:,} times"
        whole = ", and on all of them at the end" if found.evals.rows < found.evals.all_rows else ""
        yield f"Measured on {sample}{whole}."
    for i, each in enumerate(found.stretches):
        if each.repeated:
            yield f"Stage {i + 1}: every token is read in each epoch, {each.repeated:,} twice to fill the last row."
        if each.left_out or each.shortened:
            yield f"Stage {i + 1}: {each.left_out:,} examples are left out, {each.shortened:,} lose their end."
    if fits:
        yield from ("", *advice(found.cures()))


def _forecast_data(setup: Components, found: Forecast, device: str, room: int) -> dict[str, Any]:
    stages = [asdict(each) | {"flops_per_token": each.flops_per_token} for each in found.stretches]
    return {
        "params": setup.spec.count().params, "steps": setup.config.steps, "stages": stages, "flops": found.flops,
        "memory": {"total": found.memory.total, "free": room, "stage": found.stage, **found.memory.parts()},
        "seconds": found.seconds, "seconds_by_part": found.parts(), "held_out": asdict(found.evals),
        "rate": found.rate, "efficiency": found.efficiency, "device": device,
    }  # fmt: skip


COMMAND = Command("train", "train a model by a config, or go on with its run", __doc__, _arguments, _run)
