"""Speculative decoding: several guessed tokens are read in one pass, and those that the model chooses itself are kept.

A reader like the others: it answers the logits after each token that was chosen, whoever chose it and how. Guesses
decide only how often the model runs. A draw is a function of the seed and the token's number, so tokens are those of
plain decoding, drawn ones too.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.asking.request import Request
from anyformer.generation.readers.guesses import Guesser
from anyformer.generation.readers.static import check_prefix
from anyformer.generation.running.runner import Runner
from anyformer.model.model import Model
from anyformer.parts.pool import Snapshot, Tenant


@dataclass
class Row:
    """One row of a batch."""

    tenant: Tenant
    ids: list[int]
    """Tokens so far: a prompt (of an encoder-decoder: the start) and what was chosen."""
    before: Snapshot
    """Its tenant before the last pass."""
    sure: int = 0
    """Tokens of that pass that have turned out to be right."""
    guessed: list[int] = field(default_factory=list)
    """Guesses of that pass that are still open."""
    logits_TV: Tensor | None = None
    """Logits after each of its tokens that may still be asked for, the next one first."""


class Speculating:
    """Reads a batch with guesses."""

    def __init__(self, model: Model, runner: Runner, guesser: Guesser, *, guesses: int, limit: int) -> None:
        """`limit` is how many tokens a row can have in all."""
        if guesses < 1:
            raise InputError(f"guesses: at least 1 token is guessed at once, got {guesses}")
        self.model, self.runner, self.guesser, self.guesses, self.limit = model, runner, guesser, guesses, limit
        self.rows: list[Row] = []
        self.stateful = any(runner.pool.states)
        self.declared: int | None = None
        self.source_declared: int | None = None
        """Lengths that length-dependent positions read (see `Tenant`)."""
        self.passes = self.kept = self.offered = 0
        """Passes of the model for a row; guesses that were kept, and made."""

    def begin(self, prompts: list[list[int]], marks: list[Tensor] | None = None, **source: Any) -> Tensor:
        """Logits (B,V) after the prompts, some of whose tokens may be marked as global; of an encoder-decoder after its
        start, given each row's source.
        """
        tenants = [
            self.runner.pool.seated(len(ids), declared=self.declared, source_declared=self.source_declared)
            for ids in prompts
        ]
        if marks is not None:
            rows = [
                self.runner.read([t], [ids], global_mask=mark_T[None])
                for t, ids, mark_T in zip(tenants, prompts, marks, strict=True)
            ]
            logits_BV = torch.cat(rows)
        elif source:
            each = [
                {name: value[i : i + 1] for name, value in source.items() if value is not None}
                for i in range(len(prompts))
            ]
            rows = [self.runner.read([t], [ids], **given) for t, ids, given in zip(tenants, prompts, each, strict=True)]
            logits_BV = torch.cat(rows)
        else:
            logits_BV = self.runner.read_prompts(tenants, prompts)
        self.rows = [
            Row(tenant, list(ids), self.runner.pool.snapshot(tenant))
            for tenant, ids in zip(tenants, prompts, strict=True)
        ]
        return logits_BV

    def reorder(self, order: list[int]) -> None:
        """Row i becomes what row `order[i]` was; nothing may be guessed yet."""
        pool = self.runner.pool
        new: list[Row] = []
        for number in order:
            old = self.rows[number]
            tenant: Tenant | None = old.tenant
            if any(row.tenant is tenant for row in new):
                tenant = pool.fork(old.tenant)
            if tenant is None:
                raise InputError("the pool has no seat or page left for another answer")
            new.append(Row(tenant, list(old.ids), pool.snapshot(tenant)))
        self.rows = new

    @torch.inference_mode()
    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        ask: list[int] = []
        for number, (row, token) in enumerate(zip(self.rows, ids_B.tolist(), strict=True)):
            row.ids.append(token)
            if row.guessed and row.guessed[0] == token and row.logits_TV is not None:
                row.guessed.pop(0)
                row.logits_TV = row.logits_TV[1:]
                row.sure += 1
                self.kept += 1
            else:
                ask.append(number)
        if ask:
            self._pass(ask)
        return torch.stack([row.logits_TV[0] for row in self.rows if row.logits_TV is not None])

    def _pass(self, numbers: list[int]) -> None:
        """Read the last token of some rows, and guesses after it."""
        rows = [self.rows[i] for i in numbers]
        room = [max(0, min(self.guesses, self.limit - len(row.ids))) for row in rows]
        guesses = self.guesser.guess(numbers, [row.ids for row in rows], room)
        pool, new = self.runner.pool, []
        for row, guessed, most in zip(rows, guesses, room, strict=True):
            again = self._forget(row)
            row.before, row.guessed = pool.snapshot(row.tenant), guessed[:most]
            # A state that went back to the snapshot reads once more what was right after it.
            row.sure = len(again) + 1
            new.append([*again, row.ids[-1], *row.guessed])
            pool.ensure(row.tenant, len(new[-1]))
            self.offered += len(row.guessed)
        self.passes += len(rows)
        hidden_BTD = self.runner.states([row.tenant for row in rows], new)
        for i, (row, ids) in enumerate(zip(rows, new, strict=True)):
            row.logits_TV = self.runner.logits(hidden_BTD[i, len(ids) - len(row.guessed) - 1 : len(ids)])

    def _forget(self, row: Row) -> list[int]:
        """Take back what was guessed wrongly; the tokens that must be read again."""
        if not row.guessed:
            return []
        if not self.stateful:
            self.runner.pool.rewind(row.tenant, row.before, keep=row.sure)
            return []
        self.runner.pool.rewind(row.tenant, row.before)
        return row.ids[row.before.count : -1]


class Guessing:
    """The reader of a request that is answered with guesses."""

    def __init__(self, model: Model, asked: Request, guesser: Guesser, *, guesses: int) -> None:
        check_prefix(model, asked)
        self.asked = asked
        self.states_BTD: Tensor | None = None
        seats = asked.prompt_BT.shape[0] * asked.plan.options.n
        # A state reads again what was right, so a pass has up to twice as many tokens.
        pool = model.new_pool(seats, asked.total, chunk=2 * guesses + 2)
        self.inner = Speculating(model, Runner(model, pool), guesser, guesses=guesses, limit=asked.total - 1)
        if model.reads_length:
            self.inner.declared = asked.total if asked.declared is None else asked.declared
            self.inner.source_declared = asked.declared

    def begin(self) -> Tensor:
        """Logits (B,V) after the prompt."""
        asked, starts = self.asked, self.asked.starts()
        if self.inner.runner.two:
            return self.inner.begin(
                starts, input_ids=asked.prompt_BT, attention_mask=asked.mask_BT, global_mask=asked.marks_BT
            )
        return self.inner.begin(starts, marks=asked.marks())

    def reorder(self, rows_B: Tensor) -> None:
        """Row i becomes what row `rows_B[i]` was, before anything was guessed."""
        self.inner.reorder(rows_B.tolist())

    def go_on(self, ids_B: Tensor) -> Tensor:
        """Logits (B,V) after one more token in each row."""
        return self.inner.go_on(ids_B)

    def close(self) -> None:
        """Nothing more will be read."""
