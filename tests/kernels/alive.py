"""How much memory tensors hold at once, on any device."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode


class Alive(TorchDispatchMode):
    """The largest number of bytes that tensors made inside hold at once."""

    def __init__(self):
        super().__init__()
        self.held, self.peak = {}, 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        for tensor in torch.utils._pytree.tree_leaves(found):
            if isinstance(tensor, torch.Tensor):
                storage = tensor.untyped_storage()
                self.held[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self.held = {key: (ref, size) for key, (ref, size) in self.held.items() if not ref.expired()}
        self.peak = max(self.peak, sum(size for _, size in self.held.values()))
        return found
