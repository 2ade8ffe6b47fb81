"""Large numbers for people: 8.03 B parameters, 16.1 GB, 15.2 GFLOP."""

import itertools
import math
from collections.abc import Iterable

STEPS = ("", "k", "M", "G", "T", "P", "E", "Z")


def short(value: float, unit: str = "", *, steps: tuple[str, ...] = STEPS) -> str:
    """Three digits and a step of a thousand; whole numbers below a thousand as they are."""
    size, step = abs(value), 0
    while step + 1 < len(steps) and float(f"{size:.3g}") >= 1000:
        size, step = size / 1000, step + 1
    places = 0
    if not (step == 0 and size == round(size)):
        places = max(0, 2 - math.floor(math.log10(float(f"{size:.3g}"))))
    return f"{'-' if value < 0 else ''}{size:.{places}f} {steps[step]}{unit}".rstrip()


def params(n: int) -> str:
    """A number of parameters: 8.03 B."""
    return short(n, steps=("", "k", "M", "B", "T"))


def data(n: float) -> str:
    """Bytes: 16.1 GB."""
    return short(n, "B")


def flops(n: float) -> str:
    """Arithmetic: 15.2 GFLOP."""
    return short(n, "FLOP")


def tokens(n: int) -> str:
    """A length in tokens: 8k if it is a multiple of 1024, 2,000 if not."""
    return f"{n // 1024}k" if n >= 1024 and n % 1024 == 0 else f"{n:,}"


def ranges(indices: Iterable[int]) -> list[str]:
    """Runs of consecutive numbers: ["0-4", "6"]."""
    # Along a run of consecutive numbers, each is as far from its place in the list as the next.
    grouped = itertools.groupby(enumerate(sorted(indices)), lambda pair: pair[1] - pair[0])
    runs = [[i for _, i in run] for _, run in grouped]
    return [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]


def percent(part: float, whole: float) -> str:
    """A share: 16.7%."""
    share = 100 * part / whole if whole else 0.0
    return "<0.1%" if 0 < share < 0.05 else f"{share:.1f}%"


def ratio(before: float, after: float) -> str:
    """How many times as much: `x 0.5`; empty if there was nothing before."""
    if before == after:
        return "same"
    return f"x {after / before:.3g}" if before else ""
