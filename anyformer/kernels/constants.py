"""Functions of plain values that are called while code is traced: their answers are constants of the compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

Function = TypeVar("Function", bound=Callable[..., Any])


def constant(function: Function) -> Function:
    """Mark a function that looks at no tensor."""
    # What torch.compiler.assume_constant_result does; calling that would import the compiler, which takes seconds.
    function.__dict__["_dynamo_marked_constant"] = True
    return function
