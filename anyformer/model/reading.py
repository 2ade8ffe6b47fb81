"""Reading without learning: every module in eval mode, and logits only where they are wanted."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import contextmanager

from anyformer.model.models import Model


@contextmanager
def reading(model: Model) -> Iterator[None]:
    """Eval mode, so that nothing is dropped; afterwards every module has its own mode again."""
    training = [module for module in model.modules() if module.training]
    try:
        for module in training:
            module.training = False
        yield
    finally:
        for module in training:
            module.training = True


def headless(model: Model) -> Model:
    """The same modules and parameters without the head: outputs have `hidden`, which `model.head` reads, and no logits.

    Nothing is copied but the outermost shell, and `model` itself stays as it is.
    """
    shell = copy.copy(model)
    shell._modules = {**model._modules, "head": None}
    return shell
