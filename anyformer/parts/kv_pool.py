"""A KV pool: blocks of keys and values that many sequences share, who holds which, and which prefixes are cached.

A sequence has a slot (its row of states and global marks) and, for every policy of keeping tokens, a block table that
grows with its computed tokens. Blocks of equal prefixes are shared where all layers keep all tokens: a block that is full
never changes. NULL_BLOCK belongs to nobody. A block that nobody holds is free, but what it holds stays known until it is
given to somebody else: the one that was freed longest ago goes first.
"""

import abc
import itertools
import math
from collections import Counter, OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.block_table import NULL_BLOCK
from anyformer.parts.kv_cache import KVCache
from anyformer.specs.cache_policy import CachePolicy, LayerCacheSpec

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

    def problems(self, holders: Counter[int]) -> list[str]:
        """Where the counts differ from those of the sequences, or a block is free and held, or neither."""
        return [
            f"block {i}: {block.refs} references counted, {holders[i]} found, {'' if i in self._free else 'not '}free"
            for i, block in enumerate(self._blocks)
            if block.refs != holders[i] or (i in self._free) != (i > 0 and not block.refs)
        ]


KV_CACHE_DTYPES = ("model", "int8")


@dataclass(eq=False, slots=True)
class CachedSequence:
    """What a pool holds for one sequence."""

    slot: int
    blocks: list[list[int]]
    """By policy, in the order of slots."""
    num_computed_tokens: int = 0
    rope_length: int | None = None
    """The length that length-dependent positions read."""
    source_rope_length: int | None = None
    """The same for the source of an encoder-decoder; None: the pool's, else its own length."""
    num_shared_tokens: int = 0
    """Its first tokens lie in blocks that others may read too."""
    cache_salt: str | None = None
    """Blocks are shared only among sequences with the same salt."""
    cross: list[tuple[Tensor, ...]] = field(default_factory=list)
    """Keys and values (1,S,heads,dim) of its source, by layer; empty: no source was read."""
    source_pos_1S: Tensor | None = None
    source_valid_1S: Tensor | None = None
    serial: int = field(default_factory=itertools.count().__next__)
    """A number that no other sequence ever has, as an address may."""


class Pool(abc.ABC):
    """Where keys and values of sequences are kept: blocks, contiguous rows, or nothing but their tokens."""

    restartable = False
    """Whether a sequence whose pass failed can begin again while others go on."""
    device: torch.device
    length: int

    @abc.abstractmethod
    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence | None:
        """An empty sequence; None if all slots are taken."""

    @abc.abstractmethod
    def fork(self, sequence: CachedSequence) -> CachedSequence | None:
        """A copy of a sequence; None if there is no room."""

    @abc.abstractmethod
    def batch(self, sequences: Sequence[CachedSequence], lengths: Sequence[int]) -> KVCache:
        """These sequences as the rows of a batch, for one pass with so many new tokens each."""

    @abc.abstractmethod
    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        """Give back all that a sequence holds; `wipe` clears what nobody else holds of it."""

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        """Allocate room for so many new tokens: for all of them, or none if it is not there."""
        return True


class KVBlockPool(Pool):
    """Room for `max_num_seqs` sequences of up to `length` tokens each.

    `num_blocks` bounds the blocks of layers that keep every token (None: enough for all sequences at full length); others
    get what their slots need. A window keeps room for `chunk` tokens fed at once; more of them are served with a copy.
    """

    restartable = True

    def __init__(
        self,
        specs: tuple[LayerCacheSpec, ...],
        *,
        max_num_seqs: int,
        length: int,
        block_size: int,
        device: torch.device,
        dtype: torch.dtype,
        num_blocks: int | None = None,
        chunk: int = 1,
        kv_cache_dtype: str = "model",
        global_marks: bool = False,
        prefix: int = 0,
        needs_rope_length: bool = False,
        rope_length: int | None = None,
    ) -> None:
        least = {"max_num_seqs": max_num_seqs, "length": length, "block_size": block_size, "chunk": chunk}
        least["num_blocks"] = 1 if num_blocks is None else num_blocks
        wrong = [f"{name}: a pool needs at least 1, got {n}" for name, n in least.items() if n < 1]
        if kv_cache_dtype not in KV_CACHE_DTYPES:
            wrong.append(f"kv_cache_dtype: {kv_cache_dtype!r} is unknown (known: {', '.join(KV_CACHE_DTYPES)})")
        if wrong:
            raise InputError("; ".join(wrong))
        self.specs, self.max_num_seqs, self.length, self.block_size = specs, max_num_seqs, length, block_size
        self.device, self.dtype, self.chunk, self.prefix = device, dtype, chunk, prefix
        self.int8 = kv_cache_dtype == "int8"
        self.needs_rope_length, self.rope_length = needs_rope_length, rope_length
        """Whether a position scheme reads a length, and the one that was given for all sequences."""
        self.default_rope_length = length if rope_length is None else rope_length
        policies = [spec.keep.fed(chunk).within(length) if spec.streams else None for spec in specs]
        self.policies: list[CachePolicy] = list(dict.fromkeys(keep for keep in policies if keep is not None))
        self.policy_of = [None if keep is None else self.policies.index(keep) for keep in policies]
        """By layer; None: it keeps only a state."""
        whole = [max_num_seqs * math.ceil(keep.room(length) / block_size) for keep in self.policies]
        self.totals = tuple(
            most if num_blocks is None or keep.recent is not None else min(most, num_blocks)
            for keep, most in zip(self.policies, whole, strict=True)
        )
        """Blocks that sequences can hold, by policy."""
        self.managers = [BlockManager(total) for total in self.totals]
        self.layers: list[tuple[tuple[Tensor, ...], ...]] = [
            () if policy is None else tuple(self._stream(self.totals[policy] + 1, *stream) for stream in spec.streams)
            for spec, policy in zip(specs, self.policy_of, strict=True)
        ]
        """Keys and values (P, block_size, heads, dim) of each layer; of int8 each with its scales (P, block_size, heads)."""
        exact = torch.promote_types(dtype, torch.float32)
        # The last slot is for rows that fill up a batch.
        self.states = [
            tuple(torch.zeros(max_num_seqs + 1, *shape, device=device, dtype=exact) for shape in spec.state)
            for spec in specs
        ]
        self.is_global = (
            torch.zeros(max_num_seqs + 1, length, dtype=torch.bool, device=device) if global_marks else None
        )
        self.free_slots = list(range(max_num_seqs - 1, -1, -1))
        self.rotary: list[tuple[Tensor, ...] | None] = []
        """As `KVCache.rotary`; empty where it depends on a length that each sequence has for itself."""
        self.shares_prefixes = (
            len(self.policies) == 1 and self.policies[0].recent is None and not self.stateful and not global_marks
        )
        """Whether equal prefixes can share blocks."""
        self.sequences: dict[int, CachedSequence] = {}
        """By slot."""

    def _stream(self, blocks: int, heads: int, dim: int) -> tuple[Tensor, ...]:
        shape = blocks, self.block_size, heads
        if not self.int8:
            return (torch.zeros(*shape, dim, device=self.device, dtype=self.dtype),)
        values = torch.zeros(*shape, dim, device=self.device, dtype=torch.int8)
        return values, torch.zeros(*shape, device=self.device, dtype=torch.float32)

    @property
    def stateful(self) -> bool:
        """Whether a layer keeps a state."""
        return any(spec.state for spec in self.specs)

    def batch(self, sequences: Sequence[CachedSequence], lengths: Sequence[int]) -> KVCache:
        from anyformer.parts.paged_cache import PagedKVCache

        return PagedKVCache(self, sequences, lengths)

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence | None:
        if not self.free_slots:
            return None
        sequence = CachedSequence(self.free_slots.pop(), [[] for _ in self.policies])
        sequence.rope_length = self.default_rope_length if rope_length is None else rope_length
        sequence.source_rope_length = source_rope_length
        self.sequences[sequence.slot] = sequence
        for state in self._states():
            state[sequence.slot].zero_()
        return sequence

    def grow(self, sequence: CachedSequence, new: int) -> None:
        """Allocate the blocks for so many new tokens, by one who has counted them before."""
        if not self.reserve(sequence, new):
            raise InputError(f"the pool has no block left for {new} more tokens")

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        # What is not finite must be cleared: whoever gets a block next does not see it, but 0 times NaN is not 0.
        if self.sequences.pop(sequence.slot, None) is not sequence:
            raise InputError("this sequence holds nothing of this pool: it was freed before, or belongs to another")
        for i, (manager, held) in enumerate(zip(self.managers, sequence.blocks, strict=True)):
            if wipe:
                own = [NULL_BLOCK, *(block for block in held if manager.evict(block))]
                for tensor in self._tensors(i):
                    tensor[own] = 0
            for block in reversed(held):
                manager.decref(block)
        sequence.blocks = [[] for _ in self.policies]
        sequence.cross, sequence.source_pos_1S, sequence.source_valid_1S = [], None, None
        self.free_slots.append(sequence.slot)

    def blocks_for(self, policy: int, tokens: int) -> int:
        """Blocks that a sequence of so many tokens has of a policy."""
        keep = self.policies[policy]
        return math.ceil(min(keep.filled(tokens), keep.room(self.length)) / self.block_size)

    def needs(self, sequence: CachedSequence, new: int) -> list[int]:
        """Further blocks that so many new tokens take, by policy."""
        count = sequence.num_computed_tokens + new
        return [max(0, self.blocks_for(i, count) - len(held)) for i, held in enumerate(sequence.blocks)]

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        if sequence.num_computed_tokens + new > self.length:
            raise InputError(
                f"the pool serves rows of up to {self.length} tokens: {sequence.num_computed_tokens} are read and {new} were given"
            )
        needed = self.needs(sequence, new)
        if any(manager.free < n for manager, n in zip(self.managers, needed, strict=True)):
            return False
        for manager, held, n in zip(self.managers, sequence.blocks, needed, strict=True):
            held.extend(manager.allocate() for _ in range(n))
        return True

    def match_prefix(self, sequence: CachedSequence, ids: Sequence[int]) -> int:
        """Let a new sequence begin with blocks that hold a prefix of these tokens already; how many tokens that is.

        At least one token is left to compute, for its logits.
        """
        if not self.shares_prefixes or sequence.num_computed_tokens or any(sequence.blocks):
            return 0
        manager = self.managers[0]
        found = manager.lookup_prefix(self._root(sequence), ids[: len(ids) - 1], self.block_size)
        # Tokens of a prefix-LM's prefix see each other both ways: all of them are the same, or none is shared.
        if not found or len(found) * self.block_size < self.prefix:
            return 0
        for block in found:
            manager.incref(block)
        sequence.blocks[0] = found
        sequence.num_computed_tokens = sequence.num_shared_tokens = len(found) * self.block_size
        return sequence.num_computed_tokens

    def register_prefix(self, sequence: CachedSequence, ids: Sequence[int]) -> None:
        """Remember what the full blocks of a sequence hold: `ids` are its tokens from the first."""
        if self.shares_prefixes and sequence.num_computed_tokens >= self.prefix:
            full = min(sequence.num_computed_tokens, len(ids)) // self.block_size
            blocks = sequence.blocks[0][:full]
            self.managers[0].register_prefix(self._root(sequence), ids, self.block_size, blocks)
            sequence.num_shared_tokens = max(sequence.num_shared_tokens, full * self.block_size)

    def reset_prefix_cache(self) -> None:
        """Forget what free blocks hold, as the weights are others now."""
        for manager in self.managers:
            manager.reset_prefix_cache()

    def _root(self, sequence: CachedSequence) -> Any:
        """What else the content of a block depends on."""
        return sequence.rope_length if self.needs_rope_length else None, sequence.cache_salt

    def fork(self, sequence: CachedSequence) -> CachedSequence | None:
        """A copy of a sequence; None if there is no room. Full blocks are shared where that is possible."""
        twin = self.add(rope_length=sequence.rope_length, source_rope_length=sequence.source_rope_length)
        if twin is None:
            return None
        shared = sequence.num_computed_tokens // self.block_size if self.shares_prefixes else 0
        missing = [len(held) - (shared if i == 0 else 0) for i, held in enumerate(sequence.blocks)]
        if any(manager.free < n for manager, n in zip(self.managers, missing, strict=True)):
            self.free(twin)
            return None
        for i, (manager, held) in enumerate(zip(self.managers, sequence.blocks, strict=True)):
            same = held[:shared] if i == 0 else []
            for block in same:
                manager.incref(block)
            own = [manager.allocate() for _ in held[len(same) :]]
            twin.blocks[i] = [*same, *own]
            if own:
                for tensor in self._tensors(i):
                    tensor[own] = tensor[held[len(same) :]]
        for state in self._states():
            state[twin.slot] = state[sequence.slot]
        if self.is_global is not None:
            self.is_global[twin.slot] = self.is_global[sequence.slot]
        twin.num_computed_tokens, twin.cache_salt = sequence.num_computed_tokens, sequence.cache_salt
        twin.num_shared_tokens = sequence.num_shared_tokens = max(sequence.num_shared_tokens, shared * self.block_size)
        twin.cross = list(sequence.cross)
        twin.source_pos_1S, twin.source_valid_1S = sequence.source_pos_1S, sequence.source_valid_1S
        return twin

    def snapshot(self, sequence: CachedSequence) -> tuple[int, list[Tensor]]:
        """What `rewind` needs to undo the next step of a sequence: its number of computed tokens, and its states."""
        return sequence.num_computed_tokens, [state[sequence.slot].clone() for state in self._states()]

    def rewind(self, sequence: CachedSequence, count: int, states: Sequence[Tensor] = ()) -> None:
        """Go back to so many computed tokens, and the states after them; of a window by less than `chunk` tokens."""
        back, rings = sequence.num_computed_tokens - count, any(keep.recent is not None for keep in self.policies)
        lost = (rings and back >= max(self.chunk, 2)) or count < sequence.num_shared_tokens
        if back < 0 or lost or (self.stateful and back and not states):
            raise InputError(f"a sequence that has read {sequence.num_computed_tokens} tokens can't go back to {count}")
        if back:
            for state, saved in zip(self._states(), states, strict=self.stateful):
                state[sequence.slot] = saved
        sequence.num_computed_tokens = count

    def _states(self) -> Iterator[Tensor]:
        return (state for layer in self.states for state in layer)

    def _tensors(self, policy: int) -> Iterator[Tensor]:
        """Keys, values and scales of all layers with a policy."""
        layers = (layer for layer, its in zip(self.layers, self.policy_of, strict=True) if its == policy)
        return (tensor for layer in layers for stream in layer for tensor in stream)

    @property
    def nbytes(self) -> int:
        """Bytes of keys, values and states that sequences can hold, without the null block and the spare slot."""
        total = 0
        for i, blocks in enumerate(self.totals):
            total += sum(tensor.nbytes // (blocks + 1) * blocks for tensor in self._tensors(i))
        slots = self.max_num_seqs
        return total + sum(state.nbytes // (slots + 1) * slots for state in self._states())

    def check(self) -> None:
        """Raise if a block or a slot was lost or given away twice."""
        problems: list[str] = []
        if len(self.free_slots) + len(self.sequences) != self.max_num_seqs:
            problems.append(f"{len(self.free_slots)} free and {len(self.sequences)} taken of {self.max_num_seqs} slots")
        for i, manager in enumerate(self.managers):
            problems += manager.problems(Counter(block for each in self.sequences.values() for block in each.blocks[i]))
        if problems:
            raise RuntimeError("a pool has lost count: " + "; ".join(problems))
