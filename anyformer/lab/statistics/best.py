"""The best of a sweep: which value it is, which others can't be told apart from it, and whether it lies at an end."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from anyformer.lab.results import Results, VariantResult
from anyformer.lab.statistics import series
from anyformer.lab.statistics.comparison import compare
from anyformer.lab.statistics.estimates import Estimate
from anyformer.lab.statistics.table import estimate_words
from anyformer.lab.statistics.verdict import metric_words
from anyformer.lab.variants import label


@dataclass(frozen=True, kw_only=True)
class Best:
    """The variant of a sweep with the best mean."""

    name: str
    values: dict[str, Any]
    """Of what was swept, by dotted names."""
    estimate: Estimate
    alike: list[str]
    """Other variants that the runs can't tell from it."""
    between: dict[str, tuple[float, float]]
    """The least and the largest of each number among it and those."""
    ends: dict[str, str]
    """Numbers of it that are the smallest or the largest that was tried, and which of the two."""
    words: list[str]


def best_of(results: Results, keys: Sequence[str]) -> Best | None:
    """The best of all variants that lost no run; None if there is none. `keys` are the names of what was swept."""
    ranked = [each for each in series.finals(results) if not each.lost]
    if not ranked:
        return None
    first = ranked[0]
    chosen = results.variant(first.name)
    worse = {
        each.name for each in compare(replace(results, base=first.name), results.metric) if each.outcome == "worse"
    }
    others = [each.name for each in ranked[1:] if each.name not in worse]
    alike = [chosen, *map(results.variant, others)]
    values = {key: chosen.changes[key] for key in keys if chosen.changes.get(key) is not None}
    between = {key: (min(found), max(found)) for key in keys if (found := _numbers(alike, key))}
    ends = {key: end for key in keys if (end := _end(results, chosen, key))}
    found = Best(
        name=first.name, values=values, estimate=first.estimate, alike=others, between=between, ends=ends, words=[]
    )
    return replace(found, words=_words(results, found, len(ranked)))


def _numbers(variants: Sequence[VariantResult], key: str) -> list[float]:
    found = [each.changes.get(key) for each in variants]
    return [float(value) for value in found if isinstance(value, int | float) and not isinstance(value, bool)]


def _end(results: Results, chosen: VariantResult, key: str) -> str:
    own, tried = _numbers([chosen], key), _numbers(results.variants, key)
    if not own or min(tried) == max(tried):
        return ""
    return "smallest" if own[0] == min(tried) else "largest" if own[0] == max(tried) else ""


def _words(results: Results, found: Best, count: int) -> list[str]:
    value, seeds = label(found.values) or found.name, found.estimate.n
    over = f", the mean and its 95% interval over {seeds} seeds" if seeds > 1 else ", one run"
    lines = [f"Best: {value}, with a {metric_words(results.metric)} of {estimate_words(found.estimate)}{over}."]
    if seeds < 2:
        lines.append("With one seed nothing says how much of that is chance; give more seeds.")
    elif not found.alike:
        lines.append(f"All {count - 1} others are worse beyond chance." if count > 1 else "There is no other one.")
    elif len(found.between) == 1 and len(found.values) == 1:
        key, (low, high) = next(iter(found.between.items()))
        lines.append(f"From {key}={low:g} to {high:g} these runs can't tell which is better.")
    else:
        lines.append(f"Can't be told apart from it: {', '.join(found.alike)}.")
    lines += [
        f"Warning: {label({key: found.values[key]})} is the {end} value that was tried, and a better one may lie beyond; "
        "widen the range."
        for key, end in found.ends.items()
    ]
    return lines
