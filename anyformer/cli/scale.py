"""`anyformer scale`: a ladder of sizes, a scaling law fitted to it, and whether a choice that wins small wins larger.

anyformer scale quickstart --sizes 4 --factor 2 --tokens-per-param 5 --seeds 3
anyformer scale recipes/shakespeare.toml --vary ffn.kind=relu2 --vary position.kind=alibi --sizes 5 --to 1e18
anyformer scale quickstart --sizes 3 --lr 0.5,1,2,4 --base-width 64 --tokens-per-param 5
anyformer scale runs/quickstart-scale --to 1e17
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from anyformer.cli.parser import Command, add_set, number, option, whole
from anyformer.cli.study_read import axis, numbers, override, place_of, read_base, with_data
from anyformer.cli.study_run import More, add_run_options, carry_out, table
from anyformer.cli.terminal import text
from anyformer.errors import InputError

if TYPE_CHECKING:
    from anyformer.lab.results import Results
    from anyformer.lab.scaling.scale_study import Scaling
    from anyformer.lab.study import Study

SIZES, FACTOR, PER_PARAM = 4, 2.0, 20.0
LADDER = ("sizes", "factor", "end", "tokens_per_param", "lr", "base_width", "vary")
"""Options that a study has settled once it is begun."""


def _arguments(parser: argparse.ArgumentParser) -> None:
    words = "a config, a run's folder, a spec, a preset, or quickstart; or the folder of a study of scale to go on with"
    option(parser, "base", words, "BASE")
    ladder = parser.add_argument_group("the ladder")
    option(ladder, "--sizes", f"how many sizes; a law needs 4 ({SIZES})", whole(2))
    option(
        ladder,
        "--factor",
        f"parameters of each size to those of the one before ({FACTOR:g})",
        number(above=1),
        metavar="F",
    )
    option(ladder, "--end", "which of the sizes the base is (largest)", ("largest", "smallest"))
    words = f"tokens that a size is trained on, for each of its parameters ({PER_PARAM:g})"
    option(ladder, "--tokens-per-param", words, number(above=0), metavar="N")
    words = "another choice than the base's, with a ladder of the same sizes: is it still ahead at the end?"
    option(ladder, "--vary", words, axis, metavar="NAME=V1,V2", action="append", default=[])
    words = "try these factors on all learning rates at every size: does the best one move with the width?"
    option(ladder, "--lr", words, numbers(float), metavar="F,F,F")
    words = "with --lr: learning rates are given for this width and follow it (optim.base_width)"
    option(ladder, "--base-width", words, whole(1))
    option(
        ladder, "--to", "extend the laws to so many FLOPs (10 times the largest size)", number(above=0), metavar="FLOPS"
    )
    add_set(parser, "the base, in all sizes", "stages.length=512")
    add_run_options(parser, budget=False)


def _run(given: argparse.Namespace) -> int:
    """Train a ladder, and fit laws to it."""
    from anyformer.lab.scaling.scale_study import check_ladder
    from anyformer.lab.study import Study

    asked = read_base(given.base)
    override(asked, given)
    if asked.folder is None and "variants" in asked.data:
        raise InputError(f"BASE: {given.base} is a study with variants of its own; give what the sizes are made of")
    begun = asked.folder is not None
    if begun and (settled := [name for name in LADDER if getattr(given, name) not in (None, [])]):
        raise InputError(
            f"--{settled[0].replace('_', '-')}: {asked.folder} has its ladder already; begin another with --out"
        )
    sizes = given.sizes or SIZES
    if not begun and sizes < 4 and not given.lr:
        raise InputError(
            f"--sizes: {sizes} are too few to tell a law from a line; give 4 or more, or try rates with --lr"
        )
    if given.base_width is not None:
        asked.data.setdefault("set", {})["optim.base_width"] = given.base_width
    # Its variants are made once its data are there; until then it has none, and more than one seed is asked for.
    new = {} if begun else {"seeds": max(2, asked.data.get("seeds", 3)), "variants": []}
    study = Study.from_data(asked.data | new, asked.source)
    if begun:
        check_ladder(study)
    folder = place_of(asked, given, study, ["scale", *(name for name, _ in given.vary)])
    study = with_data(study, folder, given)
    if not begun:
        study = _laddered(study, given, sizes, asked.data.get("seeds", 3))
    return carry_out(study, folder, given, lambda results, place: _extend(results, place, given))


def _laddered(study: Study, given: argparse.Namespace, sizes: int, seeds: int) -> Study:
    from dataclasses import replace

    from anyformer.lab.scaling.scale_study import scale_study

    choices: dict[str, list[Any]] = {}
    for name, values in given.vary:
        choices.setdefault(name, []).extend(values)
    found = scale_study(
        study, sizes=sizes, factor=given.factor or FACTOR, per_param=given.tokens_per_param or PER_PARAM,
        end=given.end or "largest", choices=choices, rates=given.lr or (),
    )  # fmt: skip
    return replace(found, seeds=seeds)


def _extend(results: Results, folder: Path, given: argparse.Namespace) -> More:
    from anyformer.lab.plan import Plan
    from anyformer.lab.run_study import PLOTS
    from anyformer.lab.scaling.scale_study import read_scaling

    plan = Plan.read(folder)
    if plan is None:
        raise InputError(f"{folder}: has no plan; begin it anew")
    found = read_scaling(results, plan, given.to)
    data: dict[str, Any] = {"scaling": found.to_data()}
    if not given.no_plots:
        from anyformer.lab.scaling.plot import draw_scaling

        written = draw_scaling(found, results.title, folder / PLOTS)
        data["scaling"]["pictures"] = [str(place) for place in written]
    return More(page=[_sizes(found), "", *map(text, found.words)], data=data, notes=found.words, alone=True)


def _sizes(found: Scaling) -> Any:
    """A row for each size, at its best learning rate."""
    from anyformer.lab.statistics.estimates import estimate
    from anyformer.lab.statistics.table import estimate_words
    from anyformer.specs.number_format import flops, params, short

    names = ["size", "width", "depth", "params", "tokens", "FLOPs a run", "lr", "held-out loss"]
    rates = any(rung.rate != 1 for ladder in found.ladders for rung in ladder.rungs)
    rows = [
        [
            ", ".join(filter(None, (rung.size, rung.choice))), str(rung.width), str(rung.depth),
            params(rung.variant.params), short(rung.variant.steps * rung.variant.tokens_per_step),
            flops(rung.variant.train_flops), f"x {rung.rate:g}" if rates else "",
            estimate_words(estimate(list(rung.losses.values()))) or "no run finished",
        ]
        for ladder in found.ladders
        for rung in ladder.rungs
    ]  # fmt: skip
    return table(names, rows)


COMMAND = Command("scale", "a ladder of sizes, and the scaling law that it follows", __doc__, _arguments, _run)
