"""`anyformer train --dry-run`: what a run would be, from its config and its data; nothing is written."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from anyformer.cli.terminal import ruled, show

if TYPE_CHECKING:
    from anyformer.train.components import Components
    from anyformer.train.config import Config
    from anyformer.train.dry_run import Forecast


def dry_run(config: Config, *, json: bool, rows: str | None = None) -> int:
    """Print it; `rows`: draw how documents fill the rows of the last stage into this file."""
    from anyformer.cli.model import working
    from anyformer.kernels.memory import free
    from anyformer.train.components import Components, device_of
    from anyformer.train.dry_run import forecast

    device = device_of(config.compute.device)
    setup = Components(config)
    with working("looking ahead"):
        setup.read()
        found = forecast(setup, device)
        room = free(device)
        if rows is not None:
            from anyformer.data.packing import save_figure

            save_figure(rows, *setup.loader(len(config.stages) - 1).every_packing())
    show(json, lambda: _data(setup, found, str(device), room), _page(setup, found, str(device), room))
    return 0


def _page(setup: Components, found: Forecast, device: str, room: int) -> list[Any]:
    from anyformer.explain.report import summary
    from anyformer.specs import number_format
    from anyformer.train.dry_run import advice
    from anyformer.train.report.page import duration

    count = setup.spec.count()
    tokens = sum(each.tokens for each in found.stretches)
    stages = ruled("stage", "steps", "tokens", "epochs", "rows", "padding", "FLOPs/token")
    for each in found.stretches:
        stages.add_row(
            each.words, f"{each.steps:,}", number_format.short(each.tokens), f"{each.epochs:.3g}", f"{each.rows:,}",
            f"{each.waste:.2%}", number_format.flops(each.flops_per_token),
        )  # fmt: skip
    held = ruled("memory", "", "")
    for name, size in sorted(found.memory.parts().items(), key=lambda part: -part[1]):
        held.add_row(name, number_format.data(size), "")
    fits = "" if found.memory.total <= room else f"more than the {number_format.data(room)} that are free"
    held.add_row("[bold]at most at once[/]", f"[bold]{number_format.data(found.memory.total)}[/]", f"[bold]{fits}[/]")
    speed = found.rate * found.efficiency
    lines = [
        summary(setup.spec), "", stages, "",
        f"{count.params:,} parameters, {setup.config.steps:,} steps, {number_format.short(tokens)} tokens, "
        f"{number_format.flops(found.flops)} in all.", "", held, "",
        f"About {duration(found.seconds)} on {device}: products run at {number_format.short(found.rate, 'FLOP/s')}, of which a "
        f"step is expected to reach {found.efficiency:.0%} ({number_format.short(speed, 'FLOP/s')}). Of these: "
        + ", ".join(f"{name} {duration(seconds)}" for name, seconds in found.parts().items()) + ".",
    ]  # fmt: skip
    if found.looks.count:
        sample = f"{found.looks.rows:,} of {found.looks.all_rows:,} held-out rows {found.looks.count:,} times"
        whole = ", and on all of them at the end" if found.looks.rows < found.looks.all_rows else ""
        lines.append(f"Measured on {sample}{whole}.")
    for i, each in enumerate(found.stretches):
        if each.repeated:
            lines.append(
                f"Stage {i + 1}: every token is read in each epoch, {each.repeated:,} twice to fill the last row."
            )
        if each.left_out or each.shortened:
            lines.append(f"Stage {i + 1}: {each.left_out:,} examples are left out, {each.shortened:,} lose their end.")
    if fits:
        lines += ["", *advice(found.cures())]
    return lines


def _data(setup: Components, found: Forecast, device: str, room: int) -> dict[str, Any]:
    stages = [asdict(each) | {"flops_per_token": each.flops_per_token} for each in found.stretches]
    return {
        "params": setup.spec.count().params, "steps": setup.config.steps, "stages": stages, "flops": found.flops,
        "memory": {"total": found.memory.total, "free": room, "stage": found.stage, **found.memory.parts()},
        "seconds": found.seconds, "seconds_by_part": found.parts(), "held_out": asdict(found.looks), "rate": found.rate, "efficiency": found.efficiency, "device": device,
    }  # fmt: skip
