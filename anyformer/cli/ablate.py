"""`anyformer ablate`: variants of a model at matched cost, several seeds each, compared with statistics.

anyformer ablate quickstart --vary position.kind=rope,alibi,none --seeds 3 --budget 2m
anyformer ablate recipes/shakespeare.toml --vary position.kind=alibi,t5 --vary ffn.kind=relu2 --match flops --by ffn.width
anyformer ablate recipes/shakespeare.toml --leave-out attention.qk_norm --leave-out ffn.kind=relu --seeds 5 --budget 5m
anyformer ablate studies/ffn.toml --seeds 5 --plan-only
anyformer ablate runs/ffn
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from anyformer.cli.parser import Command, add_set, flag, number, option
from anyformer.cli.study_read import AT_LENGTH, axis, left_out, names, numbers, override, place_of, read_base, with_data
from anyformer.cli.study_run import add_run_options, carry_out
from anyformer.errors import InputError

TARGETS = ("params", "flops", "time", "none")


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = (
        "a config, a run's folder, a spec, a preset, or quickstart; a study (.toml); or a study's folder to go on with"
    )
    option(parser, "base", words, "BASE")
    asked = parser.add_argument_group("what is compared")
    words = "an axis and its values: a dotted name of the spec or the config, or lr, a factor on all learning rates"
    many: dict[str, Any] = {"action": "append", "default": []}
    option(asked, "--vary", words, axis, metavar="NAME=V1,V2", **many)
    flag(asked, "--grid", "all combinations of the axes (one axis at a time)")
    words = "leave a feature of the base out: the plain value takes its place, or the one that is given"
    option(asked, "--leave-out", words, left_out, metavar="NAME[=VALUE]", **many)
    option(asked, "--match", "what every variant has in common with the base (none)", TARGETS)
    words = "what is solved for to get there: ffn.width, width, depth, steps; several between commas (ffn.width)"
    option(asked, "--by", words, names, metavar="NAME")
    words = "how far off the target a variant may be, e.g. 0.01 (0.005; of a measured time 0.03)"
    option(asked, "--tolerance", words, number(above=0, most=1), metavar="SHARE")
    option(asked, "--lengths", "also measure the held-out loss in rows of these lengths", numbers(int), metavar="N,N")
    words = "first find the best of these factors on all learning rates, for each variant; its cost is counted"
    option(asked, "--tune-lr", words, numbers(float), metavar="F,F")
    add_set(parser, "the base, in all variants", "stages.length=512")
    add_run_options(parser)


def _run(given: argparse.Namespace) -> int:
    """Plan, train, compare."""
    from anyformer.lab.study import Study

    asked = read_base(given.base)
    override(asked, given)
    asked.data.update(_choices(asked.data, given))
    study = Study.from_data(asked.data, asked.source)
    folder = place_of(asked, given, study, [*study.axes(), *(each.name for each in study.variants)])
    return carry_out(with_data(study, folder, given), folder, given)


def _choices(data: dict[str, Any], given: argparse.Namespace) -> Iterator[tuple[str, Any]]:
    """The keys of a study that options say, and their values."""
    if given.leave_out and (given.vary or given.grid):
        raise InputError("--leave-out: is a study of its own; give either --leave-out, or --vary")
    axes = given.vary or given.leave_out
    twice = [name for name, _ in axes if [other for other, _ in axes].count(name) > 1]
    if twice:
        raise InputError(f"--vary: {twice[0]} is given twice; write its values with commas between them")
    if axes:
        yield "vary", {name: list(values) for name, values in axes}
        yield "design", "leave-one-out" if given.leave_out else "one"
    if given.grid:
        yield "design", "grid"
    chosen = {"to": given.match, "by": given.by, "tolerance": given.tolerance}
    match = dict(data.get("match") or {}) | {name: value for name, value in chosen.items() if value is not None}
    unused = [f"--{name}" for name in ("by", "tolerance") if chosen[name] is not None]
    if unused and match.get("to", "none") == "none":
        raise InputError(f"{unused[0]}: nothing is matched, so there is nothing to solve for; add --match flops")
    if match:
        yield "match", match
    if given.lengths is not None:
        # The length of the metric is measured too, whatever else is.
        at = AT_LENGTH.fullmatch(str(data.get("metric", "")))
        lengths = [*given.lengths, *([int(at[1])] if at and int(at[1]) not in given.lengths else [])]
        yield "measure", {**(data.get("measure") or {}), "lengths": lengths}
    if given.tune_lr is not None:
        yield "tune", {**(data.get("tune") or {}), "factors": given.tune_lr}


COMMAND = Command("ablate", "variants of a model at matched cost, compared with statistics", __doc__, _arguments, _run)
