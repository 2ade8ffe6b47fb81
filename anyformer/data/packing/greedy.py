"""Greedy (next-fit): items in their order, and a new row when the next one does not fit any more."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.packing import Packing


@dataclass(frozen=True, kw_only=True)
class Greedy(Packing, kind="greedy"):
    """Keeps neighbours together and looks at each item once; wastes the most."""

    def rows_of(self, lengths_P: Any, capacity: int) -> Any:
        row, free, row_P = -1, 0, np.empty(len(lengths_P), np.int64)
        for item, length in enumerate(lengths_P.tolist()):
            if length > free:
                row, free = row + 1, capacity
            free -= length
            row_P[item] = row
        return row_P
