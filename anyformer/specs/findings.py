"""What is wrong with a spec, as values, and the checks that most rules are made of."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from anyformer.specs.axes import Leaf
from anyformer.specs.codec import join
from anyformer.specs.formulas import Scale, ScaleTextError, evaluate

if TYPE_CHECKING:
    pass

HEAD_SIZES = ("attention.heads", "attention.kv_heads", "attention.head_dim")
SIZES = ("width", "depth", "context", "embed.width", *HEAD_SIZES, "ffn")
"""What the sizes of a layer are made of."""
WIDEST = 2**20
"""No published model is wider than a fiftieth of it."""


class Finding(NamedTuple):
    """A problem, and the other paths that the rule read: if one of those is wrong already, there is nothing to say."""

    path: str
    message: str
    reads: tuple[str, ...] = ()


Findings = Iterator[Finding]


def at_least(path: str, value: float | None, least: float) -> Findings:
    """A size must reach its least value."""
    if value is not None and value < least:
        yield Finding(path, f"{value} is not at least {least}")


def size(path: str, value: int | None) -> Findings:
    """A size must be at least 1, and not beyond all reason: lists of such a length are made, and divisors looked for."""
    yield from at_least(path, value, 1)
    if value is not None and value > WIDEST:
        yield Finding(path, f"{value} is more than {WIDEST}, the largest that is taken for a size")


def above_zero(path: str, value: float | None) -> Findings:
    """A cap or a width of a distribution must be above 0."""
    if value is not None and value <= 0:
        yield Finding(path, f"{value} is not above 0")


def share(path: str, value: float) -> Findings:
    """A share that may be nothing but not all."""
    if not 0 <= value < 1:
        yield Finding(path, f"{value} is not in [0, 1)")


def leaf(path: str, node: Leaf | None) -> Findings:
    """What a leaf says of itself."""
    return (Finding(join(path, name), message) for name, message in (node.problems() if node is not None else ()))


def factor(path: str, scale: Scale, names: Mapping[str, float], reads: tuple[str, ...]) -> Findings:
    """A scale must be readable, and not erase what it multiplies."""
    try:
        if evaluate(scale, names) == 0:
            yield Finding(path, "is 0, which would erase what it multiplies", reads)
    except ScaleTextError as error:
        yield Finding(path, str(error), reads)


def divisors(n: int) -> list[int]:
    """Every whole number that divides n."""
    small = [d for d in range(1, math.isqrt(max(n, 0)) + 1) if n % d == 0]
    return sorted({*small, *(n // d for d in small)})
