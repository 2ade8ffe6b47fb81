"""Products in the dtype that they are asked for, also where a caller lets torch choose smaller ones."""

import contextlib
from contextlib import AbstractContextManager

import torch
from torch import Tensor


def no_autocast(like: Tensor) -> AbstractContextManager[object]:
    """Autocast switched off on this tensor's device: scores and what follows from them stay in at least fp32."""
    kind = like.device.type
    if kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind):
        return torch.autocast(kind, enabled=False)
    return contextlib.nullcontext()


def product_dtype(x: Tensor) -> torch.dtype:
    """The dtype in which torch would multiply this tensor with a weight."""
    kind = x.device.type
    autocast = kind in ("cpu", "cuda") and torch.is_autocast_enabled(kind)
    return torch.get_autocast_dtype(kind) if autocast else x.dtype
