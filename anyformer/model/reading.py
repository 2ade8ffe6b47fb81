"""Reading without learning: every module in eval mode, and logits only where they are wanted."""

from __future__ import annotations

import copy
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakKeyDictionary

from torch import nn

from anyformer.model.models import Model

_readers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many read a module that was in training mode before: streams may overlap, and threads too."""
_counting = threading.Lock()


@contextmanager
def reading(model: Model) -> Iterator[None]:
    """Eval mode, so that nothing is dropped; when the last reader is done every module has its own mode again."""
    with _counting:
        held = [module for module in model.modules() if module.training or module in _readers]
        for module in held:
            _readers[module] = _readers.get(module, 0) + 1
            module.training = False
    try:
        yield
    finally:
        with _counting:
            for module in held:
                _readers[module] -= 1
                if not _readers[module]:
                    del _readers[module]
                    module.training = True


def headless(model: Model) -> Model:
    """The same modules and parameters without the head: outputs have `hidden`, which `model.head` reads, and no logits.

    Nothing is copied but the outermost shell, and `model` itself stays as it is.
    """
    shell = copy.copy(model)
    shell._modules = {**model._modules, "head": None}
    return shell
