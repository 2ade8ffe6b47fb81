"""A paged KV cache: some sequences of a pool as the rows of a batch, for one pass of the model.

Each row goes on from its own count: a token's number in its row is its position, and padding (behind the new tokens of
a row) is not kept. All that a step needs is in tensors, so that a captured step can be run again for other sequences.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.kernels.block_table import NULL_BLOCK, BlockTable, numbers, write
from anyformer.parts.kv_cache import KeyPositions, KVCache, concatenated
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool
from anyformer.specs.cache_policy import CachePolicy

FEW = 16
"""New tokens of a row up to which a kernel that reads blocks is asked for."""


class LayerBlocks:
    """The rows' blocks of one policy, and where this step's tokens go and are found."""

    def __init__(self, pool: KVBlockPool, keep: CachePolicy, rows: int, width: int) -> None:
        self.keep, self.block_size, self.chunk = keep, pool.block_size, pool.chunk
        self.host_BN = torch.full((rows, width), NULL_BLOCK, dtype=torch.int32)
        self.table_BN = self.host_BN.to(pool.device, copy=True)
        self.loaded: dict[int, list[int]] = {}
        """The blocks of each row that has some, as they are in the table."""
        self.slot_S = torch.arange(width * pool.block_size, device=pool.device)
        self.slot_mapping_N = self.slot_S[:0]
        """Where new tokens are written, among all slots of the pool."""
        self.aside = self.alone = self.spills = False
        """Whether new tokens are seen beside the pool's and then written; alone; and some go to the null block."""
        self.before_B = self.after_B = self.slot_S[:0]

    def load(self, rows: Sequence[list[int]]) -> None:
        """Let these blocks be those of the first rows; others have none. Rows that stay as they are cost nothing."""
        width, changed = self.table_BN.shape[1], False
        for i, blocks in enumerate(rows):
            if self.loaded.get(i) != blocks:
                line = blocks[:width]
                self.host_BN[i] = torch.tensor(line + [NULL_BLOCK] * (width - len(line)), dtype=torch.int32)
                self.loaded[i], changed = list(blocks), True
        for i in [i for i in self.loaded if i >= len(rows)]:
            self.host_BN[i] = NULL_BLOCK
            del self.loaded[i]
            changed = True
        if changed:
            self.table_BN.copy_(self.host_BN, non_blocking=True)

    def begin(
        self, number_BT: Tensor, valid_BT: Tensor | None, before_B: Tensor, after_B: Tensor, *, alone: bool
    ) -> None:
        """Prepare a step for tokens with these numbers in their rows."""
        keep = self.keep
        self.alone, self.before_B, self.after_B = alone, before_B, after_B
        self.aside = alone or (keep.recent is not None and number_BT.shape[1] > self.chunk)
        slot_BT = keep.slot(number_BT)
        stays_BT = valid_BT
        if keep.recent is not None and number_BT.shape[1] > 1:
            last_BT = keep.held(slot_BT, after_B[:, None]) == number_BT
            stays_BT = last_BT if stays_BT is None else stays_BT & last_BT
        # Padding, and rows that are nobody's, may be counted past the table.
        block_BT = (slot_BT // self.block_size).clamp(max=self.table_BN.shape[1] - 1)
        flat_BT = self.table_BN.gather(1, block_BT) * self.block_size + slot_BT % self.block_size
        self.spills = stays_BT is not None
        if stays_BT is not None:
            flat_BT = torch.where(stays_BT, flat_BT, NULL_BLOCK)
        self.slot_mapping_N = flat_BT.flatten()


class PagedKVCache(KVCache):
    """What the model reads and writes as its cache."""

    paged = True
    positions_are_counts = True

    def __init__(self, pool: KVBlockPool, sequences: Sequence[CachedSequence], lengths: Sequence[int]) -> None:
        """Room for `lengths` new tokens of each sequence must be reserved."""
        widths = [max(1, *(len(each.blocks[i]) for each in sequences)) for i in range(len(pool.policies))]
        self._allocate(pool, len(sequences), widths)
        self.sequences, self.lengths = sequences, lengths
        if sequences[0].source_rope_length is not None:
            self.source_rope_length = sequences[0].source_rope_length
        if sequences[0].cross:
            sizes = {each.cross[0][0].shape[1] for each in sequences}
            masked = len(sizes) > 1 or any(each.source_valid_1S is not None for each in sequences)
            self._allocate_cross(sequences[0], max(sizes), masked=masked)
        self.load(sequences)

    @classmethod
    def for_decode(
        cls, pool: KVBlockPool, rows: int, source: CachedSequence | None = None, source_length: int = 0
    ) -> PagedKVCache:
        """Rows that decode, whoever is loaded; with room for sources of up to `source_length` tokens, like `source`'s."""
        made = cls.__new__(cls)
        made._allocate(pool, rows, [max(1, pool.blocks_for(i, pool.length)) for i in range(len(pool.policies))])
        if source is not None:
            made._allocate_cross(source, source_length, masked=True)
        made.used, made.right_padded, made.ragged = max(1, pool.prefix), False, True
        return made

    def _allocate(self, pool: KVBlockPool, rows: int, widths: Sequence[int]) -> None:
        KVCache.__init__(self, pool.specs, batch=rows, device=pool.device, dtype=pool.dtype)
        device = pool.device
        self.pool, self.chunk, self.rotary = pool, pool.chunk, pool.rotary
        self.sequences: Sequence[CachedSequence] = ()
        """Whose counts `advance` keeps. A captured step can't: whoever replays it does."""
        self.lengths: Sequence[int] = ()
        self.source_rope_length = pool.rope_length
        self.slot_B = torch.full((rows,), pool.max_num_seqs, device=device)
        self.seen_B = self.total_B = torch.zeros(rows, dtype=torch.long, device=device)
        """Tokens of each row before and after this step."""
        self.rope_length = pool.default_rope_length
        if pool.needs_rope_length:
            self.rope_length = torch.full((rows,), pool.default_rope_length, device=device)
        self.blocks = [LayerBlocks(pool, keep, rows, n) for keep, n in zip(pool.policies, widths, strict=True)]
        self.new: KeyPositions = (self.seen_B[None, :0], None, None)
        """Where the new tokens are: all that a layer with a state sees."""
        self.states: dict[int, tuple[Tensor, ...]] = {}
        """Of the step under way, by layer."""
        self.index_T = torch.arange(pool.length, device=device)

    def _allocate_cross(self, like: CachedSequence, length: int, *, masked: bool) -> None:
        """Room for sources of up to so many tokens."""
        self.has_source = True
        self.cross = [tuple(t.new_zeros(self.batch, length, *t.shape[2:]) for t in layer) for layer in like.cross]
        self.source_pos_BS = self.slot_B.new_zeros(self.batch, length)
        self.source_serials = [-1] * self.batch
        """Whose source each row has."""
        if masked:
            self.source_valid_BS = torch.zeros(self.batch, length, dtype=torch.bool, device=self.device)
            # A row that is nobody's sees one key of zeros: what it computes must be finite.
            self.source_valid_BS[:, 0] = True

    def load(self, sequences: Sequence[CachedSequence]) -> None:
        """Let these sequences be the first rows; others are nobody's."""
        spare, counts, pool = self.batch - len(sequences), [each.num_computed_tokens for each in sequences], self.pool
        _fill(self.slot_B, [each.slot for each in sequences] + [pool.max_num_seqs] * spare)
        _fill(self.seen_B, counts + [0] * spare)
        if isinstance(self.rope_length, Tensor):
            _fill(self.rope_length, [each.rope_length for each in sequences] + [pool.default_rope_length] * spare)
        for i, blocks in enumerate(self.blocks):
            blocks.load([each.blocks[i] for each in sequences])
        self.used = min(counts)
        # Rows that have read nothing begin at their first column, and are alike; others may differ.
        self.right_padded = max(counts) == 0
        self.ragged = not self.right_padded
        if self.has_source:
            self._load_sources(sequences)

    def _load_sources(self, sequences: Sequence[CachedSequence]) -> None:
        """The sources of these rows, padded behind."""
        for row, each in enumerate(sequences):
            if self.source_serials[row] == each.serial:
                continue
            self.source_serials[row] = each.serial
            if each.source_pos_1S is None or self.source_pos_BS is None:
                raise InputError("a sequence has keys of a source, but not where they are")
            size = each.cross[0][0].shape[1]
            for mine, its in zip(self.cross, each.cross, strict=True):
                for tensor, source in zip(mine, its, strict=True):
                    tensor[row, :size] = source[0]
                    tensor[row, size:] = 0
            self.source_pos_BS[row, :size] = each.source_pos_1S[0]
            if self.source_valid_BS is not None:
                self.source_valid_BS[row, :size] = True if each.source_valid_1S is None else each.source_valid_1S[0]
                self.source_valid_BS[row, size:] = False

    def begin(self, pos_BT: Tensor, valid_BT: Tensor | None, global_BT: Tensor | None = None, *, ragged: bool) -> None:
        new = pos_BT.shape[1]
        if valid_BT is None:
            self.total_B = self.seen_B + new
            number_BT = self.seen_B[:, None] if new == 1 else self.seen_B[:, None] + self.index_T[None, :new]
        else:
            self.total_B = self.seen_B + valid_BT.sum(1)
            number_BT = (self.seen_B[:, None] + valid_BT.cumsum(1) - 1).clamp(min=0)
        marks = self.pool.is_global
        if marks is not None:
            # Padding has the number of a real token, so it writes into the spare slot.
            row_B1, spare = self.slot_B[:, None], self.pool.max_num_seqs
            row_BT = (row_B1 if valid_BT is None else torch.where(valid_BT, row_B1, spare)).expand_as(number_BT)
            marks[row_BT, number_BT] = torch.zeros_like(row_BT, dtype=torch.bool) if global_BT is None else global_BT
        self.new = pos_BT, valid_BT, self._marks(number_BT)
        self.states = {}
        for blocks in self.blocks:
            blocks.begin(number_BT, valid_BT, self.seen_B, self.total_B, alone=self.right_padded)

    def _marks(self, number_BS: Tensor) -> Tensor | None:
        """Which tokens are global, by their number."""
        marks = self.pool.is_global
        return None if marks is None else marks[self.slot_B[:, None], number_BS]

    def key_positions(self, layer: int) -> KeyPositions:
        policy = self.pool.policy_of[layer]
        if policy is None or self.blocks[policy].alone:
            return self.new
        blocks = self.blocks[policy]
        number_BS = numbers(blocks.keep, blocks.slot_S, blocks.before_B if blocks.aside else blocks.after_B)
        there_BS, number_BS = number_BS >= 0, number_BS.clamp(min=0)
        seen = number_BS, there_BS, self._marks(number_BS)
        return concatenated(seen, self.new) if blocks.aside else seen

    def block_table(self, layer: int, queries: int) -> BlockTable | None:
        policy = self.pool.policy_of[layer]
        if policy is None or queries > FEW or len(self.specs[layer].streams) != 2:
            return None
        blocks = self.blocks[policy]
        if blocks.aside:
            return None
        return BlockTable(blocks.table_BN, blocks.block_size, self.total_B.to(torch.int32), blocks.keep)

    def slot_mapping(self, layer: int) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        streams, policy = self.pool.layers[layer], self.pool.policy_of[layer]
        if policy is None:
            raise InputError(f"layer {layer} keeps a state and no tokens")
        return self.blocks[policy].slot_mapping_N, [s[0] for s in streams], [s[1] for s in streams if len(s) > 1]

    def update(self, layer: int, *new: Tensor, paged: bool = False) -> tuple[Tensor, ...]:
        policy = self.pool.policy_of[layer]
        if policy is None:
            return new
        blocks, streams = self.blocks[policy], self.pool.layers[layer]
        old: list[Tensor] = []
        if blocks.aside and not blocks.alone:
            old = [self._gather(blocks, stream, x) for stream, x in zip(streams, new, strict=True)]
        for stream, x in zip(streams, new, strict=True):
            write(stream[0], stream[1] if len(stream) > 1 else None, blocks.slot_mapping_N, x.flatten(0, 1))
            if blocks.spills:
                # It stands behind the keys of shorter rows, with a weight of 0; so it must be finite.
                for tensor in stream:
                    tensor[NULL_BLOCK, 0] = 0
        if paged:
            return (*(s[0] for s in streams), *(s[1] for s in streams if len(s) > 1))
        if blocks.alone:
            return new
        if blocks.aside:
            return tuple(torch.cat((kept, x), 1) for kept, x in zip(old, new, strict=True))
        return tuple(self._gather(blocks, stream, x) for stream, x in zip(streams, new, strict=True))

    def _gather(self, blocks: LayerBlocks, stream: tuple[Tensor, ...], like: Tensor) -> Tensor:
        table = BlockTable(blocks.table_BN, blocks.block_size, self.total_B, blocks.keep)
        return table.gather(stream[0], stream[1] if len(stream) > 1 else None, like.dtype)

    def state(self, layer: int) -> tuple[Tensor, ...]:
        """The rows' states, gathered; `advance` writes them back."""
        self.states[layer] = tuple(state[self.slot_B] for state in self.pool.states[layer])
        return self.states[layer]

    def advance(self, new: int) -> None:
        for layer, states in self.states.items():
            for kept, state in zip(self.pool.states[layer], states, strict=True):
                kept[self.slot_B] = state
        self.seen_B.copy_(self.total_B)
        if not self.sequences:
            return
        for sequence, length in zip(self.sequences, self.lengths, strict=True):
            sequence.num_computed_tokens += length
        if not self.has_source and self.cross[0]:
            self._split_sources()
        self.used, self.right_padded, self.ragged = (
            min(each.num_computed_tokens for each in self.sequences),
            False,
            True,
        )

    def _split_sources(self) -> None:
        """Give each sequence what was kept of its source, without padding where that stands behind."""
        self.has_source = True
        for row, sequence in enumerate(self.sequences):
            sequence.cross = [tuple(t[row : row + 1] for t in layer) for layer in self.cross]
            pos_BS, valid_BS = self.source_pos_BS, self.source_valid_BS
            sequence.source_pos_1S = pos_BS if pos_BS is None or len(pos_BS) == 1 else pos_BS[row : row + 1]
            sequence.source_valid_1S = valid_BS if valid_BS is None or len(valid_BS) == 1 else valid_BS[row : row + 1]


def _fill(tensor: Tensor, rows: list[Any]) -> None:
    tensor.copy_(torch.tensor(rows, dtype=tensor.dtype).view(tensor.shape), non_blocking=True)
