"""Checks of single values that a user gave: each answers the value, or says what is wrong with it."""

import operator
from collections.abc import Iterable
from typing import Any

from anyformer.data.tokenizer import Tokenizer
from anyformer.generation.samplers.batched import SEEDS

TEXT = 1000
"""Characters of a stop string or a choice at most."""


def whole(name: str, value: Any, least: int, wrong: list[str], *, most: int = SEEDS - 1) -> int:
    """A whole number in bounds."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        wrong.append(f"{name}: expected a whole number, got {shown(value)}")
    elif number < least:
        wrong.append(f"{name}: {number} is not at least {least}")
    elif number > most:
        limit = "below 2^63" if most == SEEDS - 1 else f"at most {most}"
        wrong.append(f"{name}: {shown(number)} is not {limit}")
    else:
        return number
    return least


def number(
    name: str, value: Any, rule: str, wrong: list[str], *, least: float, most: float, above: bool = False
) -> float:
    """A finite number in bounds, which are in words too; `above` leaves the lower bound out."""
    fits = isinstance(value, int | float) and not isinstance(value, bool)
    # A whole number may be too large for a float, but not for a comparison with one; NaN fails both.
    if fits and (least < value if above else least <= value) and value <= most:
        return float(value)
    wrong.append(f"{name}: {shown(value)} is not {rule}")
    return most if above else least


def ids(name: str, given: Any, vocab: int, wrong: list[str]) -> tuple[int, ...]:
    """Ids of a vocabulary."""
    found: list[int] = []
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        wrong.append(f"{name}: {shown(given)} is not a list of ids below vocab = {vocab}")
        return ()
    for each in given:
        problems: list[str] = []
        one = whole(name, each, 0, problems)
        if problems or one >= vocab:
            wrong.append(f"{name}: {shown(each)} is not an id below vocab = {vocab}")
        else:
            found.append(one)
    return tuple(found)


def text(name: str, given: Any, tokenizer: Tokenizer | None, wrong: list[str]) -> str | None:
    """A text that a tokenizer can be asked for; None: it is none."""
    if not isinstance(given, str):
        wrong.append(f"{name}: expected a text, got {shown(given)}")
    elif not given:
        wrong.append(f"{name}: an empty text is everywhere; leave it out")
    elif len(given) > TEXT:
        wrong.append(f"{name}: a text of {len(given):,} characters; the most is {TEXT:,}")
    elif any("\ud800" <= sign <= "\udfff" for sign in given):
        wrong.append(f"{name}: {shown(given)} has half of a UTF-16 pair, which no text has")
    elif tokenizer is None:
        wrong.append(f"{name}: {shown(given)} is a text; give ids, or the model's tokenizer as tokenizer=")
    else:
        return given
    return None


def shown(value: Any) -> str:
    """A value as a message shows it: not the whole of a long one."""
    if type(value) is int and abs(value) >= 10**30:
        return "a number of more than 30 digits"
    words = repr(value)
    return words if len(words) <= 100 else words[:97] + "..."
