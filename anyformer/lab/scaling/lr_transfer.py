"""Whether the best learning rate stays where it is as models grow wider: the optimum of each width, and how it moves.

With `optim.base_width` it is meant to stay; `obstacles` says what in a spec stands against that.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anyformer.errors import InputError
from anyformer.lab.scaling.ladder import resized
from anyformer.lab.scaling.laws import DRAWS, LARGEST_SPREAD, Estimate, percentiles
from anyformer.specs.axes import Role
from anyformer.specs.embed_head import TokenHead
from anyformer.specs.model import ModelSpec

NEAR = 2.0
"""A parabola goes through rates within this factor of the best one, at least its neighbours. Losses are steeper on the side
of large rates: a wider parabola would find its lowest point too far to the other side."""
WIDE = 4.0
"""Runs within this factor of the best rate tell how much is chance: near divergence losses scatter more."""
TOLERANCE = 0.25
"""The optimum holds if it goes with the width to a power of no more than this: half of the square root by which that of
Muon would move, and a quarter of what Adam's would, without `optim.base_width`."""


@dataclass(frozen=True, kw_only=True)
class TransferPoint:
    """A run: its width, its learning rate and its loss. One that is not finite is a run that diverged."""

    width: int
    rate: float
    loss: float
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class BestRate:
    """The best learning rate at one width."""

    width: int
    rate: float
    """Where a parabola through the losses over the logarithm of the rate is lowest."""
    low: float | None
    """The 95% interval; None where chance is not known."""
    high: float | None
    loss: float
    """The mean loss at the best of the rates that were tried."""
    edge: bool
    """Whether that is the smallest or the largest of all that were tried, so that a better one may lie beyond."""


@dataclass(frozen=True, kw_only=True)
class Transfer:
    """How the best learning rate goes with the width."""

    best: list[BestRate]
    """From the narrowest to the widest."""
    exponent: Estimate | None
    """The best rate goes with width^exponent, with its 95% interval; None where chance is not known."""
    verdict: Literal["holds", "does not hold", "can't tell"]
    words: str


@dataclass(frozen=True, kw_only=True)
class _Row:
    """The runs of one width, by rate from the smallest; rates at which all diverged are left out."""

    width: int
    tried: tuple[float, ...]
    logs: Any
    """Logarithms of rates."""
    losses: list[list[float]]

    @property
    def means(self) -> Any:
        return np.array([np.mean(each) for each in self.losses])

    def near(self, best: int, factor: float) -> slice:
        """The rates around one that a parabola goes through."""
        close = np.flatnonzero(abs(self.logs - self.logs[best]) <= math.log(factor) + 1e-9)
        return slice(max(0, min(close[0], best - 1)), max(close[-1], best + 1) + 1)

    def optimum(self, means: Any) -> Any:
        """The logarithm of the best rate for each row of mean losses."""
        lowest = means.argmin(1)
        found = self.logs[lowest]
        for best in range(1, len(self.logs) - 1):
            rows, near = lowest == best, self.near(best, NEAR)
            x = self.logs[near] - self.logs[best]
            bend, slope, _ = np.linalg.pinv(np.vander(x, 3)) @ means[rows, near].T
            with np.errstate(divide="ignore", invalid="ignore"):
                off = np.where(bend > 0, -slope / (2 * bend), 0.0)
            # Between its neighbours, which are both worse.
            ends = self.logs[[best - 1, best + 1]] - self.logs[best]
            found[rows] = self.logs[best] + np.clip(off, *ends)
        return found

    def left(self) -> tuple[float, int]:
        """Squares that a parabola around the best rate leaves, and their degrees of freedom."""
        means = self.means
        near = self.near(int(means.argmin()), WIDE)
        x, y = self.logs[near], means[near]
        if len(x) <= 3:
            return 0.0, 0
        return float(((np.polyval(np.polyfit(x, y, 2), x) - y) ** 2).sum()), len(x) - 3

    def within(self) -> tuple[float, int]:
        """Squares of runs around their means at rates near the best, and their degrees of freedom."""
        some = self.losses[self.near(int(self.means.argmin()), WIDE)]
        return sum(float(np.var(each)) * len(each) for each in some), sum(len(each) - 1 for each in some)


def transfer(points: Sequence[TransferPoint]) -> Transfer:
    """The best rate at each width, and whether it moved.

    Intervals come from a parametric bootstrap over seeds; without a second seed, from how far the losses are from their
    parabolas. "holds": the interval of the exponent lies within +-0.25; "does not hold": it lies outside of 0 and reaches
    beyond that; else, or where a best rate is at the edge of what was tried, it can't be told.
    """
    rows = _rows(points)
    middles = [float(row.optimum(row.means[None])[0]) for row in rows]
    draws = _draws(rows)
    best: list[BestRate] = []
    for i, row in enumerate(rows):
        lowest = int(row.means.argmin())
        edge = math.exp(row.logs[lowest]) <= row.tried[0] * (1 + 1e-9) or math.exp(row.logs[lowest]) >= row.tried[
            -1
        ] * (1 - 1e-9)
        low, high = (None, None) if draws is None else (math.exp(end) for end in percentiles(draws[:, i]))
        best.append(
            BestRate(
                width=row.width, rate=math.exp(middles[i]), low=low, high=high, loss=float(row.means[lowest]), edge=edge
            )
        )
    where = np.log([row.width for row in rows])
    across = (where - where.mean()) / ((where - where.mean()) ** 2).sum()
    mean = float(across @ np.array(middles))
    exponent = None if draws is None else (mean, *percentiles(draws @ across))
    verdict, why = _judged(best, exponent)
    shown = ", ".join(_shown(each) for each in best)
    moves = f"width^{mean:.2f}" + ("" if exponent is None else f" ({exponent[1]:.2f} to {exponent[2]:.2f})")
    words = f"the best learning rate is {shown}; it goes with {moves}: {why}"
    return Transfer(best=best, exponent=exponent, verdict=verdict, words=words)


def _shown(best: BestRate) -> str:
    interval = "" if best.low is None or best.high is None else f" ({best.low:.2g} to {best.high:.2g})"
    return f"{best.rate:.2g}{interval} at width {best.width}"


def _judged(
    best: Sequence[BestRate], exponent: Estimate | None
) -> tuple[Literal["holds", "does not hold", "can't tell"], str]:
    if edges := [each.width for each in best if each.edge]:
        widths = ", ".join(map(str, edges))
        return (
            "can't tell",
            f"whether it moves can't be told, the best of width {widths} is at the edge; try rates beyond it",
        )
    if exponent is None:
        return "can't tell", "whether it moves can't be told from one run of each; give more seeds"
    _, low, high = exponent
    if low >= -TOLERANCE and high <= TOLERANCE:
        return "holds", "within the widths that were tried it holds"
    if low > 0 or high < 0:
        return "does not hold", "it moves with the width, so it does not hold"
    return (
        "can't tell",
        "whether it moves can't be told; give more seeds, rates closer together, or widths further apart",
    )


def _rows(points: Sequence[TransferPoint]) -> list[_Row]:
    found: dict[int, dict[float, list[float]]] = {}
    for point in points:
        if point.width < 1 or not (math.isfinite(point.rate) and point.rate > 0):
            raise InputError(f"{point}: width and rate are not both above 0")
        runs = found.setdefault(point.width, {}).setdefault(point.rate, [])
        if math.isfinite(point.loss):
            runs.append(point.loss)
    if len(found) < 2:
        raise InputError(f"there are runs of {len(found)} width(s), and it takes 2 to see whether the best rate moves")
    rows: list[_Row] = []
    for width in sorted(found):
        by_rate = {rate: runs for rate, runs in sorted(found[width].items()) if runs}
        if len(by_rate) < 3:
            raise InputError(
                f"width {width} has {len(by_rate)} rates with a finite loss, and a parabola takes 3; try more"
            )
        logs = np.log(np.array([*by_rate]))
        rows.append(_Row(width=width, tried=tuple(sorted(found[width])), logs=logs, losses=[*by_rate.values()]))
    return rows


def _draws(rows: Sequence[_Row]) -> Any:
    """Logarithms of best rates (draws, widths), of runs drawn with the noise that was seen; None if none was."""
    squares, freedom = map(sum, zip(*(row.within() for row in rows), strict=True))
    if not freedom:
        squares, freedom = map(sum, zip(*(row.left() for row in rows), strict=True))
    if not freedom:
        return None
    generator = np.random.default_rng(int(freedom))
    spread = np.minimum(np.sqrt(freedom / generator.chisquare(freedom, DRAWS)), LARGEST_SPREAD)
    columns: list[Any] = []
    for row in rows:
        runs = np.array([len(each) for each in row.losses])
        noise = (
            generator.standard_normal((DRAWS, len(runs)))
            * spread[:, None]
            * math.sqrt(squares / freedom)
            / np.sqrt(runs)
        )
        columns.append(row.optimum(row.means + noise))
    return np.stack(columns, 1)


def obstacles(spec: ModelSpec) -> list[str]:
    """What in a spec stands against rates that hold over widths, as `Optim.width_factor` assumes it; by dotted names."""
    found: list[str] = []
    wider = spec.vary(resized(spec, 2 * spec.attention.heads, spec.depth))
    for role in ("query", "ffn_in"):
        ratio = _first_std(wider, role) / _first_std(spec, role)
        # Half the variance at twice the width; derived widths of feed-forwards are rounded.
        if not 0.6 < ratio < 0.8:
            kind = f"init.kind: {spec.init.kind!r} starts matrices with {ratio:.2g} times the standard deviation at twice the width"
            found.append(f"{kind}, and rates assume 0.71 times; fan_in and glorot have that")
            break
    if isinstance(spec.head, TokenHead) and spec.head.tied and "width" not in str(spec.head.scale):
        found.append(
            'head.tied: logits of a tied head move faster in a wider model; untie it, or write head.scale = "N/width" with '
            "the base width for N"
        )
    return found


def _first_std(spec: ModelSpec, role: Role) -> float:
    """The standard deviation with which the first matrix of a role begins."""
    weight = next((w for w in spec.count().weights.values() if w.role == role), None)
    if weight is None:
        raise InputError(f"the spec has no matrix of the role {role!r}")
    tied = isinstance(spec.head, TokenHead) and spec.head.tied
    layer = spec.stacks[0].layers[0]
    dims = spec.dims(layer, spec.stacks[0])
    return spec.init.rule(
        weight, width=spec.width, depth=spec.depth, tied=tied, heads=dims.heads, head_dim=dims.head_dim
    ).std
