"""Decoding without a cache: every step computes all tokens again. Slow, and the measure of the other modes."""

from __future__ import annotations

from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from torch.nn.utils.rnn import pad_sequence

from anyformer.generation.engine.model_runner import ModelRunner
from anyformer.model.model import Model
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import CachedSequence


@dataclass(eq=False, slots=True)
class UncachedSequence(CachedSequence):
    """Of a sequence nothing is kept but its tokens, which of them are global, and the encoder's states of its source."""

    tokens: list[int] = field(default_factory=list)
    global_T: Tensor | None = None
    source_SD: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    source_valid_S: Tensor = field(default_factory=lambda: torch.empty(0))


class TokenPool:
    """Sequences that can be forked, and no keys or values."""

    restartable = False

    def __init__(self, model: Model, length: int) -> None:
        self.device, self.length = next(model.parameters()).device, length

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence:
        """A sequence without tokens."""
        return UncachedSequence(0, [], rope_length=rope_length, source_rope_length=source_rope_length)

    def reserve(self, sequence: CachedSequence, new: int) -> bool:
        """There is always room."""
        return True

    def fork(self, sequence: Any) -> CachedSequence:
        """Another sequence with the same tokens."""
        return replace(sequence, tokens=list(sequence.tokens))

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        """Nothing is held."""

    def batch(self, sequences: Rows[CachedSequence], lengths: Rows[int]) -> KVCache:
        """There is none."""
        raise TypeError("without a cache no pass has one")


class RecomputeRunner(ModelRunner):
    """Computes all tokens of each sequence in every pass."""

    @torch.inference_mode()
    def forward(
        self,
        sequences: Rows[Any],
        ids: Rows[Rows[int]],
        *,
        sources: Rows[Tensor] | None = None,
        global_tokens: Rows[Tensor] | None = None,
    ) -> Tensor:
        """The states (B,T,D) of the new tokens, of rows padded behind."""
        device, given = self.pool.device, dict[str, Any]()
        for i, (sequence, new) in enumerate(zip(sequences, ids, strict=True)):
            sequence.tokens += new
            sequence.num_computed_tokens += len(new)
            if global_tokens is not None and sources is None and sequence.global_T is None:
                # Of the first pass: no token after the prompt is global.
                sequence.global_T = global_tokens[i]
        if sources is not None:
            self._encode(sequences, sources, global_tokens)
        lengths = [len(each.tokens) for each in sequences]
        if min(lengths) < max(lengths):
            given["decoder_attention_mask" if self.seq2seq else "attention_mask"] = self._mask(lengths)
        if self.seq2seq:
            given["encoder_states"] = pad_sequence([each.source_SD for each in sequences], batch_first=True)
            valid = [each.source_valid_S for each in sequences]
            if not all(bool(each.all()) for each in valid) or len({len(each) for each in valid}) > 1:
                given["attention_mask"] = self._padded(valid)
        elif sequences[0].global_T is not None:
            marks = [pad(each.global_T, (0, max(lengths) - len(each.global_T))) for each in sequences]
            given["global_mask"] = torch.stack(marks).to(device)
        if self.model.reads_length:
            given["rope_length"] = sequences[0].rope_length
        given[self.name] = self._padded([torch.tensor(each.tokens) for each in sequences])
        hidden_BTD = self.body(**given).hidden
        # Each row's newest tokens, from its first column on.
        first_B = torch.tensor([n - len(new) for n, new in zip(lengths, ids, strict=True)], device=device)
        column_BT = first_B[:, None] + torch.arange(max(len(new) for new in ids), device=device)
        column_BT = column_BT.clamp(max=hidden_BTD.shape[1] - 1)
        return hidden_BTD.gather(1, column_BT[..., None].expand(-1, -1, hidden_BTD.shape[-1]))

    def _encode(self, sequences: Rows[Any], sources: Rows[Tensor], global_tokens: Rows[Tensor] | None) -> None:
        """Keep the encoder's states of each source."""
        mask_BS = self._mask([len(source) for source in sources])
        given: dict[str, Any] = {"input_ids": self._padded(sources), "attention_mask": mask_BS}
        if global_tokens is not None:
            given["global_mask"] = self._padded(global_tokens)
        if self.model.reads_length:
            # What was not given is the source's own length in the encoder.
            given["rope_length"] = sequences[0].source_rope_length
        start = torch.zeros(len(sources), 1, dtype=torch.long, device=self.pool.device)
        states_BSD = self.body(decoder_input_ids=start, **given).encoder_states
        for sequence, states_SD, valid_S in zip(sequences, states_BSD, mask_BS, strict=True):
            sequence.source_SD, sequence.source_valid_S = states_SD, valid_S

    @torch.inference_mode()
    def decode(self, sequences: Rows[CachedSequence], ids: Rows[int]) -> Tensor:
        """Logits (B,V) after one more token of each sequence."""
        return self.head(self.forward(sequences, [[each] for each in ids])[:, -1])
