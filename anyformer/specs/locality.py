"""Reach: how far from a query its keys can be, but for a few tokens that see or are seen everywhere."""

from __future__ import annotations

from typing import NamedTuple


class Reach(NamedTuple):
    """Every allowed pair lies within `back` and `ahead`, or its query or its key is one of the tokens apart."""

    back: int | None
    """Positions back, the query's own included; None: no limit."""
    ahead: int | None
    """Positions after the query; None: no limit."""
    first: int = 0
    """So many of a document's first tokens are apart."""
    marks: bool = False
    """So are the marked ones."""

    @property
    def bounded(self) -> bool:
        """Whether there is a limit on both sides."""
        return self.back is not None and self.ahead is not None

    @property
    def apart(self) -> bool:
        """Whether any tokens are apart."""
        return self.first > 0 or self.marks

    def meet(self, other: Reach) -> Reach:
        """Of pairs that two patterns allow both."""
        for one, rest in ((self, other), (other, self)):
            if one.bounded and not one.apart and rest.apart:
                # What the other allows beyond, this one does not.
                return one
        return Reach(_least(self.back, other.back), _least(self.ahead, other.ahead), *self._apart(other))

    def join(self, other: Reach) -> Reach:
        """Of pairs that one of two patterns allows."""
        return Reach(_most(self.back, other.back), _most(self.ahead, other.ahead), *self._apart(other))

    def _apart(self, other: Reach) -> tuple[int, bool]:
        return max(self.first, other.first), self.marks or other.marks


def _least(a: int | None, b: int | None) -> int | None:
    return b if a is None else a if b is None else min(a, b)


def _most(a: int | None, b: int | None) -> int | None:
    return None if a is None or b is None else max(a, b)
