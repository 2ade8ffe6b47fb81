"""Block manager: free list, reference counts, prefix-cache index.

A block that nobody holds is free, but what it holds stays known until it is given to somebody else: the one that was
freed longest ago goes first.
"""

from __future__ import annotations

import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from anyformer.errors import InputError

Key = tuple[Any, tuple[int, ...]]
"""What a full block holds: what stands before it, and its own tokens."""


@dataclass(slots=True)
class Block:
    """What is known of a block."""

    refs: int = 0
    """How many sequences hold it."""
    key: Key | None = None
    serial: int = 0
    """A number for what it holds, never used again: a block that holds something else is another beginning."""


class BlockManager:
    """Blocks 1 to `total`."""

    def __init__(self, total: int) -> None:
        self.total = total
        self._blocks = [Block() for _ in range(total + 1)]
        self._free: OrderedDict[int, None] = OrderedDict.fromkeys(range(1, total + 1))
        self._cached: dict[Key, int] = {}
        self._serials = itertools.count(1)

    @property
    def free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    def allocate(self) -> int:
        """A block to write in."""
        if not self._free:
            raise InputError("no block is free")
        block, _ = self._free.popitem(last=False)
        self.evict(block)
        self._blocks[block].refs = 1
        return block

    def incref(self, block: int) -> None:
        """One more holder of a block whose content is known or shared."""
        self._free.pop(block, None)
        self._blocks[block].refs += 1

    def decref(self, block: int) -> None:
        """One holder less."""
        self._blocks[block].refs -= 1
        if not self._blocks[block].refs:
            self._free[block] = None
            # What nobody can ask for again is used before what somebody may ask for.
            self._free.move_to_end(block, last=self._blocks[block].key is not None)

    def lookup_prefix(self, root: Any, ids: Sequence[int], size: int) -> list[int]:
        """Blocks that hold a beginning of these tokens, as far as they are known."""
        found: list[int] = []
        before: Any = ("root", root)
        for begin in range(0, len(ids) - size + 1, size):
            block = self._cached.get((before, tuple(ids[begin : begin + size])))
            if block is None:
                break
            found.append(block)
            before = self._blocks[block].serial
        return found

    def register_prefix(self, root: Any, ids: Sequence[int], size: int, blocks: Sequence[int]) -> None:
        """Remember what these full blocks hold, from the first on. What is known to lie elsewhere stays there."""
        before: Any = ("root", root)
        for number, block in enumerate(blocks):
            known = block
            if self._blocks[block].key is None:
                key = before, tuple(ids[number * size : (number + 1) * size])
                known = self._cached.setdefault(key, block)
                if known == block:
                    self._blocks[block].key, self._blocks[block].serial = key, next(self._serials)
            before = self._blocks[known].serial

    def evict(self, block: int) -> bool:
        """Forget what a block holds, if nobody but one has it; whether that is so."""
        alone = self._blocks[block].refs <= 1
        key = self._blocks[block].key
        if alone and key is not None:
            del self._cached[key]
            self._blocks[block].key = None
        return alone

    def reset_prefix_cache(self) -> None:
        """Forget what every block holds; who holds it keeps it."""
        for block in self._cached.values():
            self._blocks[block].key = None
        self._cached.clear()

    def problems(self, holders: dict[int, int]) -> list[str]:
        """Where the counts differ from those of the sequences."""
        wrong: list[str] = []
        for number, block in enumerate(self._blocks):
            if block.refs != holders.get(number, 0):
                wrong.append(f"block {number}: {block.refs} references counted, {holders.get(number, 0)} found")
            if block.refs and number in self._free:
                wrong.append(f"block {number}: free and held")
        return wrong
