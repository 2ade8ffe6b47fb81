"""In what numbers a model learns: the dtype of its weights, and that of the products in a step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

import torch

from anyformer.errors import InputError


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Weights, their gradients and the optimizer's state are in one dtype; products may be in a smaller one."""

    weights: Literal["float32", "bfloat16", "float64"] = "float32"
    autocast: Literal["none", "bfloat16"] = "none"
    """What products run in while the weights keep their dtype."""
    tf32: bool = False
    """Whether fp32 products on a CUDA device may round their factors to 11 bits, which is several times as fast."""

    def __post_init__(self) -> None:
        if self.weights not in ("float32", "bfloat16", "float64"):
            raise InputError(f"precision.weights: {self.weights!r} is unknown (known: float32, bfloat16, float64)")
        if self.autocast not in ("none", "bfloat16"):
            raise InputError(f"precision.autocast: {self.autocast!r} is unknown (known: none, bfloat16)")
        if self.autocast != "none" and self.weights != "float32":
            raise InputError(
                f"precision.autocast: the weights are {self.weights}, and it is float32 that products are cast from; "
                "leave autocast out, or keep the weights in float32"
            )

    @property
    def dtype(self) -> torch.dtype:
        """Of the weights."""
        return {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}[self.weights]

    @contextmanager
    def step(self, device: torch.device, *, keep: bool = True) -> Iterator[None]:
        """Around the forward pass of a step; outside of it nothing is changed. What was cast there is cast in its
        backward pass too; how products round is not, so both passes need `products` around them.

        `keep`: weights that were cast are kept to the end of the pass, in case it reads them again.
        """
        lower = self.autocast == "bfloat16"
        with self.products(device), torch.autocast(device.type, torch.bfloat16, enabled=lower, cache_enabled=keep):
            yield

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """Around all products of a step, forward and backward: a kernel looks at it when it is launched."""
        before = torch.get_float32_matmul_precision()
        if device.type == "cuda" and self.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            if torch.get_float32_matmul_precision() != before:
                torch.set_float32_matmul_precision(before)
