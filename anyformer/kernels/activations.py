"""Activations in plain torch, by the names that specs and fused kernels have for them (`specs.axes.Activation`)."""

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional as F

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "none": lambda x: x,
    "sigmoid": torch.sigmoid,
    "silu": F.silu,
    "relu": torch.relu,
    "relu2": lambda x: x.relu().square(),
    "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_quick": lambda x: x * (1.702 * x).sigmoid(),
}
