"""A captured step: one token of every row as one CUDA graph, the choice of the next token inside.

The host launches one thing instead of hundreds. Everything that a step reads and writes lies in tensors that stay where
they are; who sits in which row is loaded before it runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anyformer.generation.samplers.vector import Work, choose, work
from anyformer.kernels.argmax import largest
from anyformer.kernels.cuda_graph import Recorder
from anyformer.model.model import Model
from anyformer.parts.paged import PagedCache
from anyformer.parts.pool import Pool, Tenant


@dataclass(frozen=True)
class Draw:
    """How the next token of each row is chosen (see `samplers.vector.choose`)."""

    rows: tuple[tuple[float, int, float, float], ...]
    """Temperature, top_k, top_p and min_p."""
    keys_B: Tensor
    """What the draws depend on (see `draw.keys`)."""
    step: tuple[int, ...]
    """The number of each row's next new token."""

    @property
    def work(self) -> Work:
        """The least that serves all rows."""
        return work(self.rows)


class Captured:
    """The graph of a step for `rows` rows."""

    def __init__(
        self,
        model: Model,
        body: Model,
        pool: Pool,
        rows: int,
        kind: Work,
        recorder: Recorder,
        tenants: Sequence[Tenant] = (),
    ) -> None:
        self.model, self.body, self.pool, self.rows = model, body, pool, rows
        self.kind: Work = kind
        device = pool.device
        self.name = "decoder_input_ids" if model.spec.topology == "encoder-decoder" else "input_ids"
        self.cache = PagedCache.for_steps(pool, rows, tenants)
        self.ids_B = torch.zeros(rows, dtype=torch.long, device=device)
        """What is read; then what was chosen."""
        self.heat_B = torch.zeros(rows, dtype=torch.float64, device=device)
        self.top_k_B, self.keys_B, self.step_B = (torch.zeros_like(self.ids_B) for _ in range(3))
        self.top_p_B, self.min_p_B = torch.ones_like(self.heat_B), torch.zeros_like(self.heat_B)
        self.whole_B = torch.ones(rows, dtype=torch.bool, device=device)
        """Rows whose logits have all been finite."""
        self.logits_BV = torch.empty(0, device=device)
        self.loaded: tuple[Any, ...] = ()
        self.draw: Draw | None = None
        recorder.warm(self._work)
        self.graph = recorder.record(self._work)

    def _work(self) -> None:
        given: Any = {self.name: self.ids_B[:, None]}
        head: Any = self.model.head
        self.logits_BV = head(self.body(cache=self.cache, **given).hidden[:, -1])
        best_B, ids_B = largest(self.logits_BV)
        self.whole_B &= best_B.isfinite()
        if self.kind != "greedy":
            ids_B = choose(
                self.logits_BV, self.heat_B, self.top_k_B, self.top_p_B, self.min_p_B, self.keys_B, self.step_B,
                work=self.kind,
            )  # fmt: skip
            self.step_B += 1
        self.ids_B.copy_(ids_B)

    def load(self, tenants: Sequence[Tenant], ids_B: Tensor | None, draw: Draw | None) -> None:
        """Seat tenants in the first rows. None of ids: they go on with what was chosen last."""
        now = tuple((t.serial, t.count, *map(len, t.pages)) for t in tenants)
        if now != self.loaded:
            self.cache.load(tenants)
        # What it will be after the step, if nothing but the step changes it.
        self.loaded = tuple((who, count + 1, *pages) for who, count, *pages in now)
        if ids_B is not None:
            self.ids_B[: len(tenants)].copy_(ids_B, non_blocking=True)
        if draw is not None and draw is not self.draw:
            self.draw = draw
            self._load_draw(draw)

    def _load_draw(self, draw: Draw) -> None:
        columns = list(zip(*draw.rows, strict=True))
        for tensor, values in zip((self.heat_B, self.top_k_B, self.top_p_B, self.min_p_B), columns, strict=True):
            tensor[: len(values)].copy_(torch.tensor(values, dtype=tensor.dtype), non_blocking=True)
        self.step_B[: len(draw.step)].copy_(torch.tensor(draw.step), non_blocking=True)
        self.keys_B[: len(draw.step)].copy_(draw.keys_B, non_blocking=True)
        self.whole_B.fill_(True)

    def run(self, tenants: Sequence[Tenant]) -> None:
        """One token of each row."""
        self.graph.replay()
        for tenant in tenants:
            tenant.count += 1
