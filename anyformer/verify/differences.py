"""What checks share: relative differences, progress, and how long the rows of a model can be."""

from collections.abc import Callable

from torch import Tensor

from anyformer.errors import InputError
from anyformer.model.model import Model
from anyformer.specs.model import ModelSpec

Report = Callable[[int, int], None]
"""Called with what is done, and with all there is to do."""


class Progress:
    """Counts what is done, and reports it."""

    def __init__(self, report: Report | None, total: int) -> None:
        self.report, self.total, self.done = report, total, 0

    def tick(self, count: int = 1) -> None:
        self.done += count
        if self.report is not None:
            self.report(self.done, self.total)


def difference(a: Tensor, b: Tensor, scale: float | None = None) -> float:
    """max|a - b| over max|b|, or over another scale; infinite if a number is not finite."""
    a, b = a.double().cpu(), b.double().cpu()
    if not (a.isfinite().all() and b.isfinite().all()):
        return float("inf")
    apart = float((a - b).abs().max())
    return apart / max(float(b.abs().max()) if scale is None else scale, 1e-300) if apart else 0.0


def positions_for(model: Model, wanted: int | None) -> int | None:
    """How many positions all stacks of a model have, if they are enough; None: there is no end of them."""
    limits = [getattr(model, stack.name).limit for stack in model.spec.stacks]
    room = min((limit for limit in limits if limit is not None), default=None)
    if wanted is not None and room is not None and wanted > room:
        raise InputError(f"length: {wanted} is more than the {room} positions that this model has")
    return room


def is_exact(spec: ModelSpec) -> bool:
    """Whether no mixer of a spec is approximate."""
    return all(layer.attention.mixer.exact for stack in spec.stacks for layer in stack.layers)
