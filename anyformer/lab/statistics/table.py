"""The table of a study: one row for each variant, as values, as text for people, and as data for programs."""

import math
from dataclasses import asdict, dataclass, replace
from statistics import median
from typing import Any

from anyformer.files import finite
from anyformer.lab.results import Results, VariantResult, higher_is_better
from anyformer.lab.statistics.comparison import Comparison, compare, judge
from anyformer.lab.statistics.estimates import Estimate, estimate
from anyformer.lab.statistics.pairing import is_speed, lost_words, samples
from anyformer.lab.statistics.verdict import amount, decimals, half, judgement_words, metric_words, span, verdict
from anyformer.specs import number_format

TRAIN_SPEED, DECODE_SPEED = "train_tokens_per_second", "decode_tokens_per_second"


@dataclass(frozen=True, kw_only=True)
class Row:
    """A variant: its result, how it compares with the base, and its costs. None where there is no number."""

    name: str
    is_base: bool
    estimate: Estimate | None
    """Mean and 95% interval of the metric over finished runs; of a speed, geometric."""
    comparison: Comparison | None
    """None for the base."""
    params: int
    train_flops: float
    train_speed: float | None
    """Tokens a second, the median of the rounds."""
    decode_speed: float | None
    peak_memory: int | None
    kv_bytes_per_token: float | None
    solved: dict[str, Any]
    off_by: float | None
    lost: str
    """How many runs were lost, and how."""
    lr_factor: float | None
    tuning_flops: float

    @property
    def mark(self) -> str:
        """A star and a word for a difference that is claimed; only words otherwise."""
        if self.comparison is None:
            return ""
        return f"* {self.comparison.outcome}" if self.comparison.marked else self.comparison.outcome


def rows(results: Results, metric: str | None = None) -> list[Row]:
    """A row for each variant, in the order of the study. Without a base, nothing is compared."""
    metric = metric or results.metric
    compared: dict[str, Comparison] = {}
    if any(each.name == results.base for each in results.variants):
        compared = {found.name: found for found in compare(results, metric)}
    return [_row(results, each, metric, compared.get(each.name)) for each in results.variants]


def _row(results: Results, variant: VariantResult, metric: str, comparison: Comparison | None) -> Row:
    found = estimate(list(samples(variant, metric).values()))
    if found is not None and is_speed(results, metric):
        low, high = (None if end is None else math.exp(end) for end in (found.low, found.high))
        found = replace(found, mean=math.exp(found.mean), low=low, high=high)
    return Row(
        name=variant.name, is_base=variant.name == results.base, estimate=found, comparison=comparison,
        params=variant.params, train_flops=variant.train_flops, train_speed=_median(variant, TRAIN_SPEED),
        decode_speed=_median(variant, DECODE_SPEED), peak_memory=variant.peak_memory,
        kv_bytes_per_token=variant.kv_bytes_per_token, solved=variant.solved, off_by=variant.off_by,
        lost=lost_words(variant), lr_factor=variant.lr_factor, tuning_flops=variant.tuning_flops,
    )  # fmt: skip


def _median(variant: VariantResult, speed: str) -> float | None:
    measured = [variant.speeds[speed][i] for i in samples(variant, speed)] if speed in variant.speeds else []
    return median(measured) if measured else None


def cells(results: Results, metric: str | None = None) -> tuple[list[str], list[list[str]]]:
    """Names of columns and the text of every cell; a column without any text is left out."""
    metric = metric or results.metric
    table = [_texts(row, metric) for row in rows(results, metric)]
    names = list(table[0]) if table else []
    kept = [name for name in names if any(row[name] for row in table)]
    return kept, [[row[name] for name in kept] for row in table]


def _texts(row: Row, metric: str) -> dict[str, str]:
    return {
        "variant": row.name,
        metric_words(metric): estimate_words(row.estimate),
        "difference": "base" if row.is_base else difference_words(row.comparison),
        "mark": row.mark,
        "params": number_format.params(row.params) if row.params else "",
        "train FLOPs": number_format.flops(row.train_flops) if row.train_flops else "",
        "train tok/s": "" if row.train_speed is None else number_format.short(row.train_speed),
        "peak memory": "" if row.peak_memory is None else number_format.data(row.peak_memory),
        "decode tok/s": "" if row.decode_speed is None else number_format.short(row.decode_speed),
        "KV/token": "" if row.kv_bytes_per_token is None else number_format.data(row.kv_bytes_per_token),
        "solved": solved_words(row),
        "lost runs": row.lost,
        "lr factor": "" if row.lr_factor is None else f"x {row.lr_factor:g}",
        "tuning": number_format.flops(row.tuning_flops) if row.tuning_flops else "",
    }


def estimate_words(found: Estimate | None) -> str:
    """A mean and half its interval: `3.2146 +- 0.0021`; of one run, the value alone."""
    if found is None:
        return ""
    if found.low is None or found.high is None:
        return f"{found.mean:,.{0 if found.mean == round(found.mean) else 4}f}"
    step = half((found.low, found.high))
    return f"{amount(found.mean, step)} +- {step or 0.0:,.{decimals(step)}f}"


def difference_words(found: Comparison | None) -> str:
    """A difference and its simultaneous interval."""
    if found is None or found.difference is None:
        return ""
    if found.outcome == "identical":
        return "0"
    if found.simultaneous is None:
        return amount(found.difference, found.difference or None, speed=found.speed, sign=True)
    size = amount(found.difference, half(found.simultaneous), speed=found.speed, sign=True)
    return f"{size} ({span(found.simultaneous, speed=found.speed)})"


def solved_words(row: Row) -> str:
    """What matching chose, and how far off the target that is: `ffn.width=344 (0.3% off)`."""
    chosen = ", ".join(f"{name}={value}" for name, value in row.solved.items())
    off = "" if row.off_by is None else f"{abs(row.off_by):.2%} off"
    return f"{chosen} ({off})" if chosen and off else chosen or off


def legend(results: Results, metric: str | None = None) -> list[str]:
    """What the columns and marks of this table mean."""
    metric = metric or results.metric
    found = next((each.comparison for each in rows(results, metric) if each.comparison is not None), None)
    if found is None:
        return []
    way = "higher" if higher_is_better(metric) else "lower"
    over = "rounds" if found.speed else "finished runs"
    of = f"relative to {results.base}" if found.speed else f"variant - {results.base}"
    level = f"{1 - found.alpha:.0%}"
    return [
        f"{metric_words(metric)}: mean over {over} and its 95% interval; {way} is better",
        f"difference: {of}, with intervals that hold jointly at {level} (Bonferroni, comparisons: {found.comparisons})",
        f"* : differs from {results.base} at a family-wise level of {found.alpha:g} (Holm)",
    ]


def to_data(results: Results, metric: str | None = None) -> dict[str, Any]:
    """The table, the claims and the verdict as plain data for JSON."""
    metric = metric or results.metric
    judged = judge(results)
    return finite({
        "title": results.title,
        "metric": metric,
        "higher_is_better": higher_is_better(metric),
        "base": results.base,
        "rows": [{**asdict(row), "mark": row.mark} for row in rows(results, metric)],
        "claims": [{**asdict(each), "words": judgement_words(each)} for each in judged],
        "verdict": verdict(results, metric),
    })  # fmt: skip
