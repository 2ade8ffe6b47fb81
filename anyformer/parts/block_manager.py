"""Block manager: free list, reference counts, prefix-cache index.

A block that nobody holds is free, but what it holds stays known until it is given to somebody else: the one that was
freed longest ago goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Any

from anyformer.errors import InputError

Key = tuple[Any, tuple[int, ...]]
"""What a full block holds: what stands before it, and its own tokens."""


class BlockManager:
    """Blocks 1 to `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total + 1))
        self._refcount: dict[int, int] = {}
        """How many sequences hold a block."""
        self._block_of: dict[Key, int] = {}
        self._key_of: dict[int, Key] = {}
        self._serial_of: dict[int, int] = {}
        """A number for what a block holds, never used again: a block that holds something else is another beginning."""
        self._serial = 0

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """A block to write in."""
        if not self._free:
            raise InputError("no block is free")
        block, _ = self._free.popitem(last=False)
        self._evict(block)
        self._refcount[block] = 1
        return block

    def incref(self, block: int) -> None:
        """One more holder of a block whose content is known or shared."""
        self._free.pop(block, None)
        self._refcount[block] = self._refcount.get(block, 0) + 1

    def decref(self, block: int) -> None:
        """One holder less."""
        left = self._refcount[block] - 1
        if left:
            self._refcount[block] = left
            return
        del self._refcount[block]
        self._free[block] = None
        if block not in self._key_of:
            # Nobody can ask for it again, so it is used before those that somebody may ask for.
            self._free.move_to_end(block, last=False)

    def lookup_prefix(self, root: Any, ids: Sequence[int], size: int) -> list[int]:
        """Blocks that hold a beginning of these tokens, as far as they are known."""
        found: list[int] = []
        before: Any = ("root", root)
        for begin in range(0, len(ids) - size + 1, size):
            block = self._block_of.get((before, tuple(ids[begin : begin + size])))
            if block is None:
                break
            found.append(block)
            before = self._serial_of[block]
        return found

    def register_prefix(self, root: Any, ids: Sequence[int], size: int, blocks: Sequence[int]) -> None:
        """Remember what these full blocks hold, from the first on. What is known to lie elsewhere stays there."""
        before: Any = ("root", root)
        for number, block in enumerate(blocks):
            if block in self._key_of:
                before = self._serial_of[block]
                continue
            key = before, tuple(ids[number * size : (number + 1) * size])
            known = self._block_of.get(key)
            if known is None:
                self._serial += 1
                self._block_of[key], self._key_of[block], self._serial_of[block] = block, key, self._serial
                known = block
            before = self._serial_of[known]

    def evict(self, block: int) -> bool:
        """Forget what a block holds, if nobody but one has it; whether that is so."""
        if self._refcount.get(block, 0) > 1:
            return False
        self._evict(block)
        return True

    def reset_prefix_cache(self) -> None:
        """Forget what every block holds; who holds it keeps it."""
        for block in list(self._key_of):
            self._evict(block)

    def _evict(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key], self._serial_of[block]

    def problems(self, holders: dict[int, int]) -> list[str]:
        """Where the counts differ from those of the sequences."""
        wrong = [
            f"block {block}: {self._refcount.get(block, 0)} references counted, {holders.get(block, 0)} found"
            for block in sorted({*self._refcount, *holders})
            if self._refcount.get(block, 0) != holders.get(block, 0)
        ]
        return wrong + [f"block {block}: free and held" for block in self._refcount if block in self._free]
