"""Stages: which sizes a step has, and the same weights in a model whose architecture a stage changes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import nn

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.optim.schedule import Schedule
from anyformer.specs.model import ModelSpec
from anyformer.train.config import Config, Stage
from anyformer.train.run_state import RunState


class Place(NamedTuple):
    """Where a step of the run is."""

    number: int
    stage: Stage
    step: int
    """Counted from the beginning of the stage."""


def place_of(stages: Sequence[Stage], step: int) -> Place:
    """The stage of a step, counted from 0; a step after the end belongs to the last one."""
    first = 0
    for index, stage in enumerate(stages):
        if step < first + stage.steps or index == len(stages) - 1:
            return Place(index, stage, step - first)
        first += stage.steps
    raise InputError("there is no stage")


def restaged(model: Model, spec: ModelSpec) -> Model:
    """A model of another spec with the very parameters of this one, so that optimizers go on with them."""
    if spec == model.spec:
        return model
    like = next(model.parameters())
    made = empty_model(spec, like.device, like.dtype)
    modules: dict[str, nn.Module] = dict(made.named_modules())
    for name, parameter in model.named_parameters():
        above, _, last = name.rpartition(".")
        modules[above]._parameters[last] = parameter
    made.train(model.training)
    made.family = model.family
    return made


Totals = list[list[int]]
"""From which step on the schedule was that of a run of how many steps."""


@dataclass(frozen=True, kw_only=True)
class Extension:
    """A run that goes on further than it was to go. The steps that are done keep their stage and their batch."""

    keys: frozenset[str]
    """Names of the config in which it differs from what the checkpoint was made by."""
    totals: Totals
    words: str
    """What is otherwise than in a run of so many steps from the start; empty: nothing."""


def extension(before: RunState, config: Config) -> Extension | None:
    """How a config adds steps to the run of a checkpoint; None if it does not, or if a step that is done would change."""
    names = (f"stages[{i}].steps" for i in itertools.count())
    written = itertools.takewhile(lambda name: isinstance(before.config.get(name), str), names)
    old = [int(json.loads(before.config[name])) for name in written]
    new = [stage.steps for stage in config.stages]
    if not old or len(new) < len(old) or sum(new) <= sum(old) or any(a > b for a, b in zip(old, new, strict=False)):
        return None
    ended = 0
    for was, steps in zip(old, new, strict=False):
        ended += was
        if was != steps and ended < before.step:
            return None
    keys = {f"stages[{i}].steps" for i in range(len(old)) if old[i] != new[i]}
    keys |= {f"stages[{i}]" for i in range(len(old), len(new))}
    # A run that was never extended has one total.
    totals = [list(each) for each in before.totals] or [[0, sum(old)]]
    extended = [*(each for each in totals if each[0] < before.step), [before.step, sum(new)]]
    words = _words(config.schedule, totals, before.step, sum(new))
    return Extension(keys=frozenset(keys), totals=extended, words=words)


def _words(schedule: Schedule, totals: Sequence[Sequence[int]], step: int, total: int) -> str:
    """What the schedule does at the seam."""
    ends = [first for first, _ in totals[1:]] + [step]
    same = all(
        schedule.factor(i, was) == schedule.factor(i, total)
        for (first, was), end in zip(totals, ends, strict=True)
        for i in range(first, min(end, step))
    )
    if same or not step:
        return ""
    was = totals[-1][1]
    last, first = schedule.factor(step - 1, was), schedule.factor(step, total)
    return (
        f"goes on to {total:,} steps, and was begun with {totals[0][1]:,}. What the schedule ({schedule.kind}) does "
        f"depends on the end, so the steps so far were those of a run of {was:,}; from step {step + 1:,} on they are those "
        f"of a run of {total:,}: the factor on the learning rates goes from {last:.3g} to {first:.3g}. It will not end as "
        f'{total:,} steps from the start would. A run can be extended exactly by schedule.kind = "constant" with a '
        'warmup in steps, and by "wsd" with spans in steps before it goes down'
    )
