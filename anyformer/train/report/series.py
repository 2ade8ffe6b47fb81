"""What a run measured, as columns of numbers that can be thinned out for a drawing."""

from __future__ import annotations

import math
from array import array
from collections.abc import Mapping
from typing import Any

import numpy as np

COLUMNS = ("step", "loss", "gradient_norm", "rate", "tokens", "seconds", "memory", "skipped", "stage")
MOST = 360
"""Points of a drawn line: more than a screen can tell apart."""

Points = list[tuple[float, float]]


class Series:
    """The steps of a run by column, in little room: a run may have a million of them."""

    def __init__(self) -> None:
        self._columns = {name: array("d") for name in COLUMNS}
        self.terms: dict[str, array[float]] = {}
        """Terms of the loss, with NaN where a step has none."""

    def __len__(self) -> int:
        return len(self._columns["step"])

    def add(self, values: Mapping[str, Any]) -> None:
        """One step."""
        count = len(self)
        for name, column in self._columns.items():
            column.append(_number(values.get(name)))
        terms = values.get("terms") or {}
        for name in terms:
            self.terms.setdefault(name, array("d", [math.nan]) * count)
        for name, column in self.terms.items():
            column.append(_number(terms.get(name)))

    def column(self, name: str) -> Any:
        """The numbers of a column or of a term, NaN where there is none."""
        found = self._columns.get(name, self.terms.get(name))
        return np.array(found if found is not None else [], dtype=np.float64)

    def last(self, name: str) -> float:
        """The newest number of a column, NaN if there is none."""
        column = self._columns[name]
        return column[-1] if column else math.nan

    def curve(self, name: str) -> Points:
        """A column over the steps, as means of neighbours."""
        return thinned(self.column("step"), self.column(name))

    def smooth(self, name: str) -> Points:
        """The same as a running mean over about a fiftieth of the run."""
        steps_N, values_N = _finite(self.column("step"), self.column(name))
        return thinned(steps_N, running_mean(values_N))

    def band(self, name: str) -> list[tuple[float, float, float]]:
        """Least and largest number of neighbouring steps."""
        steps_N, values_N = _finite(self.column("step"), self.column(name))
        starts = _starts(len(steps_N))
        if not len(starts):
            return []
        low, high = np.minimum.reduceat(values_N, starts), np.maximum.reduceat(values_N, starts)
        return list(zip(_means(steps_N, starts).tolist(), low.tolist(), high.tolist(), strict=True))

    def speed(self) -> Points:
        """Tokens of each second, over stretches of the run."""
        steps_N, tokens_N, seconds_N = (self.column(name) for name in ("step", "tokens", "seconds"))
        starts = _starts(len(steps_N), 60)
        if len(starts) < 2:
            return []
        ends = np.append(starts[1:], len(steps_N) - 1)
        spent = seconds_N[ends] - seconds_N[starts]
        learned = tokens_N[ends] - tokens_N[starts]
        sound = (spent > 0) & (learned >= 0)
        return list(
            zip(steps_N[ends][sound].tolist(), (learned / np.where(sound, spent, 1))[sound].tolist(), strict=True)
        )

    def skips(self) -> list[int]:
        """Steps that were left out."""
        steps_N = self.column("step")
        return steps_N[self.column("skipped") == 1].astype(int).tolist()


def thinned(steps_N: Any, values_N: Any, most: int = MOST) -> Points:
    """At most so many points, each the mean of neighbours; what is not finite is left out."""
    steps_N, values_N = _finite(steps_N, values_N)
    starts = _starts(len(steps_N), most)
    return list(zip(_means(steps_N, starts).tolist(), _means(values_N, starts).tolist(), strict=True))


def running_mean(values_N: Any, share: float = 0.02) -> Any:
    """Means over about this share of all numbers, at each end over what there is."""
    count = len(values_N)
    reach = max(1, int(count * share / 2))
    sums = np.concatenate([[0.0], np.cumsum(values_N)])
    places = np.arange(count)
    low, high = np.maximum(places - reach, 0), np.minimum(places + reach + 1, count)
    return (sums[high] - sums[low]) / (high - low)


def _finite(steps_N: Any, values_N: Any) -> tuple[Any, Any]:
    sound = np.isfinite(steps_N) & np.isfinite(values_N)
    return steps_N[sound], values_N[sound]


def _starts(count: int, most: int = MOST) -> Any:
    """Where each of at most so many groups of neighbours begins."""
    return np.unique(np.linspace(0, count, min(count, most), endpoint=False).astype(int))


def _means(values_N: Any, starts: Any) -> Any:
    if not len(starts):
        return np.zeros(0)
    return np.add.reduceat(values_N, starts) / np.diff(np.append(starts, len(values_N)))


def _number(value: Any) -> float:
    return float(value) if isinstance(value, bool | int | float) else math.nan
