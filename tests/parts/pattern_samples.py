"""Samples of every pattern kind, with sizes drawn from the types of its fields, and dense masks of them."""

import functools
import random
from typing import Literal, get_args, get_origin

import numpy as np

from anyformer.specs.codec import Problems, fields_of, read, required
from anyformer.specs.patterns import Pattern, Tokens

HEADS, LAYER = 4, 3
LENGTH = 29
"""Past most windows and blocks below, and a multiple of none."""
NUMBERS = (0, 1, 2, 3, 4, 5, 7, HEADS, 64)


def parse(text: str) -> Pattern:
    problems = Problems()
    pattern = read(Pattern, text, "pattern", problems)
    assert not problems.found, problems.lines
    return pattern


def enumerate_pairs(pattern: Pattern, length: int, head: int = 0, layer: int = 0) -> int:
    """Allowed pairs of one head, by asking the predicate about every pair."""
    keys = Tokens(np.arange(length)[None, :], 0, length, head, layer)
    rows = [np.arange(i, min(i + 256, length))[:, None] for i in range(0, length, 256)]
    asked = [pattern.allows(Tokens(row, 0, length, head, layer), keys) for row in rows]
    return int(sum(np.broadcast_to(one, (len(row), length)).sum() for one, row in zip(asked, rows, strict=True)))


def drawn(rng: random.Random, kind: str) -> Pattern:
    """One of this kind that is right in a layer of HEADS heads and LENGTH tokens."""
    leaf = Pattern.named(kind)
    for _ in range(1000):
        values = {}
        for name, (hint, field) in fields_of(leaf).items():
            if required(field) or rng.random() < 0.6:
                choices = get_args(hint) if get_origin(hint) is Literal else {int: NUMBERS, bool: (False, True)}[hint]
                values[name] = rng.choice(choices)
        made = leaf(**values)
        # To draw very many takes long and shows nothing new.
        few = values.get("count", 0) < 10
        if few and not [*made.problems()] and not [*made.check(HEADS, LENGTH)]:
            return made
    raise AssertionError(f"no valid {kind} among 1000 draws")


@functools.cache
def samples(each: int = 3) -> tuple[Pattern, ...]:
    """A few different ones of every kind."""
    found: dict[Pattern, None] = {}
    for kind in Pattern.kinds():
        rng = random.Random(kind)
        found |= dict.fromkeys(drawn(rng, kind) for _ in range(each))
    return tuple(found)


def one_of_each() -> list[Pattern]:
    """The first sample of every kind."""
    return list({pattern.kind: pattern for pattern in reversed(samples())}.values())


def tokens(pos, length=LENGTH, head=0, marked=False) -> Tokens:
    return Tokens(pos, 0, length, head, LAYER, marked)


def mask(pattern: Pattern, length: int = LENGTH, head: int = 0) -> np.ndarray:
    """(query, key) by the predicate."""
    pos = np.arange(length)
    q, k = tokens(pos[:, None], length, head), tokens(pos[None, :], length, head)
    return np.broadcast_to(pattern.allows(q, k), (length, length))


@functools.cache
def masks(pattern: Pattern, length: int = LENGTH) -> np.ndarray:
    """(head, query, key) by the predicate, as numbers one at a time would give it."""
    return np.stack([mask(pattern, length, head) for head in range(HEADS)])
