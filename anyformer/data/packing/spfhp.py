"""Shortest-pack-first histogram packing (Krell et al. 2021): the longest item first, each into the emptiest row."""

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np

from anyformer.data.packing import Packing

Chain = tuple[int, Any] | None
"""Lengths that share a row, the last one first, with the chain before it: longer chains share the shorter ones."""


@dataclass(frozen=True, kw_only=True)
class Spfhp(Packing, kind="spfhp"):
    """Works on how many items there are of each length, so millions of them take no longer than their lengths do.

    Where items of one length find no open row, they fill a new one before the next is opened; the published listing
    gives each of them a row, which wastes much where most items are equally long.
    """

    def rows_of(self, lengths_P: Any, capacity: int) -> Any:
        return _placed(lengths_P, _kinds_of_rows(np.bincount(lengths_P, minlength=capacity + 1), capacity))


def _kinds_of_rows(histogram: Any, capacity: int) -> list[tuple[int, Chain]]:
    """How many rows there are of each kind, and which lengths such a row holds."""
    with_room: defaultdict[int, list[tuple[int, Chain]]] = defaultdict(list)
    # Bit n is set while some row has n cells free: the highest set bit is the emptiest row.
    rooms = 0

    def keep(count: int, chain: Chain, free: int) -> None:
        nonlocal rooms
        with_room[free].append((count, chain))
        rooms |= 1 << free

    for length in np.flatnonzero(histogram)[::-1].tolist():
        left = int(histogram[length])
        while left and rooms.bit_length() - 1 >= length:
            free = rooms.bit_length() - 1
            count, chain = with_room[free].pop()
            if not with_room[free]:
                rooms ^= 1 << free
            taken = min(count, left)
            left -= taken
            if count > taken:
                keep(count - taken, chain, free)
            keep(taken, (length, chain), free - length)
        each = capacity // length
        for rows, times in ((left // each, each), (1, left % each)):
            if rows and times:
                chain = None
                for _ in range(times):
                    chain = (length, chain)
                keep(rows, chain, capacity - times * length)
    # Full rows come first.
    return with_room.pop(0, []) + [kind for kinds in with_room.values() for kind in kinds]


def _placed(lengths_P: Any, kinds: list[tuple[int, Chain]]) -> Any:
    """The row of each item: items of a length are handed out in their order."""
    row_P = np.empty(len(lengths_P), np.int64)
    order = np.argsort(lengths_P, kind="stable")
    next_of = np.searchsorted(lengths_P[order], np.arange(int(lengths_P.max(initial=0)) + 1)).tolist()
    first = 0
    for count, chain in kinds:
        while chain is not None:
            length, chain = chain
            start = next_of[length]
            next_of[length] += count
            row_P[order[start : start + count]] = np.arange(first, first + count)
        first += count
    return row_P
