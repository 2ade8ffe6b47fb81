"""Best-fit decreasing: the longest item first, each into the fullest row that still has room for it (Johnson 1973)."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.packing import Packing


@dataclass(frozen=True, kw_only=True)
class BestFit(Packing, kind="best_fit"):
    """At most 11/9 of the fewest rows possible, and far fewer than that on documents."""

    def rows_of(self, lengths_P: Any, capacity: int) -> Any:
        row_P = np.empty(len(lengths_P), np.int64)
        rows = 0
        with_room: defaultdict[int, list[int]] = defaultdict(list)
        # Bit n is set while some row has n cells free: the lowest set bit from a length on is the fullest row that fits.
        rooms = 0
        order = np.argsort(-lengths_P, kind="stable")
        for item, length in zip(order.tolist(), lengths_P[order].tolist(), strict=True):
            fits = rooms >> length
            if fits:
                free = length + (fits & -fits).bit_length() - 1
                row = with_room[free].pop()
                if not with_room[free]:
                    rooms ^= 1 << free
            else:
                row, free, rows = rows, capacity, rows + 1
            row_P[item] = row
            if free > length:
                with_room[free - length].append(row)
                rooms |= 1 << (free - length)
        return row_P
