"""Another architecture for a model that is spread: its modules stay, because the engine knows them, and change."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.parts.leaf_module import LeafModule
from anyformer.specs.model import ModelSpec
from anyformer.train.distributed.tp_plan import constants, divided

KEPT = {"training", "return_logits", "way"}
"""What belongs to the run and not to the spec."""


def check_stages(model: Model, specs: list[ModelSpec], tensor: int) -> None:
    """Refuse stages whose modules are others than the model's."""
    for i, spec in enumerate(specs):
        made = _fresh(spec, tensor)
        strange = _differing(model, made)
        if strange:
            raise InputError(
                f"stages[{i}].spec: over several processes a stage keeps the modules of the model, but {strange[0]} "
                f"would be another; train on one process, or leave it as it is"
            )


def _fresh(spec: ModelSpec, tensor: int) -> Model:
    with torch.device("meta"):
        return Model(divided(spec, tensor))


def _differing(model: nn.Module, made: nn.Module) -> list[str]:
    have, want = dict(model.named_modules()), dict(made.named_modules())
    found = sorted(have.keys() ^ want.keys())
    # The engine gives modules a class of its own, made from theirs.
    found += [name for name, module in want.items() if name in have and not isinstance(have[name], type(module))]
    held = {n: m for n, m in want.items() if isinstance(m, LeafModule)}
    found += [n for n, m in held.items() if n in have and m._buffers.keys() != have[n]._buffers.keys()]
    return found


def restage(model: Model, spec: ModelSpec, tensor: int, index: int) -> None:
    """Let the modules of a model compute what another spec says, with the parameters that they have.

    Process `index` of those that share products keeps its part of what goes by heads.
    """
    if spec == model.spec:
        return
    mine = {(place, name): part for place, name, part in constants(spec, tensor, index)} if tensor > 1 else {}
    have: dict[str, nn.Module] = dict(model.named_modules())
    for place, new in _fresh(spec, tensor).named_modules():
        old = have[place]
        for name, value in vars(new).items():
            if name not in KEPT and not name.startswith("_") and not isinstance(value, nn.Module):
                vars(old)[name] = value
        if isinstance(old, LeafModule) and isinstance(new, LeafModule):
            values: dict[str, Any] = new._constants
            for name, numbers in values.items():
                old.replace(name, mine.get((place, name), numbers))
