"""Largest: the largest tensor that any operation made, forward and backward."""

from typing import Any

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Largest(TorchDispatchMode):
    """Counts elements of what memory holds: a view counts as what it views."""

    numel = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(out):
            if isinstance(leaf, Tensor):
                self.numel = max(self.numel, leaf.untyped_storage().nbytes() // leaf.element_size())
        return out
