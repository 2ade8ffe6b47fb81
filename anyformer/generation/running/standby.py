"""Standby: a runner that is kept for a model, so that the next call finds its steps captured."""

from __future__ import annotations

import copy
import weakref
from typing import Any

from anyformer.generation.running.runner import Runner
from anyformer.model.lean import lean
from anyformer.model.models import Model

STRETCH = 1024
"""Rows have room for a multiple of so many tokens, so that a prompt a little longer finds the same runner."""
SIZE = 64
"""Tokens of a page."""

_kept: weakref.WeakKeyDictionary[Model, tuple[Any, Runner]] = weakref.WeakKeyDictionary()


def runner_for(model: Model, rows: int, length: int) -> Runner:
    """A runner for so many rows of so many tokens. One is kept for each model: the last that was asked for."""
    shell = copy.copy(lean(model))
    weights = tuple(p.data_ptr() for p in model.parameters())
    most = -(-length // STRETCH) * STRETCH
    kept = _kept.get(model)
    if kept is not None:
        seen, runner = kept
        if seen == weights and runner.pool.seats >= rows and runner.pool.length >= length and not runner.pool.tenants:
            return runner
        # Its memory is needed before the next one takes its own.
        if not runner.pool.tenants:
            del _kept[model], kept, runner
    # The shell shares all modules: an entry that held the model itself would keep it alive for ever.
    runner = Runner(shell, model.new_pool(rows, most, size=SIZE))
    _kept[model] = weights, runner
    return runner


def dismiss(model: Model) -> None:
    """Forget the runner of a model, and give its memory back."""
    _kept.pop(model, None)
