"""Stages: which sizes a step has, and the same weights in a model whose architecture a stage changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from torch import nn

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.model.native_checkpoint import empty_model
from anyformer.specs.model import ModelSpec
from anyformer.train.config import Stage


class Place(NamedTuple):
    """Where a step of the run is."""

    number: int
    """Of its stage."""
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
    made.return_logits, made.family = model.return_logits, model.family
    return made
