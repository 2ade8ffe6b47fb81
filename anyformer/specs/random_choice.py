"""Draws without replacement as plain arithmetic, so that numbers, arrays and tensors draw the same."""

from collections.abc import Iterable
from typing import Any

LARGEST = (1 << 31) - 1
"""31 bits. The lower ones of a product are right even where it overflows 32 bits."""
SPREAD, MIX = 0x5BD1E995, 0x27D4EB2D
"""Odd multipliers that carry every bit of a number into the higher ones."""


def scramble(*values: Any) -> Any:
    """A number of 31 bits that depends on all values and their order."""
    state: Any = 0x2545F491
    for value in values:
        state = ((state ^ value) * SPREAD) & LARGEST
        state = state ^ (state >> 13)
        state = (state * MIX) & LARGEST
        state = state ^ (state >> 16)
    return state


def draw(count: int, among: Any, keys: Iterable[Any]) -> list[Any]:
    """`count` distinct numbers below `among`, in order, drawn by these keys; -1 where there are no more."""
    drawn: list[Any] = []
    start = scramble(*keys)
    for j in range(count):
        left = among - j
        left = left + (1 - left) * (left < 1)
        # One of those that are left, counted without the ones that were taken, which are in order.
        new = scramble(start, j) % left
        for taken in drawn:
            new = new + (new >= taken)
        for i, taken in enumerate(drawn):
            smaller = taken + (new - taken) * (new < taken)
            drawn[i], new = smaller, new + taken - smaller
        drawn.append(new)
    return [number - (number + 1) * (number >= among) for number in drawn]


def among(number: Any, some: list[Any]) -> Any:
    """Whether a number is one of some."""
    found = number == some[0]
    for other in some[1:]:
        found = found | (number == other)
    return found
