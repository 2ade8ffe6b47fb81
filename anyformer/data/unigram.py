"""The unigram model: each token by how often it occurs, whatever came before. What a model must beat to be one."""

from __future__ import annotations

from typing import Any

import numpy as np


def unigram_nats(learned_from: Any, measured_on: Any, vocab: int) -> float:
    """Sum of -ln p over the tokens measured on; every token counts once more than it occurs, so that none has p = 0."""
    learned_V, measured_V = (np.bincount(np.asarray(ids_N), minlength=vocab) for ids_N in (learned_from, measured_on))
    return counted_nats(learned_V, measured_V)


def counted_nats(learned_V: Any, measured_V: Any) -> float:
    """The same from how often each token of the vocabulary occurs."""
    counts_V = np.asarray(learned_V) + 1.0
    return float(-np.log(counts_V / counts_V.sum()) @ np.asarray(measured_V))
