"""The unigram model: each token by how often it occurs, whatever came before. What a model must beat to be one."""

from __future__ import annotations

from typing import Any

import numpy as np


def unigram_nats(learned_from: Any, measured_on: Any, vocab: int) -> float:
    """Sum of -ln p over the tokens measured on; every token counts once more than it occurs, so that none has p = 0."""
    counts = np.bincount(np.asarray(learned_from), minlength=vocab) + 1.0
    return float(-np.log(counts / counts.sum())[np.asarray(measured_on)].sum())
