"""Keeps one runner per model so that calls reuse its CUDA graphs."""

from __future__ import annotations

import copy
import threading
import weakref
from typing import Any

from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.model.model import Model

STRETCH = 1024
"""Rows have room for a multiple of so many tokens, so that a prompt a little longer finds the same runner."""
BLOCK_SIZE = 64

_kept: weakref.WeakKeyDictionary[Model, tuple[Any, ModelRunner]] = weakref.WeakKeyDictionary()
_users: weakref.WeakKeyDictionary[ModelRunner, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""Who was given a runner and has not given it back. One whose user is gone is free again."""
_asking = threading.Lock()


def runner_for(model: Model, rows: int, length: int, user: object | None = None) -> ModelRunner:
    """A runner for so many rows of so many tokens. One is kept for each model: the last that was asked for.

    `user` has it to itself until it gives it back, or is no more: threads and streams that run side by side have each
    their own, even before their first row has a slot.
    """
    with _asking:
        weights = tuple(p.data_ptr() for p in model.parameters())
        seen, runner = _kept.get(model, (None, None))
        if runner is not None:
            pool: Any = runner.pool
            holder = _users.get(runner, lambda: None)()
            free = not pool.sequences and holder is None
            if not free or seen != weights or pool.max_num_seqs < rows or pool.length < length:
                runner = None
                # Its memory is needed before the next one takes its own.
                if free:
                    del _kept[model], pool
        if runner is None:
            pool = model.new_pool(rows, -(-length // STRETCH) * STRETCH, block_size=BLOCK_SIZE)
            # A shell shares all modules: an entry that held the model itself would keep it alive for ever.
            runner = ModelRunner(copy.copy(model), pool)
            _kept[model] = weights, runner
        if user is not None:
            _users[runner] = weakref.ref(user)
        return runner


def give_back(runner: ModelRunner) -> None:
    """Let others have a runner."""
    with _asking:
        _users.pop(runner, None)


def dismiss(model: Model) -> None:
    """Forget the runner of a model, and give its memory back."""
    _kept.pop(model, None)
