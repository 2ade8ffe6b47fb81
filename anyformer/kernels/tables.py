"""Tables of numbers that a pattern or a mixer looks up: made once for each device, and a constant to the compiler."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.kernels.cuda_graph import hold


@functools.lru_cache(maxsize=1024)
def _table(make: Callable[..., Any], names: tuple[Any, ...], device: torch.device) -> Tensor:
    # Also for passes with gradients, which could not keep what was made in inference mode.
    with torch.inference_mode(False):
        return torch.from_numpy(make(*names)).to(device)


@torch.compiler.assume_constant_result
def constant(make: Callable[..., Any], names: tuple[Any, ...], device: torch.device) -> Tensor:
    """The array `make(*names)` as a tensor. While a model is compiled it is made at once, and not traced."""
    return hold(_table(make, names, device))
