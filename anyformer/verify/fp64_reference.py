"""The public classes in full double precision: they keep norms, angles and softmax in fp32 whatever their weights are."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

NARROW = (torch.float32, torch.bfloat16, torch.float16)


class Lift(TorchFunctionMode):
    """Whatever code asks to be narrower is fp64 instead."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.float, torch.Tensor.half, torch.Tensor.bfloat16):
            return args[0].double()
        wide = [torch.float64 if _narrow(value) else value for value in args]
        named = {name: torch.float64 if _narrow(value) else value for name, value in (kwargs or {}).items()}
        return func(*wide, **named)


def _narrow(value: Any) -> bool:
    # A tensor must not be compared with a dtype by ==.
    return isinstance(value, torch.dtype) and value in NARROW


@contextmanager
def lifted(dtype: torch.dtype) -> Iterator[None]:
    """Everything in fp64, numbers that a class makes from whole ones too, if that is the dtype; else as it is."""
    if dtype != torch.float64:
        yield
        return
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with Lift():
            yield
    finally:
        torch.set_default_dtype(before)
