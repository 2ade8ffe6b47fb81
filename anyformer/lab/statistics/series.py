"""What a study's plots show besides learning curves: final values, costs, evaluation lengths, numbers that were swept."""

import json
import re
import statistics
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anyformer.lab.results import Results, VariantResult, higher_is_better
from anyformer.lab.statistics.comparison import Comparison
from anyformer.lab.statistics.estimates import Estimate, estimate
from anyformer.lab.statistics.pairing import lost_words, samples
from anyformer.lab.statistics.table import rows

AT_LENGTH = re.compile(r"loss@(\d+)")
DECODE, KV = "decode_tokens_per_second", "kv_bytes_per_token"
LOG_FROM = 8.0
"""Swept numbers that differ by this factor or more lie on a logarithmic axis."""
UNITS = {
    "loss": "held-out loss (nats per token)", "bits_per_byte": "held-out bits per byte",
    "train_tokens_per_second": "training tokens per second", DECODE: "decoded tokens per second",
    KV: "KV cache bytes per token (bfloat16)",
}  # fmt: skip


def words(metric: str) -> str:
    """A metric with its unit, as an axis calls it."""
    length = AT_LENGTH.fullmatch(metric)
    if length:
        return f"held-out loss at {int(length[1]):,} tokens (nats per token)"
    return UNITS.get(metric, metric.replace("_", " "))


@dataclass(frozen=True, kw_only=True)
class Final:
    """A metric of a variant at the end."""

    name: str
    estimate: Estimate
    values: Mapping[int, float]
    """By seed, or by round of a measured speed."""
    comparison: Comparison | None
    """None: the base, or a study without one."""
    lost: str
    """Which runs are missing, in words."""


def finals(results: Results, metric: str | None = None) -> list[Final]:
    """Of every variant that has the metric, the best first."""
    metric = metric or results.metric
    if not any(samples(variant, metric) for variant in results.variants):
        return []
    found = [
        Final(
            name=row.name,
            estimate=row.estimate,
            values=_values(variant, metric),
            comparison=row.comparison,
            lost=row.lost,
        )
        for row, variant in zip(rows(results, metric), results.variants, strict=True)
        if row.estimate is not None
    ]
    return sorted(found, key=lambda each: each.estimate.mean, reverse=higher_is_better(metric))


def missing(results: Results, metric: str | None = None) -> dict[str, str]:
    """Variants without a value, and why."""
    metric = metric or results.metric
    lacking = [variant for variant in results.variants if not samples(variant, metric)]
    return {variant.name: lost_words(variant) or "not measured" for variant in lacking}


def around_base(row: Final, base: float | None) -> tuple[float, float] | None:
    """The corrected interval of the paired difference, laid at the base's mean: clear of it exactly if it is marked."""
    said = row.comparison
    if said is None or said.simultaneous is None or base is None:
        return None
    low, high = said.simultaneous
    return (base * (1 + low), base * (1 + high)) if said.speed else (base + low, base + high)


def _values(variant: VariantResult, metric: str) -> dict[int, float]:
    """A metric by seed of finished runs, or by round: those that comparisons are made of, a speed as it is."""
    found = variant.values(metric)
    return {seed: found[seed] for seed in samples(variant, metric)}


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What decoding costs, by the name of the variant: in the middle, at least and at most."""

    key: str
    points: Mapping[str, tuple[float, float, float]]


def costs(results: Results) -> list[Cost]:
    """The costs of decoding that differ between variants which have the metric."""
    judged = [variant for variant in results.variants if samples(variant, results.metric)]
    found = []
    for key in (DECODE, KV):
        spread = {variant.name: _cost(variant, key) for variant in judged}
        points = {name: point for name, point in spread.items() if point is not None}
        if len({middle for middle, _, _ in points.values()}) > 1 and results.metric != key:
            found.append(Cost(key=key, points=points))
    return found


def front(results: Results, cost: Cost) -> list[str]:
    """Variants that no other one beats both in quality and in cost."""
    sign, cheap = (-1 if higher_is_better(results.metric) else 1), (1 if cost.key == KV else -1)
    means = {each.name: sign * each.estimate.mean for each in finals(results)}
    pairs = {name: (means[name], cheap * middle) for name, (middle, _, _) in cost.points.items()}

    def beaten(pair: tuple[float, float]) -> bool:
        return any(other != pair and other[0] <= pair[0] and other[1] <= pair[1] for other in pairs.values())

    return [name for name, pair in pairs.items() if not beaten(pair)]


def _cost(variant: VariantResult, key: str) -> tuple[float, float, float] | None:
    if key == KV:
        size = variant.kv_bytes_per_token
        return None if size is None else (size, size, size)
    speeds = list(_values(variant, key).values())
    return (statistics.median(speeds), min(speeds), max(speeds)) if speeds else None


@dataclass(frozen=True, kw_only=True)
class Line:
    """A metric over numbers, as one line of a plot."""

    label: str
    x: list[float]
    y: list[Estimate]


def by_length(results: Results) -> list[Line]:
    """Held-out loss over evaluation length, one line for each variant; empty with fewer than two lengths."""
    every = {name for variant in results.variants for run in variant.runs for name in run.metrics}
    lengths = sorted(int(match[1]) for name in every if (match := AT_LENGTH.fullmatch(name)))
    if len(lengths) < 2:
        return []
    found = []
    for variant in results.variants:
        means = {length: estimate(list(_values(variant, f"loss@{length}").values())) for length in lengths}
        x = [length for length in lengths if means[length] is not None]
        y = [each for each in means.values() if each is not None]
        if x:
            found.append(Line(label=variant.name, x=[*map(float, x)], y=y))
    return found


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """The metric of a study over one number that it varies."""

    key: str
    """A dotted name."""
    log: bool
    lines: list[Line]
    """One for each combination of the other changes."""
    base: Estimate | None
    """Of a base in which the number is not set."""


def sweeps(results: Results) -> list[Sweep]:
    """One for each key whose values are all numbers, three different ones at least."""
    keys = dict.fromkeys(key for variant in results.variants for key in variant.changes)
    found = []
    for key in keys:
        having = [variant for variant in results.variants if key in variant.changes]
        values = [variant.changes[key] for variant in having]
        numbers = [float(value) for value in values if _is_number(value)]
        if len(numbers) < len(values) or len(set(numbers)) < 3:
            continue
        grouped: dict[str, list[tuple[float, Estimate]]] = {}
        for variant, number in zip(having, numbers, strict=True):
            mean = estimate(list(_values(variant, results.metric).values()))
            if mean is not None:
                grouped.setdefault(_others(variant, key), []).append((number, mean))
        lines = [_line(label, points) for label, points in grouped.items()]
        # A key that never varies within a line says nothing about itself.
        if any(len(line.x) > 1 for line in lines):
            log = min(numbers) > 0 and max(numbers) / min(numbers) >= LOG_FROM
            found.append(Sweep(key=key, log=log, lines=lines, base=_base(results, key)))
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _others(variant: VariantResult, key: str) -> str:
    """The changes of a variant besides one of them, in words."""
    others = {name: value for name, value in variant.changes.items() if name != key}
    return ", ".join(f"{name}={_plain(value)}" for name, value in others.items())


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _line(label: str, points: list[tuple[float, Estimate]]) -> Line:
    ordered = sorted(points, key=lambda point: point[0])
    return Line(label=label, x=[x for x, _ in ordered], y=[y for _, y in ordered])


def _base(results: Results, key: str) -> Estimate | None:
    for variant in results.variants:
        if variant.name == results.base and key not in variant.changes:
            return estimate(list(_values(variant, results.metric).values()))
    return None
