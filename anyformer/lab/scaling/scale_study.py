"""A study of scale: its variants are the sizes of a ladder, each trained on tokens in proportion to its parameters.

Beside the base there may be other choices, each with a ladder of the same sizes, and every size may be trained with
several learning rates. Names of variants say which is which: `1.2M`, `1.2M, position=alibi`, `1.2M, lr=2`. Loads no torch.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from statistics import mean
from typing import Any

from anyformer.errors import AnyformerError, InputError
from anyformer.lab.plan import Plan
from anyformer.lab.results import BASE, Results, VariantResult
from anyformer.lab.scaling.ladder import End, size_changes, tokens_for
from anyformer.lab.scaling.laws import Advantage, Fit, Point, fit, still_wins
from anyformer.lab.scaling.lr_transfer import Transfer, TransferPoint, obstacles, transfer
from anyformer.lab.study import Bundle, Study, dotted
from anyformer.lab.variants import LR, Run, changed, label, read_base, split
from anyformer.specs.model import ModelSpec
from anyformer.specs.number_format import params as shown
from anyformer.specs.overrides import Overrides

NAMED = re.compile(r"(?P<size>[0-9.]+[kMBT]?)(?:, (?P<choice>.*?))??(?:, lr=(?P<rate>[^,=]+))?")
FURTHER = 10.0
"""A law is extended to so many times the compute of the largest size, unless told otherwise."""
RATE = "optim.matrices"


def scale_study(
    study: Study,
    *,
    sizes: int,
    factor: float,
    per_param: float,
    end: End = "largest",
    choices: Mapping[str, Sequence[Any]] | None = None,
    rates: Sequence[float] = (),
) -> Study:
    """A study with the sizes of a ladder as its variants; `study` says the base, its data and all else.

    `choices` are values by dotted names, each a ladder of its own, and `rates` factors on all learning rates.
    """
    run = read_base(study)
    kinds = [{}, *({name: value} for name, values in (choices or {}).items() for value in values)]
    changes = size_changes(run.spec, sizes, factor, end=end)
    taken = {name for size in changes for name in size} | {LR}
    if clash := [name for name in choices or () if name in taken or name.startswith("stages")]:
        how = "--lr tries learning rates" if clash[0] == LR else "it is what the sizes of a ladder differ in"
        raise InputError(f"--vary: {clash[0]} can't be a choice here, {how}; leave it out")
    widths = [size.get("width", run.spec.width) for size in changes]
    if rates and len(set(widths)) < len(widths):
        raise InputError(f"--lr: two sizes have the same width ({', '.join(map(str, widths))}); take a larger --factor")
    bundles: list[Bundle] = []
    base_steps: dict[str, Any] = {}
    for size in changes:
        name = _brief(run.spec.vary(size) if size else run.spec)
        for choice in kinds:
            spec_changes, config_changes, _, _ = split({**size, **choice})
            made = changed(run, spec_changes, config_changes)
            steps = _steps(made, made.spec, per_param)
            for rate in rates or (1.0,):
                own = {**size, **choice, **steps} | ({} if rate == 1 else {LR: rate})
                parts = [name, label(choice), "" if rate == 1 else label({LR: rate})]
                if not size and not choice and rate == 1:
                    # The base itself is a size of the ladder.
                    base_steps = steps
                else:
                    bundles.append(Bundle(name=", ".join(filter(None, parts)), set=Overrides.of(own)))
    title = study.title or f"Scaling of {study.base}"
    given = Overrides.of(dotted(study.set) | base_steps)
    return replace(study, title=title, set=given, variants=tuple(bundles))


def check_ladder(study: Study) -> None:
    """Refuse a study that is none of scale."""
    strange = [*study.axes(), *(each.name for each in study.variants if not NAMED.fullmatch(each.name))]
    if strange:
        raise InputError(f"{strange[0]!r} is no size of a ladder; read this study with anyformer ablate")


def _brief(spec: ModelSpec) -> str:
    return shown(spec.count().params).replace(" ", "")


def _steps(run: Run, spec: ModelSpec, per_param: float) -> dict[str, Any]:
    """The steps in which a size reads its tokens; several stages keep their shares."""
    stages = run.config.stages
    now = sum(stage.steps * stage.batch * stage.length for stage in stages)
    times = tokens_for(spec, per_param) / now
    return {f"stages.{i}.steps": max(1, round(stage.steps * times)) for i, stage in enumerate(stages)}


@dataclass(frozen=True, kw_only=True)
class Rung:
    """A variant of a study of scale, and what its name says."""

    variant: VariantResult
    size: str
    choice: str
    rate: float
    """Factor on the learning rates."""
    width: int
    depth: int
    losses: dict[int, float]
    """By seed, of finished runs."""

    @property
    def points(self) -> list[Point]:
        compute = self.variant.train_flops
        return [Point(compute=compute, loss=loss, seed=seed) for seed, loss in self.losses.items() if loss > 0]


@dataclass(frozen=True, kw_only=True)
class Ladder:
    """All sizes of one choice, at the best of their learning rates."""

    choice: str
    rungs: list[Rung]
    fit: Fit | None
    reason: str = ""
    """Why there is no law."""

    @property
    def points(self) -> list[Point]:
        return [point for rung in self.rungs for point in rung.points]


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """What a study of scale found."""

    at: float
    """Compute (FLOPs) that laws are extended to."""
    ladders: list[Ladder]
    """The base's first."""
    advantages: dict[str, Advantage] = field(default_factory=dict)
    """Of each other choice beside the base."""
    transfer: Transfer | None = None
    words: list[str] = field(default_factory=list)

    def to_data(self) -> dict[str, Any]:
        """For JSON, without what is drawn at random."""
        return {
            "to": self.at, "words": self.words,
            "laws": [_ladder_data(each, self.at) for each in self.ladders],
            "advantages": {name: asdict(each) for name, each in self.advantages.items()},
            "transfer": None if self.transfer is None else asdict(self.transfer),
        }  # fmt: skip


def _ladder_data(ladder: Ladder, at: float) -> dict[str, Any]:
    sizes = [
        {
            "name": each.variant.name, "size": each.size, "width": each.width, "depth": each.depth,
            "params": each.variant.params, "tokens": each.variant.steps * each.variant.tokens_per_step,
            "train_flops": each.variant.train_flops, "lr": each.rate, "losses": each.losses,
        }
        for each in ladder.rungs
    ]  # fmt: skip
    law = None
    if ladder.fit is not None:
        names = ("irreducible", "coefficient", "exponent", "told", "intervals", "scatter", "warnings", "words")
        law = {name: getattr(ladder.fit, name) for name in names}
        law["extended"] = dict(zip(("mean", "low", "high"), ladder.fit.predict(at), strict=True))
    return {"choice": ladder.choice or BASE, "sizes": sizes, "law": law, "reason": ladder.reason}


def read_scaling(results: Results, plan: Plan, at: float | None = None) -> Scaling:
    """The laws of a finished study of scale, extended to compute `at` (10 times that of the largest size)."""
    every = _rungs(results, plan)
    ladders = [_ladder(choice, [each for each in every if each.choice == choice])
               for choice in dict.fromkeys(each.choice for each in every)]  # fmt: skip
    largest = max(each.variant.train_flops for each in every)
    at = at or FURTHER * largest
    advantages: dict[str, Advantage] = {}
    for other in ladders[1:]:
        if len(other.points) and len(ladders[0].points):
            advantages[other.choice] = still_wins(ladders[0].points, other.points, at, name=other.choice)
    found = Scaling(at=at, ladders=ladders, advantages=advantages)
    moved, why = _transfer(results, plan, every)
    told = [f"{moved.words[0].upper()}{moved.words[1:]}."] if moved else []
    return replace(found, transfer=moved, words=[*_words(found), *told, *why])


def _rungs(results: Results, plan: Plan) -> list[Rung]:
    """What the names of variants say. The base is a size too, the one whose parameters it has."""
    sizes = {each.name: each.config["model"]["spec"] for each in plan.variants}
    own = shown(plan.variants[0].params).replace(" ", "")
    found: list[Rung] = []
    for variant in results.variants:
        said = NAMED.fullmatch(own if variant.name == BASE else variant.name)
        if said is None or variant.name not in sizes:
            raise InputError(f"{variant.name!r} is no size of a ladder; read this study with anyformer ablate")
        finished = {run.seed: run.value(results.metric) for run in variant.runs if run.status == "finished"}
        found.append(Rung(
            variant=variant, size=said["size"], choice=said["choice"] or "", rate=float(said["rate"] or 1),
            width=sizes[variant.name]["width"], depth=sizes[variant.name]["depth"],
            losses={seed: loss for seed, loss in finished.items() if loss is not None},
        ))  # fmt: skip
    # From the smallest to the largest, those of the base first.
    return sorted(found, key=lambda each: (each.choice != "", each.variant.params, each.rate))


def _ladder(choice: str, rungs: Sequence[Rung]) -> Ladder:
    """One ladder: of each size the learning rate with the lowest mean loss."""
    best: list[Rung] = []
    for size in dict.fromkeys(each.size for each in rungs):
        some = [each for each in rungs if each.size == size]
        best.append(min(some, key=lambda each: mean(each.losses.values()) if each.losses else math.inf))
    made = Ladder(choice=choice, rungs=best, fit=None)
    try:
        return replace(made, fit=fit(made.points))
    except AnyformerError as error:
        return replace(made, reason=str(error))


def _words(found: Scaling) -> list[str]:
    lines: list[str] = []
    for ladder in found.ladders:
        name = ladder.choice or BASE
        if ladder.fit is None:
            lines.append(f"{name}: {ladder.reason}.")
            continue
        value, low, high = ladder.fit.predict(found.at)
        far = f"{found.at:.3g} FLOPs ({found.at / ladder.fit.largest:.3g} times its largest size)"
        lines.append(f"{name}: {ladder.fit.words}.")
        lines.append(
            f"{name}: with {far} the law expects a loss of {value:.4g} ({low:.4g} to {high:.4g}), if it holds."
        )
    lines += [f"{each.words}." for each in found.advantages.values()]
    return lines


def _transfer(results: Results, plan: Plan, every: Sequence[Rung]) -> tuple[Transfer | None, list[str]]:
    """How the best learning rate goes with the width; or why that can't be said, and what speaks against it."""
    base = [each for each in every if not each.choice]
    if len({each.rate for each in base}) < 2:
        return None, []
    config = plan.variants[0].config
    given = config["optim"]["matrices"]
    points = [
        TransferPoint(width=each.width, rate=each.rate * given, loss=each.losses.get(run.seed, math.inf), seed=run.seed)
        for each in base
        for run in each.variant.runs
    ]
    why: list[str] = []
    if config["optim"].get("base_width"):
        why = [
            f"Against a transfer by width: {each}." for each in obstacles(ModelSpec.from_data(config["model"]["spec"]))
        ]
    try:
        return transfer(points), why
    except AnyformerError as error:
        return None, [f"Whether the best learning rate moves can't be told: {error}.", *why]
