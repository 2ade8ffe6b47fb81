"""Standby: a runner that is kept for a model, so that the next call finds its steps captured."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any

from anyformer.generation.running.runner import Runner
from anyformer.model.model import Model

STRETCH = 1024
"""Rows have room for a multiple of so many tokens, so that a prompt a little longer finds the same runner."""
SIZE = 64
"""Tokens of a page."""

_kept: weakref.WeakKeyDictionary[Model, tuple[Any, Runner]] = weakref.WeakKeyDictionary()
_users: weakref.WeakKeyDictionary[Runner, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""Who was given a runner and has not given it back. One whose user is gone is free again."""
_asking = threading.Lock()


def runner_for(model: Model, rows: int, length: int, user: object | None = None) -> Runner:
    """A runner for so many rows of so many tokens. One is kept for each model: the last that was asked for.

    `user` has it to itself until it gives it back, or is no more: threads and streams that run side by side have each
    their own, even before their first row has a seat.
    """
    with _asking:
        runner = _found(model, rows, length)
        if user is not None:
            _users[runner] = weakref.ref(user)
        return runner


def give_back(runner: Runner) -> None:
    """Let others have a runner."""
    with _asking:
        _users.pop(runner, None)


def _found(model: Model, rows: int, length: int) -> Runner:
    shell = copy.copy(model)
    weights = tuple(p.data_ptr() for p in model.parameters())
    most = -(-length // STRETCH) * STRETCH
    kept = _kept.get(model)
    if kept is not None:
        seen, runner = kept
        user = _users.get(runner)
        free = not runner.pool.tenants and (user is None or user() is None)
        if free and seen == weights and runner.pool.seats >= rows and runner.pool.length >= length:
            return runner
        # Its memory is needed before the next one takes its own.
        if free:
            del _kept[model], kept, runner
    # The shell shares all modules: an entry that held the model itself would keep it alive for ever.
    runner = Runner(shell, model.new_pool(rows, most, size=SIZE))
    _kept[model] = weights, runner
    return runner


def dismiss(model: Model) -> None:
    """Forget the runner of a model, and give its memory back."""
    _kept.pop(model, None)
