"""A reader with pages: each row is a tenant of a pool, without padding, and a step is captured where that pays."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import Request
from anyformer.generation.readers.static import check_prefix
from anyformer.generation.running.capture import Draw
from anyformer.generation.running.standby import give_back, runner_for
from anyformer.model.model import Model
from anyformer.parts.pool import Tenant


class Paged:
    """Each token is read once, at the pace of its own row."""

    def __init__(self, model: Model, asked: Request) -> None:
        self.model, self.asked = model, asked
        self.two = model.spec.topology == "encoder-decoder"
        check_prefix(model, asked)
        self.runner = runner_for(model, asked.prompt_BT.shape[0] * asked.plan.options.n, asked.total, self)
        self.states_BTD: Tensor | None = None
        """The prompt's states, if its log-probabilities were asked for."""
        self.tenants: list[Tenant] = []

    @torch.inference_mode()
    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        asked, starts = self.asked, self.asked.starts()
        # A length that was not declared is the row's own in the decoder; a source has its own.
        declared = asked.total if asked.declared is None and self.model.reads_length else asked.declared
        for ids in starts:
            tenant = self.runner.pool.seated(len(ids), declared=declared, source_declared=asked.declared)
            self.tenants.append(tenant)
        if self.two:
            return torch.cat([self._translate(i, starts[i]) for i in range(len(starts))])
        marks = asked.marks()
        if marks is not None:
            each = zip(self.tenants, starts, marks, strict=True)
            return torch.cat([self.runner.read([t], [ids], global_mask=mark_T[None]) for t, ids, mark_T in each])
        return self.runner.read_prompts(self.tenants, starts)

    def _translate(self, row: int, start: list[int]) -> Tensor:
        """Source and start of one row."""
        asked, one = self.asked, slice(row, row + 1)
        given = {"input_ids": asked.prompt_BT, "attention_mask": asked.mask_BT, "global_mask": asked.marks_BT}
        sources = {name: value[one] for name, value in given.items() if value is not None}
        return self.runner.read([self.tenants[row]], [start], **sources)

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was; there may be more or fewer than before."""
        rows, pool = rows_B.tolist(), self.runner.pool
        for row in set(range(len(self.tenants))) - set(rows):
            pool.release(self.tenants[row])
        taken: set[int] = set()
        new: list[Tenant] = []
        for row in rows:
            tenant = self.tenants[row]
            if row in taken:
                twin = pool.fork(tenant)
                if twin is None:
                    raise InputError("the pool has no seat or page left for another answer")
                tenant = twin
            taken.add(row)
            new.append(tenant)
        self.tenants = new

    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        for tenant in self.tenants:
            self.runner.pool.ensure(tenant, 1)
        return self.runner.step(self.tenants, ids_B).clone()

    def flow(self, ids_B: Tensor, steps: int, draw: Draw) -> Iterator[tuple[Tensor, Tensor]]:
        """What is chosen after these tokens, so many times (see `Runner.flow`)."""
        for tenant in self.tenants:
            self.runner.pool.ensure(tenant, steps)
        return self.runner.flow(self.tenants, ids_B, steps, draw)

    def close(self) -> None:
        """Give the rows' pages back."""
        for tenant in self.tenants:
            self.runner.pool.release(tenant)
        self.tenants = []
        give_back(self.runner)
