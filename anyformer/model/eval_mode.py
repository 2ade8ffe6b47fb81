"""Reading without learning: every module in eval mode, and logits only where they are wanted."""

import copy
import threading
from typing import Self
from weakref import WeakKeyDictionary

from torch import nn

from anyformer.model.model import Model

_readers: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
"""How many read a module that was in training mode before: streams may overlap, and threads too."""
_counting = threading.Lock()


class eval_mode:
    """Eval mode, so that nothing is dropped; when the last reader is done every module has its own mode again."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self._held: list[nn.Module] = []

    def __enter__(self) -> Self:
        with _counting:
            self._held = [module for module in self.model.modules() if module.training or module in _readers]
            for module in self._held:
                _readers[module] = _readers.get(module, 0) + 1
                module.training = False
        return self

    def __exit__(self, *error: object) -> None:
        with _counting:
            for module in self._held:
                _readers[module] -= 1
                if not _readers[module]:
                    del _readers[module]
                    module.training = True
            self._held = []

    @property
    def holds(self) -> bool:
        """Whether a module was in training mode, or is read by others who will put it back."""
        return bool(self._held)


def without_head(model: Model) -> Model:
    """The same modules and parameters without the head: outputs have `hidden`, which `model.head` reads, and no logits.

    Nothing is copied but the outermost shell, and `model` itself stays as it is.
    """
    shell = copy.copy(model)
    shell._modules = {**model._modules, "head": None}
    return shell
