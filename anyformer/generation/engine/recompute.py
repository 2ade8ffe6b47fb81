"""Decoding without a cache: every step reads all tokens again. Slow, and the measure of the other ways."""

from __future__ import annotations

import copy
from collections.abc import Sequence as Rows
from typing import Any, cast

import torch
from torch import Tensor

from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.model.model import Model
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import CachedSequence


class TokenPool:
    """Keeps nothing of a sequence but its tokens, which of them are global, and the encoder's states of its source."""

    restartable = False

    def __init__(self, model: Model, length: int) -> None:
        self.device, self.length = next(model.parameters()).device, length
        self.tokens: dict[int, list[int]] = {}
        """By the sequences' serial numbers."""
        self.global_T: dict[int, Tensor] = {}
        self.source: dict[int, tuple[Tensor, Tensor]] = {}
        """The encoder's states (S,D), and which of them are real."""

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence:
        """A sequence that has read nothing."""
        made = CachedSequence(0, [], rope_length=rope_length, source_rope_length=source_rope_length)
        self.tokens[made.serial] = []
        return made

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        """There is always room."""
        return True

    def fork(self, sequence: CachedSequence) -> CachedSequence:
        """Another sequence that has read the same."""
        twin = self.add(rope_length=sequence.rope_length, source_rope_length=sequence.source_rope_length)
        twin.count = sequence.count
        for kept in (self.tokens, self.global_T, self.source):
            if sequence.serial in kept:
                cast(dict[int, Any], kept)[twin.serial] = copy.copy(kept[sequence.serial])
        return twin

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        """Forget a sequence."""
        for kept in (self.tokens, self.global_T, self.source):
            kept.pop(sequence.serial, None)

    def batch(self, sequences: Rows[CachedSequence], lengths: Rows[int]) -> KVCache:
        """There is none."""
        raise TypeError("without a cache no pass has one")


class RecomputeRunner(ModelRunner):
    """Reads all tokens of each sequence in every pass."""

    pool: TokenPool

    @torch.inference_mode()
    def forward(
        self,
        sequences: Rows[CachedSequence],
        ids: Rows[Rows[int]],
        *,
        sources: Rows[Tensor] | None = None,
        global_tokens: Rows[Tensor] | None = None,
    ) -> Tensor:
        """The states (B,T,D) of the new tokens, of rows padded behind."""
        pool, given = self.pool, dict[str, Any]()
        serials = [each.serial for each in sequences]
        for i, (sequence, new) in enumerate(zip(sequences, ids, strict=True)):
            pool.tokens[sequence.serial] += new
            sequence.count += len(new)
            if global_tokens is not None and sources is None:
                # Of the first pass: no token after the prompt is global.
                pool.global_T.setdefault(sequence.serial, global_tokens[i])
        if sources is not None:
            self._encode(sequences, sources, global_tokens)
        rows = [pool.tokens[serial] for serial in serials]
        lengths = [len(row) for row in rows]
        if min(lengths) < max(lengths):
            given["decoder_attention_mask" if self.seq2seq else "attention_mask"] = self._mask(lengths)
        if self.seq2seq:
            given["encoder_states"] = torch.nn.utils.rnn.pad_sequence(
                [pool.source[s][0] for s in serials], batch_first=True
            )
            valid = [pool.source[s][1] for s in serials]
            if not all(bool(each.all()) for each in valid) or len({len(each) for each in valid}) > 1:
                given["attention_mask"] = self._padded(valid)
        elif serials[0] in pool.global_T:
            size = max(lengths)
            marks = [torch.nn.functional.pad(pool.global_T[s], (0, size - len(pool.global_T[s]))) for s in serials]
            given["global_mask"] = torch.stack(marks).to(pool.device)
        if self.model.reads_length:
            given["rope_length"] = sequences[0].rope_length
        given[self.name] = self._padded([torch.tensor(row) for row in rows])
        hidden_BTD = self.body(**given).hidden
        # Each row's newest tokens, from its first column on.
        width = max(len(new) for new in ids)
        first_B = torch.tensor([n - len(new) for n, new in zip(lengths, ids, strict=True)], device=pool.device)
        column_BT = (first_B[:, None] + torch.arange(width, device=pool.device)).clamp(max=hidden_BTD.shape[1] - 1)
        return hidden_BTD.gather(1, column_BT[..., None].expand(-1, -1, hidden_BTD.shape[-1]))

    def _encode(
        self, sequences: Rows[CachedSequence], sources: Rows[Tensor], global_tokens: Rows[Tensor] | None
    ) -> None:
        """Keep the encoder's states of each source."""
        lengths = [len(source) for source in sources]
        given: dict[str, Any] = {"input_ids": self._padded(sources), "attention_mask": self._mask(lengths)}
        if global_tokens is not None:
            given["global_mask"] = self._padded(global_tokens)
        if self.model.reads_length:
            # What was not given is the source's own length in the encoder.
            given["rope_length"] = sequences[0].source_rope_length
        start = torch.zeros(len(sources), 1, dtype=torch.long, device=self.pool.device)
        states_BSD = self.body(decoder_input_ids=start, **given).encoder_states
        for sequence, states_SD, valid_S in zip(sequences, states_BSD, given["attention_mask"], strict=True):
            self.pool.source[sequence.serial] = states_SD, valid_S

    @torch.inference_mode()
    def decode(self, sequences: Rows[CachedSequence], ids: Rows[int]) -> Tensor:
        """Logits (B,V) after one more token of each sequence."""
        return self.head(self.forward(sequences, [[each] for each in ids])[:, -1])
