"""Two ways to read rows that grow together: with a static cache, or all of it anew in each step."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import Request
from anyformer.model.eval_mode import without_head
from anyformer.model.model import Model
from anyformer.parts.cache import Cache


class Cached:
    """Each token is read once, and a cache keeps what later ones need of it."""

    def __init__(self, model: Model, asked: Request, *, step: Any = None) -> None:
        """`step` is called instead of the model for single tokens; None: the model itself."""
        self.model, self.asked, self.step = model, asked, model if step is None else step
        rows, width = asked.prompt_BT.shape
        self.two = model.spec.topology == "encoder-decoder"
        # A length that was not declared is the cache's own, which padding must not change.
        declared = asked.declared
        if declared is None and model.reads_length and not self.two:
            declared = asked.total
        length = asked.total if self.two else width + asked.new
        check_prefix(model, asked)
        self.cache: Cache = model.new_cache(rows, length, rope_length=declared)
        self.keeps = asked.reads_prompt or asked.plan.way == "contrastive"
        self.states_BTD: Tensor | None = None
        """What the head reads of the newest tokens (at first: all of the prompt, or the decoder's own beginning), if
        somebody asks for it.
        """

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        asked = self.asked
        if self.two:
            out = self.model(
                asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT,
                decoder_input_ids=asked.begun_BT, cache=self.cache,
            )  # fmt: skip
            self.states_BTD = out.hidden if self.keeps else None
            return out.logits[:, -1]
        # Of a prompt only the last token is asked for its logits.
        out = without_head(self.model)(
            asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT, cache=self.cache
        )
        self.states_BTD = out.hidden if self.keeps else None
        return _logits(self.model, _last(out.hidden, asked.mask_BT))

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was; there may be more or fewer than before."""
        self.cache.reorder(rows_B)

    @torch.inference_mode()
    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        name = "decoder_input_ids" if self.two else "input_ids"
        out = self.step(**{name: ids_B[:, None]}, cache=self.cache)
        self.states_BTD = out.hidden if self.keeps else None
        return out.logits[:, -1]

    def close(self) -> None:
        """Nothing more will be read."""


class Anew:
    """Nothing is kept but the ids and an encoder's states: slow, and the measure of the other way."""

    def __init__(self, model: Model, asked: Request) -> None:
        self.model, self.body, self.asked = model, without_head(model), asked
        self.ids_BT, self.mask_BT, self.marks_BT = asked.begun_BT, asked.mask_BT, asked.marks_BT
        self.two = model.spec.topology == "encoder-decoder"
        self.more: dict[str, Any] = {}
        if model.reads_length:
            self.more["rope_length"] = asked.total if asked.declared is None else asked.declared
        self.keeps = asked.reads_prompt or asked.plan.way == "contrastive"
        self.states_BTD: Tensor | None = None
        """What the head reads of the newest tokens (at first: all of the prompt, or the decoder's own beginning), if
        somebody asks for it.
        """

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
        return self._read(begins=True)

    @torch.inference_mode()
    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was; there may be more or fewer than before."""
        self.ids_BT = self.ids_BT[rows_B]
        self.mask_BT = None if self.mask_BT is None else self.mask_BT[rows_B]
        self.marks_BT = None if self.marks_BT is None else self.marks_BT[rows_B]
        if self.two:
            self.more["encoder_states"] = self.more["encoder_states"][rows_B]

    @torch.inference_mode()
    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        self.ids_BT = torch.cat((self.ids_BT, ids_B[:, None]), 1)
        if self.mask_BT is not None and not self.two:
            self.mask_BT = torch.cat((self.mask_BT, torch.ones_like(ids_B[:, None])), 1)
        if self.marks_BT is not None and not self.two:
            self.marks_BT = torch.cat((self.marks_BT, torch.zeros_like(self.marks_BT[:, :1])), 1)
        return self._read()

    def close(self) -> None:
        """Nothing more will be read."""

    def _read(self, *, begins: bool = False) -> Tensor:
        name = "decoder_input_ids" if self.two else "input_ids"
        marks = None if self.two else self.marks_BT
        out = self.body(**{name: self.ids_BT}, attention_mask=self.mask_BT, global_mask=marks, **self.more)
        last_BD = _last(out.hidden, None if self.two else self.mask_BT)
        if self.keeps:
            self.states_BTD = out.hidden if begins else last_BD[:, None]
        return _logits(self.model, last_BD)


def check_prefix(model: Model, asked: Request) -> None:
    """Refuse prompts that end inside the prefix of a prefix-LM: a cache is fed a prefix at once."""
    decoder: Any = model.decoder
    shortest = min(len(row) for row in asked.starts())
    if model.spec.topology == "decoder" and shortest < decoder.prefix:
        raise InputError(
            f"the first {decoder.prefix} tokens of this prefix-LM see each other both ways, but a prompt has "
            f"{shortest}; give longer prompts, or recompute each step with use_cache=False"
        )


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
