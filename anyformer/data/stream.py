"""One long stream of documents, read by place without being held in memory."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.data.dataset import Examples
from anyformer.data.objectives.objective import ids_of
from anyformer.data.objectives.text import surrounded
from anyformer.data.spans import Piece


class Stream:
    """Documents end to end, each with the ids that belong before and after it."""

    def __init__(self, examples: Examples, before: int | None, after: int | None) -> None:
        self.examples, self.before, self.after = examples, before, after
        lengths_N = np.asarray(examples.lengths("tokens")) + len(ids_of(before, after))
        self._ends_N = np.cumsum(lengths_N)

    def __len__(self) -> int:
        return int(self._ends_N[-1]) if len(self._ends_N) else 0

    def read(self, start: int, stop: int) -> Any:
        """The ids from one place to another, int64. The end is followed by the beginning: places go once around at most."""
        if stop > len(self):
            return np.concatenate([self._read(start, len(self)), self._read(0, stop - len(self))])
        return self._read(start, stop)

    def _read(self, start: int, stop: int) -> Any:
        parts: list[Any] = []
        i = int(np.searchsorted(self._ends_N, start, side="right"))
        while start < stop:
            end = int(self._ends_N[i])
            begin = int(self._ends_N[i - 1]) if i else 0
            piece = Piece(i, start - begin, min(stop, end) - begin)
            parts.append(surrounded(self.examples, piece, self.before, self.after))
            start, i = max(start, min(stop, end)), i + 1
        return parts[0] if len(parts) == 1 else np.concatenate(parts)
