"""How fast parameters move."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Rates:
    """Learning rates at their peak, and weight decay."""

    matrices: float = 0.005
    """Of Muon."""
    tables: float = 0.012
    """Of AdamW on embeddings and head."""
    vectors: float = 0.004
    """Of AdamW on gains, biases and the rest."""
    decay: float = 0.1
    """Weight decay of what Muon moves."""
