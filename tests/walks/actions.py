"""The registry of actions: what can be done to a model, when, and what it may change."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from tests.walks.world import World

Run = Callable[[World, random.Random], None]
NOTHING: frozenset[str] = frozenset()
WHOLE = frozenset({"objects", "modules"})
"""What changes where another model is gone on with."""
KINDS = frozenset({"objects", "storage", "values", "grads", "modules", "ways"})


@dataclass(frozen=True, kw_only=True)
class Action:
    """Something that a person does."""

    name: str
    run: Run
    weight: int
    when: Callable[[World], bool]
    changes: frozenset[str]
    """What may be other afterwards, of `KINDS`. Everything else must be as it was, and all of it what the twin has."""


ACTIONS: dict[str, Action] = {}


def action(
    *, weight: int = 2, when: Callable[[World], bool] = lambda _: True, changes: frozenset[str] | set[str] = NOTHING
) -> Callable[[Run], Run]:
    """Register a function of a world and a source of arguments under its name."""

    def register(run: Run) -> Run:
        unknown = changes - KINDS
        if unknown or run.__name__ in ACTIONS:
            raise ValueError(f"{run.__name__}: {unknown or 'there is one of this name'}")
        ACTIONS[run.__name__] = Action(
            name=run.__name__, run=run, weight=weight, when=when, changes=frozenset(changes)
        )  # fmt: skip
        return run

    return register


def drawn(world: World, rng: random.Random) -> Action:
    """One that applies now."""
    fit = [each for each in ACTIONS.values() if each.when(world)]
    return rng.choices(fit, [each.weight for each in fit])[0]
