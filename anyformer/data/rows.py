"""Rows of tokens to learn from: the batch of any step is a pure function of (seed, step)."""

from __future__ import annotations

from typing import Any

import numpy as np

from anyformer.errors import DataError


class Rows:
    """Rows of `length` tokens cut from one long stream.

    Each epoch cuts the stream at another offset and visits the rows in another order, so that no two epochs show the
    model the same rows, and no state is kept that could be lost. A row may hold the end of one document and the
    beginning of the next, with the token that ends a text between them: files are much longer than rows.
    """

    def __init__(self, tokens: Any, *, length: int, batch: int, seed: int) -> None:
        self.tokens = np.asarray(tokens)
        self.length, self.batch_size, self.seed = length, batch, seed
        # One row is given up for the offset, unless there is only one.
        self.rows = max((len(self.tokens) - length) // length, 1)
        if len(self.tokens) < length:
            raise DataError(
                f"the text to learn from has {len(self.tokens)} tokens, and one row takes {length} (the context); "
                "give a longer text or a shorter context"
            )
        self._epoch = -1
        self._order = self._starts(0)

    def _starts(self, epoch: int) -> Any:
        """Where the rows of an epoch begin, in the order in which they are visited."""
        if epoch != self._epoch:
            draw = np.random.default_rng((self.seed, epoch))
            room = len(self.tokens) - self.rows * self.length
            offset = int(draw.integers(min(room, self.length - 1) + 1))
            self._epoch, self._order = epoch, offset + self.length * draw.permutation(self.rows)
        return self._order

    def batch(self, step: int) -> Any:
        """The tokens of a step, (batch, length)."""
        first = step * self.batch_size
        starts = [self._starts(i // self.rows)[i % self.rows] for i in range(first, first + self.batch_size)]
        return self.tokens[np.asarray(starts)[:, None] + np.arange(self.length)].astype(np.int64)
