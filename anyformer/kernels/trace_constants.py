"""Functions of plain values that are called while code is traced: their answers are constants of the compiled code."""

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

from anyformer.kernels.cuda_graph import hold
from anyformer.specs.patterns import Both, Either, Pair, Pattern

Function = TypeVar("Function", bound=Callable[..., Any])
Answer = TypeVar("Answer")


def constant(function: Function) -> Function:
    """Mark a function of numbers, texts and tuples of them."""
    # What torch.compiler.assume_constant_result does; calling that would import the compiler, which takes seconds.
    function.__dict__["_dynamo_marked_constant"] = True
    return function


def written(pattern: Pattern) -> tuple[Any, ...]:
    """A pattern as a tuple, since a compiler takes no object for a constant."""
    if isinstance(pattern, Pair):
        return "&" if isinstance(pattern, Both) else "|", written(pattern.first), written(pattern.second)
    fields: Any = pattern
    return pattern.kind, *((name, getattr(fields, name)) for name in fields.__dataclass_fields__)


def read(text: tuple[Any, ...]) -> Pattern:
    """The pattern that was written."""
    kind, *rest = text
    if kind in ("&", "|"):
        first, second = (read(part) for part in rest)
        return (Both if kind == "&" else Either)(first=first, second=second)
    leaf: Any = Pattern.named(kind)
    return leaf(**dict(rest))


def ask(function: Callable[..., Answer], pattern: Pattern, *rest: Any) -> Answer:
    """`function(pattern, *rest)`, with plain values beside the pattern: asked once, and a constant of compiled code."""
    if torch.compiler.is_compiling():
        return _ask_while_tracing(function, written(pattern), *rest)
    return _ask(function, pattern, *rest)


@functools.lru_cache(maxsize=512)
def _ask(function: Callable[..., Answer], pattern: Pattern, *rest: Any) -> Answer:
    return function(pattern, *rest)


@constant
def _ask_while_tracing(function: Callable[..., Answer], pattern: tuple[Any, ...], *rest: Any) -> Answer:
    return _ask(function, read(pattern), *rest)


@functools.lru_cache(maxsize=1024)
def _table(make: Callable[..., Any], names: tuple[Any, ...], device: torch.device) -> Tensor:
    # Also for passes with gradients, which could not keep what was made in inference mode.
    with torch.inference_mode(False):
        return torch.as_tensor(make(*names)).to(device)


@constant
def constant_table(make: Callable[..., Any], names: tuple[Any, ...], device: torch.device) -> Tensor:
    """The array or tensor `make(*names)`: made once for each device, and not traced while a model is compiled. Nothing may
    be copied to a device while its work is recorded.
    """
    return hold(_table(make, names, device))
