"""Two ways to read what has been generated so far: with a cache, or all of it anew in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.request import Request
from anyformer.model.models import Model
from anyformer.model.reading import headless
from anyformer.parts.cache import Cache


class Cached:
    """Each token is read once, and a cache keeps what later ones need of it."""

    def __init__(self, model: Model, asked: Request) -> None:
        self.model, self.asked = model, asked
        rows, width = asked.prompt_BT.shape
        self.two = model.spec.topology == "encoder-decoder"
        # A length that was not declared is the cache's own, which padding must not change.
        declared = asked.declared
        if declared is None and model.reads_length and not self.two:
            declared = asked.total
        length = asked.total if self.two else width + asked.new
        decoder: Any = model.decoder
        shortest = width if asked.mask_BT is None else int(asked.mask_BT.sum(-1).min())
        if not self.two and shortest < decoder.prefix:
            raise InputError(
                f"the first {decoder.prefix} tokens of this prefix-LM see each other both ways, but a prompt has "
                f"{shortest}; give longer prompts, or recompute each step with use_cache=False"
            )
        self.cache: Cache = model.new_cache(rows, length, rope_length=declared)

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        asked = self.asked
        if self.two:
            out = self.model(
                asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT,
                decoder_input_ids=asked.begun_BT, cache=self.cache,
            )  # fmt: skip
            return out.logits[:, -1]
        # Of a prompt only the last token is asked for its logits.
        out = headless(self.model)(
            asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT, cache=self.cache
        )
        return _logits(self.model, _last(out.hidden, asked.mask_BT))

    @torch.inference_mode()
    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        name = "decoder_input_ids" if self.two else "input_ids"
        return self.model(**{name: ids_B[:, None]}, cache=self.cache).logits[:, -1]


class Anew:
    """Nothing is kept but the ids and an encoder's states: slow, and the measure of the other way."""

    def __init__(self, model: Model, asked: Request) -> None:
        self.model, self.body, self.asked = model, headless(model), asked
        self.ids_BT, self.mask_BT, self.marks_BT = asked.begun_BT, asked.mask_BT, asked.marks_BT
        self.two = model.spec.topology == "encoder-decoder"
        self.more: dict[str, Any] = {}
        if model.reads_length:
            self.more["rope_length"] = asked.total if asked.declared is None else asked.declared

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        if self.two:
            asked = self.asked
            # What was not declared is the source's own length in the encoder, and all that is to come in the decoder.
            out = self.body(
                asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT,
                decoder_input_ids=self.ids_BT, rope_length=asked.declared,
            )  # fmt: skip
            self.more["encoder_states"] = out.encoder_states
        return self._read()

    @torch.inference_mode()
    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        self.ids_BT = torch.cat((self.ids_BT, ids_B[:, None]), 1)
        if self.mask_BT is not None and not self.two:
            self.mask_BT = torch.cat((self.mask_BT, torch.ones_like(ids_B[:, None])), 1)
        if self.marks_BT is not None and not self.two:
            self.marks_BT = torch.cat((self.marks_BT, torch.zeros_like(self.marks_BT[:, :1])), 1)
        return self._read()

    def _read(self) -> Tensor:
        name = "decoder_input_ids" if self.two else "input_ids"
        marks = None if self.two else self.marks_BT
        out = self.body(**{name: self.ids_BT}, attention_mask=self.mask_BT, global_mask=marks, **self.more)
        return _logits(self.model, _last(out.hidden, None if self.two else self.mask_BT))


def _logits(model: Model, hidden_BD: Tensor) -> Tensor:
    head: Any = model.head
    return head(hidden_BD)


def _last(hidden_BTD: Tensor, mask_BT: Tensor | None) -> Tensor:
    """States of the last real token of each row."""
    if mask_BT is None:
        return hidden_BTD[:, -1]
    column_T = torch.arange(1, mask_BT.shape[1] + 1, device=mask_BT.device)
    last_B = (mask_BT * column_T).argmax(-1)
    return hidden_BTD[torch.arange(len(last_B), device=mask_BT.device), last_B]
