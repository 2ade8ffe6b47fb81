"""The verdict of a study in plain sentences that claim no more than the data hold."""

import math
from collections.abc import Sequence
from statistics import median

from anyformer.lab.results import Results, higher_is_better
from anyformer.lab.statistics.comparison import Comparison, Judgement, compare
from anyformer.lab.statistics.estimates import Interval, power

FEW = 3
"""Seeds up to which a verdict says what so few can find."""
LARGE_SDS = 5.0
NUMBERS = {2: "Two", 3: "Three"}


def verdict(results: Results, metric: str | None = None) -> list[str]:
    """What the study says about its variants, sentence by sentence."""
    metric = metric or results.metric
    if not any(each.name == results.base for each in results.variants):
        return [f"The study has no variant {results.base} to compare with: nothing is judged."]
    found = compare(results, metric)
    if not found:
        return [f"There is no variant beside {results.base}: nothing is judged."]
    parts = [
        _headline(found), _different(found, "better"), _different(found, "worse"), _alike(found), _smallest(found),
        _identical(found), _not_judged(found), _method(found), _few(found),
    ]  # fmt: skip
    return [part for part in parts if part]


def metric_words(metric: str) -> str:
    """A metric as people call it."""
    return {"loss": "held-out loss"}.get(metric, metric.replace("_", " "))


def decimals(step: float | None) -> int:
    """Digits after the point that show two figures of a step, such as half an interval."""
    if not step or not math.isfinite(step):
        return 4
    return min(8, max(0, 1 - math.floor(math.log10(abs(step)))))


def amount(value: float, step: float | None, *, speed: bool = False, sign: bool = False) -> str:
    """A difference in as many digits as its precision warrants; of a speed, in percent."""
    places = decimals(None if step is None else 100 * step if speed else step)
    text = f"{100 * value if speed else value:{'+' if sign else ''},.{min(places, 2) if speed else places}f}"
    return f"{text}%" if speed else text


def half(interval: Interval | None) -> float | None:
    """Half the width of an interval."""
    return None if interval is None else (interval[1] - interval[0]) / 2


def span(interval: Interval, *, speed: bool = False, sign: bool = True) -> str:
    """An interval: `-0.031 to -0.012`."""
    low, high = (amount(end, half(interval), speed=speed, sign=sign) for end in interval)
    return f"{low} to {high}"


def size_words(value: float, found: Comparison) -> str:
    """A difference as a share of the base's value and in standard deviations between seeds, as far as known."""
    parts: list[str] = []
    if not found.speed and found.base_mean:
        parts.append(f"{abs(value / found.base_mean):.2%} of {found.base}'s value")
    logs = math.log1p(value) if found.speed else value
    if found.between:
        parts.append(f"{abs(logs) / found.between:.1f} sd between {_unit(found)}s")
    return ", ".join(parts)


def _unit(found: Comparison) -> str:
    return "round" if found.speed else "seed"


def _headline(found: Sequence[Comparison]) -> str:
    first = found[0]
    counts = sorted({each.n for each in _compared(found)})
    seeds = f" over {_range(counts)} {_unit(first)}{'' if counts == [1] else 's'}" if counts else ""
    way = "higher" if higher_is_better(first.metric) else "lower"
    words = metric_words(first.metric)
    return f"{words[0].upper()}{words[1:]}{seeds}; {way} is better."


def _tested(found: Sequence[Comparison]) -> list[Comparison]:
    return [each for each in found if each.adjusted_p is not None]


def _compared(found: Sequence[Comparison]) -> list[Comparison]:
    """Those that were tested; without any, those with a difference, which variants that lost runs do not have."""
    return _tested(found) or [each for each in found if each.difference is not None]


def _range(counts: Sequence[int]) -> str:
    return str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"


def _different(found: Sequence[Comparison], outcome: str) -> str:
    marked = [each for each in found if each.outcome == outcome]
    marked.sort(key=lambda each: -abs(each.difference or 0.0))
    parts = [f"{each.name} by {_by(each)}" for each in marked]
    return f"{outcome.capitalize()} than {found[0].base}: {'; '.join(parts)}." if parts else ""


def _by(found: Comparison) -> str:
    """The size of a marked difference, its interval and what it amounts to."""
    if found.difference is None or found.simultaneous is None:
        return ""
    low, high = sorted(abs(end) for end in found.simultaneous)
    size = amount(abs(found.difference), half((low, high)), speed=found.speed)
    rest = size_words(found.difference, found)
    return f"{size} ({span((low, high), speed=found.speed, sign=False)}{f'; {rest}' if rest else ''})"


def _alike(found: Sequence[Comparison]) -> str:
    alike = [each.name for each in found if each.outcome == "can't tell"]
    return f"Can't be told apart from {found[0].base}: {', '.join(alike)}." if alike else ""


def _smallest(found: Sequence[Comparison]) -> str:
    """What the study could have seen: the median over its comparisons, as each has a spread of its own."""
    sizes = [(each.smallest, each) for each in found if each.smallest is not None]
    if not sizes:
        return ""
    middle = median(size for size, _ in sizes)
    # The comparison whose own figure is nearest says what that amounts to.
    nearest = min(sizes, key=lambda pair: abs(pair[0] - middle))[1]
    rest = size_words(middle, nearest)
    size = amount(middle, middle, speed=nearest.speed)
    return (
        f"The smallest difference that this study would have detected with 80% power is about {size}"
        f"{f' ({rest})' if rest else ''}; smaller ones may well exist."
    )


def _identical(found: Sequence[Comparison]) -> str:
    names = [each.name for each in found if each.outcome == "identical"]
    return f"Identical to {found[0].base} in every {_unit(found[0])}: {', '.join(names)}." if names else ""


def _not_judged(found: Sequence[Comparison]) -> str:
    by_reason: dict[str, list[str]] = {}
    for each in found:
        if each.outcome == "not judged":
            by_reason.setdefault(each.reason, []).append(each.name)
    if len(by_reason) == 1 and all(each.outcome == "not judged" for each in found):
        return f"Nothing is judged: {next(iter(by_reason))}."
    # A reason that begins with the variant's name need not name it twice.
    parts = [
        reason if reason.startswith(f"{names[0]} ") else f"{', '.join(names)} ({reason})"
        for reason, names in by_reason.items()
    ]
    return f"Not judged: {'; '.join(parts)}." if parts else ""


def _method(found: Sequence[Comparison]) -> str:
    tested = _tested(found)
    if not tested:
        return ""
    count, level = len(tested), f"{1 - tested[0].alpha:.0%}"
    corrected = (
        f"p values are corrected for {count} comparisons (Holm), and the intervals hold jointly at {level} (Bonferroni)"
        if count > 1
        else f"there is one comparison, with an interval of {level}"
    )
    pooled = [each for each in tested if each.pooled_over]
    if not pooled:
        return f"Each comparison is judged by the variance of its own paired differences; {corrected}."
    which = "every comparison" if len(pooled) == count else f"{', '.join(each.name for each in pooled)}"
    return (
        f"With fewer than five {_unit(tested[0])}s, {which} is judged by the variance pooled over "
        f"{pooled[0].pooled_over} variants ({pooled[0].df} degrees of freedom), which assumes that they spread alike, "
        f"or by its own variance where that is larger; {corrected}."
    )


def _few(found: Sequence[Comparison]) -> str:
    """What so few seeds with their own variance could find at all."""
    compared = _compared(found)
    seeds, count = max((each.n for each in compared), default=0), len(compared)
    if not 1 <= seeds <= FEW or found[0].speed:
        return ""
    at, who = (FEW, "Even three") if seeds == 1 else (seeds, NUMBERS[seeds])
    share = power(LARGE_SDS, seeds=at, comparisons=count)
    only, comparisons = "only " if share < 0.5 else "", f"{count} comparison{'' if count == 1 else 's'}"
    return (
        f"{who} seeds with their own variance would find {only}{share:.0%} of differences of five standard deviations "
        f"between seeds among {comparisons}; use five seeds or more."
    )


def judgement_words(found: Judgement) -> str:
    """What was found about a claim, in a sentence."""
    claim, words = found.claim, metric_words(found.metric)
    told = f"{found.verdict[0].upper()}{found.verdict[1:]}: "
    if found.difference is None or found.interval is None:
        return f"{told}{found.reason}."
    step = half(found.interval)
    low, high = found.interval
    if claim.margin is not None:
        size = amount(found.difference, step, speed=found.speed, sign=True)
        margin = f"{100 * claim.margin:g}%" if found.speed else f"{claim.margin:g}"
        where = {"agrees": "lies within", "differs": "lies outside of"}.get(found.verdict, "reaches across an end of")
        return (
            f"{told}{claim.better} - {claim.than} is {size} in {words}, and its interval "
            f"{span((low, high), speed=found.speed)} {where} +-{margin}."
        )
    if found.verdict == "can't tell":
        size = amount(found.difference, step, speed=found.speed, sign=True)
        seen = "" if found.smallest is None else amount(found.smallest, found.smallest, speed=found.speed)
        return (
            f"{told}{claim.better} - {claim.than} is {size} ({span((low, high), speed=found.speed)}) in {words}; "
            f"a difference of about {seen} would have been detected with 80% power."
        )
    low, high = sorted((abs(low), abs(high)))
    way = "higher" if found.difference > 0 else "lower"
    size = amount(abs(found.difference), step, speed=found.speed)
    return (
        f"{told}the {words} of {claim.better} is {way} than that of {claim.than} by {size} "
        f"({span((low, high), speed=found.speed, sign=False)})."
    )
