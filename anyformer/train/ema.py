"""An average of the weights over the steps of a run, which often predicts better than the last weights do."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.optim.rule import lists, local
from anyformer.train.optim import check, take


class Ema:
    """After t updates: (1 - f) sum of f^(t - i) w_i, divided by 1 - f^t, so that the weights count 1 in all.

    The start of a run, whose weights are noise, has no part in it. The mean is kept in float32 or better.
    """

    def __init__(self, model: Model, factor: float) -> None:
        if not 0 < factor < 1:
            raise InputError(f"ema: {factor:g} is not between 0 and 1")
        self.factor = factor
        self.means: dict[str, Tensor] = {}
        for name, parameter in model.named_parameters():
            # Before the first update the mean is what the weights are.
            self.means[name] = parameter.detach().to(torch.promote_types(parameter.dtype, torch.float32), copy=True)
        # On the host: the weight of a step must not wait for a device.
        self.steps = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def update(self, model: Model) -> None:
        """Take the weights after a step into the mean. A step that was skipped counts its weights once more."""
        self.steps += 1
        weight = (1 - self.factor) / (1 - self.factor ** int(self.steps))
        pairs = [(local(self.means[name]), local(p.detach())) for name, p in model.named_parameters()]
        lists._foreach_lerp_([mean for mean, _ in pairs], [p.to(mean.dtype) for mean, p in pairs], weight)

    @contextmanager
    def used(self, model: Model) -> Iterator[Model]:
        """The model with the mean as its weights, which it gives back at the end."""
        with torch.no_grad():
            before = {name: p.detach().clone() for name, p in model.named_parameters()}
            _set(model, self.means)
        try:
            yield model
        finally:
            with torch.no_grad():
                _set(model, before)

    def state(self) -> dict[str, Tensor]:
        """What is remembered, as `parameter/ema`, and the number of updates. Copy it before the next one."""
        return {f"{name}/ema": mean for name, mean in self.means.items()} | {"ema/steps": self.steps}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state` answered, to the bit."""
        own = self.state()
        check(state, own, "the mean of the weights (run.ema)")
        take(state, own)


def _set(model: Model, values: Mapping[str, Tensor]) -> None:
    for name, parameter in model.named_parameters():
        parameter.detach().copy_(values[name])
