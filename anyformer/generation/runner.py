"""The runner: passes of a model over tenants of a pool, many tokens of a few or one token of many."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.model.models import Model
from anyformer.model.reading import headless
from anyformer.parts.paged import PagedCache
from anyformer.parts.pool import Pool, Tenant


class Runner:
    """Reads tokens of tenants. Room for them must be reserved in the pool; the model is in eval mode."""

    def __init__(self, model: Model, pool: Pool) -> None:
        self.model, self.body, self.pool = model, headless(model), pool
        self.two = model.spec.topology == "encoder-decoder"

    @torch.inference_mode()
    def read(self, tenants: Sequence[Tenant], ids: Sequence[Sequence[int]], **source: Any) -> Tensor:
        """Read the next tokens of each tenant; logits (B,V) after its last one.

        `source` is what an encoder-decoder's first pass reads beside: `input_ids` (1,S), `attention_mask`,
        `global_mask`; then there is one tenant only. A decoder takes `global_mask` (B,T), padded behind.
        """
        return self.logits(self._last(self.states(tenants, ids, **source), [len(row) for row in ids]))

    @torch.inference_mode()
    def states(self, tenants: Sequence[Tenant], ids: Sequence[Sequence[int]], **source: Any) -> Tensor:
        """The same; the states (B,T,D) that the head reads, of rows padded behind."""
        lengths = [len(row) for row in ids]
        width, device = max(lengths), self.pool.device
        rows = [list(row) + [0] * (width - len(row)) for row in ids]
        cache = PagedCache(self.pool, tenants, lengths)
        given: dict[str, Any] = {"decoder_input_ids" if self.two else "input_ids": torch.tensor(rows, device=device)}
        if min(lengths) < width:
            mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths], device=device)
            given["decoder_attention_mask" if self.two else "attention_mask"] = mask
        return self.body(cache=cache, **given, **source).hidden

    @torch.inference_mode()
    def step(self, tenants: Sequence[Tenant], ids_B: Tensor) -> Tensor:
        """Read one more token of each tenant; logits (B,V) after it."""
        cache = PagedCache(self.pool, tenants, [1] * len(tenants))
        given: Any = {"decoder_input_ids" if self.two else "input_ids": ids_B[:, None]}
        return self.logits(self.body(cache=cache, **given).hidden[:, -1])

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head says of states."""
        head: Any = self.model.head
        return head(hidden)

    def _last(self, hidden_BTD: Tensor, lengths: Sequence[int]) -> Tensor:
        last_B = torch.tensor(lengths, device=hidden_BTD.device) - 1
        return hidden_BTD[torch.arange(len(lengths), device=hidden_BTD.device), last_B]
