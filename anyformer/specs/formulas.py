"""Scales: a number, or a short formula over a layer's sizes such as `1/sqrt(head_dim)`.

Published models write the same constant in many ways (d^-1/2, 1/d, 144^-1/2, sqrt(width)); a formula keeps
following the sizes when a spec is varied.
"""

import ast
import math
from collections.abc import Mapping

Scale = float | str


class ScaleTextError(ValueError):
    """A scale formula that can't be read."""


def evaluate(scale: Scale, names: Mapping[str, float]) -> float:
    """The number that a scale stands for in a layer whose sizes are `names`."""
    try:
        number = _value(ast.parse(scale.strip(), mode="eval").body, names) if isinstance(scale, str) else float(scale)
        if not math.isfinite(number):
            raise ScaleTextError
    except (SyntaxError, ValueError, ArithmeticError, RecursionError, MemoryError) as error:
        raise ScaleTextError(
            f"{scale!r} is not a scale; give a number or a formula of sqrt, *, / and {', '.join(names)}, "
            "such as '1/sqrt(head_dim)'"
        ) from error
    return number


def _value(node: ast.expr, names: Mapping[str, float]) -> float:
    match node:
        case ast.Constant(value=int() | float() as number) if not isinstance(number, bool):
            return float(number)
        case ast.Name(id=name) if name in names:
            return float(names[name])
        case ast.BinOp(left=left, op=ast.Div(), right=right):
            return _value(left, names) / _value(right, names)
        case ast.BinOp(left=left, op=ast.Mult(), right=right):
            return _value(left, names) * _value(right, names)
        case ast.Call(func=ast.Name(id="sqrt"), args=[inner], keywords=[]):
            return math.sqrt(_value(inner, names))
        case _:
            raise ScaleTextError
