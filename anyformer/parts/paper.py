"""Paper: the numbers of pages, who holds how many of them, and what full ones hold.

A page that nobody holds is free, but what it holds stays known until it is given to somebody else: the one that was
dropped longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from anyformer.errors import InputError

Key = tuple[Any, tuple[int, ...]]
"""What a full page holds: what stands before it, and its own tokens."""


class Paper:
    """Pages 1 to `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total + 1))
        self._holders: dict[int, int] = {}
        """How many hold a page."""
        self._page_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._serial_of: dict[int, int] = {}
        """A number for what a page holds, never used again: a page that holds something else is another beginning."""
        self._serial = 0

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def take(self) -> int:
        """A page to write in."""
        if not self._free:
            raise InputError("no page is free")
        page, _ = self._free.popitem(last=False)
        self._forget(page)
        self._holders[page] = 1
        return page

    def hold(self, page: int) -> None:
        """One more holder of a page whose content is known or shared."""
        self._free.pop(page, None)
        self._holders[page] = self._holders.get(page, 0) + 1

    def drop(self, page: int) -> None:
        """One holder less."""
        left = self._holders[page] - 1
        if left:
            self._holders[page] = left
            return
        del self._holders[page]
        self._free[page] = None
        if page not in self._key_of:
            # Nobody can ask for it again, so it is used before those that somebody may ask for.
            self._free.move_to_end(page, last=False)

    def find(self, root: Any, ids: Sequence[int], size: int) -> list[int]:
        """Pages that hold a beginning of these tokens, as far as they are known."""
        found: list[int] = []
        before: Any = ("root", root)
        for begin in range(0, len(ids) - size + 1, size):
            page = self._page_of.get((before, tuple(ids[begin : begin + size])))
            if page is None:
                break
            found.append(page)
            before = self._serial_of[page]
        return found

    def note(self, root: Any, ids: Sequence[int], size: int, pages: Sequence[int]) -> None:
        """Remember what these full pages hold, from the first on. What is known to lie elsewhere stays there."""
        before: Any = ("root", root)
        for number, page in enumerate(pages):
            if page in self._key_of:
                before = self._serial_of[page]
                continue
            key = before, tuple(ids[number * size : (number + 1) * size])
            known = self._page_of.get(key)
            if known is None:
                self._serial += 1
                self._page_of[key], self._key_of[page], self._serial_of[page] = page, key, self._serial
                known = page
            before = self._serial_of[known]

    def forget(self, page: int) -> bool:
        """Forget what a page holds, if nobody but one has it; whether that is so."""
        if self._holders.get(page, 0) > 1:
            return False
        self._forget(page)
        return True

    def forget_all(self) -> None:
        """Forget what every page holds; who holds it keeps it."""
        for page in list(self._key_of):
            self._forget(page)

    def _forget(self, page: int) -> None:
        key = self._key_of.pop(page, None)
        if key is not None:
            del self._page_of[key], self._serial_of[page]

    def problems(self, holders: dict[int, int]) -> list[str]:
        """Where the books differ from who says that they hold which page."""
        wrong = [
            f"page {page}: {self._holders.get(page, 0)} holders in the books, {holders.get(page, 0)} found"
            for page in sorted({*self._holders, *holders})
            if self._holders.get(page, 0) != holders.get(page, 0)
        ]
        return wrong + [f"page {page}: free and held" for page in self._holders if page in self._free]
