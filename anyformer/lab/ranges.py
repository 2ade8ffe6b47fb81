"""What a sweep tries of one field, as text: `0.002..0.05:log:5`, `1..9:5`, `rope,alibi,none`, or one value."""

import math
import re
import tomllib
from typing import Any

from anyformer.errors import InputError, nearest

SCALES = ("linear", "log")
DIGITS = 4
"""Significant digits of what lies between the ends of a logarithmic range."""
MOST = 1000
"""Values of one range: every one of them is a variant to train."""
BRACKETS = {"(": ")", "[": "]", "{": "}"}
EXAMPLE = "write e.g. 0.002..0.05:log:5, 1..9:5 or a,b,c"


def parse_range(text: str) -> tuple[Any, ...]:
    """The values that a text stands for, in its order.

    `FIRST..LAST:COUNT` and `FIRST..LAST:linear:COUNT` are evenly spaced, `FIRST..LAST:log:COUNT` evenly spaced in their
    logarithms and rounded to 4 significant digits; both ends are exact. They are whole numbers where both ends are written
    as such and all between them are whole. Values between commas are read one by one, each as `--set` reads it: TOML if
    it reads as TOML (8, true, [1, 2], "x"), and else a text. Commas inside quotes and brackets separate nothing.
    """
    ends, _, rest = text.partition(":")
    first, dots, last = ends.partition("..")
    # A text may have dots (../data): a range has numbers around them, or says how many values it has behind them.
    if dots and "," not in text and (rest or (_number(first) is not None and _number(last) is not None)):
        return _between(text, first, last, rest)
    parts = _split(text)
    values = tuple(read_value(part) for part in parts)
    if not all(parts):
        raise InputError(f"{text!r}: there is nothing between two commas, or at an end; {EXAMPLE}")
    if repeated := [part for i, part in enumerate(parts) if _seen(values[i], values[:i])]:
        raise InputError(
            f"{text!r}: {repeated[0]} is there twice; each value is tried once, with as many seeds as you ask for"
        )
    return values


def read_value(text: str) -> Any:
    """A value that is TOML if it reads as TOML, and else a text."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _seen(value: Any, before: tuple[Any, ...]) -> bool:
    """Whether a value was there before. 1 and 1.0 are the same; 1 and true are not."""
    return any(value == other and isinstance(value, bool) == isinstance(other, bool) for other in before)


def _split(text: str) -> list[str]:
    """The parts between commas that are in no quotes and no brackets."""
    parts, open_brackets, quote = [""], list[str](), ""
    for letter in text:
        if quote:
            quote = "" if letter == quote else quote
        elif letter in "\"'":
            quote = letter
        elif letter in BRACKETS:
            open_brackets.append(BRACKETS[letter])
        elif open_brackets and letter == open_brackets[-1]:
            open_brackets.pop()
        elif letter == "," and not open_brackets:
            parts.append("")
            continue
        parts[-1] += letter
    return [part.strip() for part in parts]


def _number(text: str) -> int | float | None:
    """A number as it is written: whole, or with a point or an exponent; None if it is none."""
    try:
        return int(text) if re.fullmatch(r"\s*[+-]?\d+\s*", text) else float(text)
    except ValueError:
        return None


def _between(text: str, first: str, last: str, rest: str) -> tuple[int | float, ...]:
    ends = [_number(first), _number(last)]
    for name, end in zip((first, last), ends, strict=True):
        if end is None or not math.isfinite(end):
            raise InputError(f"{text!r}: {name!r} is no finite number; {EXAMPLE}")
    low, high = (end for end in ends if end is not None)
    scale, colon, count_text = rest.rpartition(":")
    scale = scale if colon else "linear"
    if not rest or (rest in SCALES and not colon):
        raise InputError(f"{text!r}: says not how many values it has; write {first}..{last}:{rest or 'log'}:5")
    if scale not in SCALES:
        raise InputError(f"{text!r}: {scale!r} is no scale{nearest(scale, SCALES)}")
    count = _number(count_text)
    if not isinstance(count, int):
        raise InputError(f"{text!r}: {count_text!r} is no whole number of values; {EXAMPLE}")
    if not 2 <= count <= MOST:
        raise InputError(f"{text!r}: {count} values are not from 2 to {MOST}; for one value write it alone")
    if low == high:
        raise InputError(f"{text!r}: both ends are {first.strip()}; give two, or write the value alone")
    if scale == "log" and min(low, high) <= 0:
        raise InputError(
            f"{text!r}: {min(low, high):g} has no logarithm; begin above 0, or write linear in the place of log"
        )
    inner = [_inner(low, high, i / (count - 1), scale) for i in range(1, count - 1)]
    values = [low, *inner, high]
    if isinstance(low, int) and isinstance(high, int) and all(value == int(value) for value in inner):
        values = [int(value) for value in values]
    if len(set(values)) < count:
        raise InputError(f"{text!r}: {count} values are too many, some of them would be equal; give fewer")
    return tuple(values)


def _inner(low: float, high: float, share: float, scale: str) -> float:
    if scale == "log":
        return float(f"{low * (high / low) ** share:.{DIGITS}g}")
    # Without the digits that are only rounding errors: 0.1..0.3 has 0.2 in the middle.
    return float(f"{low + (high - low) * share:.14g}")
