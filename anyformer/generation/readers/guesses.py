"""Guesses: what may come next, said by something cheaper than the model that decides."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.running.runner import Runner
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model
from anyformer.parts.pool import Tenant

RUNS = (4, 3, 2)
"""Lengths of the runs of tokens that are looked for, the surest first."""


class Guesser(Protocol):
    """Guesses the next tokens of some rows."""

    def guess(self, rows: Sequence[int], so_far: Sequence[list[int]], most: Sequence[int]) -> list[list[int]]:
        """Up to `most` tokens that may follow each row's tokens so far; none where there is no guess."""
        ...


class Lookup:
    """What followed when the last tokens occurred before in the same row: texts that are edited, quoted or summarised
    repeat themselves. It costs no model.
    """

    def __init__(self) -> None:
        self._places: dict[int, dict[tuple[int, ...], int]] = {}
        """By row: behind which token each run ended last."""
        self._read: dict[int, int] = {}
        """By row: how many tokens are in that table."""

    def guess(self, rows: Sequence[int], so_far: Sequence[list[int]], most: Sequence[int]) -> list[list[int]]:
        """The tokens after the latest occurrence of the longest run."""
        return [self._guess(row, ids, n) for row, ids, n in zip(rows, so_far, most, strict=True)]

    def _guess(self, row: int, ids: list[int], most: int) -> list[int]:
        places = self._places.setdefault(row, {})
        # The run that ends the row is not yet among those that were followed by something.
        for end in range(self._read.get(row, 0), len(ids)):
            for size in RUNS:
                if size <= end:
                    places[tuple(ids[end - size : end])] = end
        self._read[row] = len(ids)
        for size in RUNS:
            place = places.get(tuple(ids[-size:])) if size <= len(ids) else None
            if place is not None:
                return self._follow(ids, place, most)
        return []

    @staticmethod
    def _follow(ids: list[int], place: int, most: int) -> list[int]:
        """The tokens from a place on; where the row ends, the guess goes on with its own beginning."""
        found = ids[place : place + most]
        while found and len(found) < most:
            found += found[: most - len(found)]
        return found


class DraftModel:
    """A smaller model with the same vocabulary, which goes on by itself for a few tokens."""

    def __init__(
        self, model: Model, rows: int, length: int, choose: Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]
    ) -> None:
        """`choose` takes logits (B,V), the rows and the number of each row's tokens so far."""
        if model.spec.topology != "decoder":
            raise InputError("draft: guesses are made by a decoder; give one with the same vocabulary")
        self.model = model
        decoder: Any = model.decoder
        limit: int | None = decoder.limit
        self.length = length if limit is None else min(length, limit)
        self.runner = Runner(model, model.new_pool(rows, self.length, chunk=self.length))
        self.choose = choose
        self._tenants: dict[int, Tenant] = {}
        self._fed: dict[int, list[int]] = {}
        """By row: the tokens that its tenant has read."""

    def guess(self, rows: Sequence[int], so_far: Sequence[list[int]], most: Sequence[int]) -> list[list[int]]:
        """What the smaller model would say; it runs in eval mode, and gets its mode back."""
        with eval_mode(self.model):
            return self._guess(rows, so_far, most)

    def _guess(self, rows: Sequence[int], so_far: Sequence[list[int]], most: Sequence[int]) -> list[list[int]]:
        found: list[list[int]] = [[] for _ in rows]
        # A prefix that is read both ways must be there as a whole.
        least = max(1, self.runner.pool.prefix)
        some = [
            i for i, ids in enumerate(so_far) if most[i] > 0 and least <= len(ids) and len(ids) + most[i] <= self.length
        ]
        if not some:
            return found
        tenants = [self._behind(rows[i], so_far[i]) for i in some]
        logits_BV = self._read(tenants, [rows[i] for i in some], [so_far[i] for i in some])
        while True:
            so_far_B = [len(so_far[i]) + len(found[i]) for i in some]
            ids_B = self.choose(logits_BV, [rows[i] for i in some], so_far_B)
            for i, token in zip(some, ids_B.tolist(), strict=True):
                found[i].append(token)
            # A row that has its guesses reads no further: it may have no room for more.
            left = [place for place, i in enumerate(some) if len(found[i]) < most[i]]
            if not left:
                return found
            some, tenants, ids_B = [some[k] for k in left], [tenants[k] for k in left], ids_B[left]
            for i, tenant in zip(some, tenants, strict=True):
                self.runner.pool.ensure(tenant, 1)
                self._fed[rows[i]].append(found[i][-1])
            logits_BV = self.runner.step(tenants, ids_B)

    def _behind(self, row: int, ids: list[int]) -> Tenant:
        """The row's tenant, gone back to where its tokens are still those of the row, and at least one is left to read."""
        fed = self._fed.setdefault(row, [])
        same = 0
        while same < min(len(fed), len(ids) - 1) and fed[same] == ids[same]:
            same += 1
        tenant = self._tenants.get(row)
        pool = self.runner.pool
        if tenant is not None and same < len(fed):
            if any(pool.states):
                pool.release(tenant)
                tenant, same = None, 0
            else:
                pool.rewind(tenant, pool.snapshot(tenant).before(tenant.count - same))
        if tenant is None:
            tenant, same = pool.seated(0), 0
        del fed[same:]
        self._tenants[row] = tenant
        return tenant

    def _read(self, tenants: Sequence[Tenant], rows: Sequence[int], so_far: Sequence[list[int]]) -> Tensor:
        new = [ids[tenant.count :] for tenant, ids in zip(tenants, so_far, strict=True)]
        for tenant, ids in zip(tenants, new, strict=True):
            self.runner.pool.ensure(tenant, len(ids))
        for row, ids in zip(rows, new, strict=True):
            self._fed[row] += ids
        return self.runner.read_prompts(tenants, new)


def agree(model: Model, draft: Model) -> None:
    """Refuse a draft whose tokens are not the model's."""
    if model.spec.vocab != draft.spec.vocab:
        raise InputError(
            f"draft: has {draft.spec.vocab} tokens and the model {model.spec.vocab}; both must speak the same vocabulary"
        )
    devices = {next(m.parameters()).device for m in (model, draft)}
    if len(devices) > 1:
        raise InputError(f"draft: it is not where the model is: {', '.join(sorted(map(str, devices)))}")


def usual_choice(
    temperature: float, top_k: int, top_p: float, min_p: float, keys_B: Tensor | None, begun: Sequence[int]
) -> Callable[[Tensor, Sequence[int], Sequence[int]], Tensor]:
    """How a draft chooses so that it says what the model would say if both thought alike: with the same numbers drawn.

    `begun` says how many tokens of each row were not generated.
    """
    from anyformer.generation.samplers.vector import choose, work

    kind = work([(temperature, top_k, top_p, min_p)])

    def chosen(logits_BV: Tensor, rows: Sequence[int], so_far: Sequence[int]) -> Tensor:
        device, count = logits_BV.device, len(rows)
        if kind == "greedy" or keys_B is None:
            return logits_BV.argmax(-1)

        def each(value: float, dtype: torch.dtype) -> Tensor:
            return torch.full((count,), value, dtype=dtype, device=device)

        step_B = torch.tensor([n - begun[row] for n, row in zip(so_far, rows, strict=True)], device=device)
        return choose(
            logits_BV, each(temperature, torch.float64), each(top_k, torch.long), each(top_p, torch.float64),
            each(min_p, torch.float64), keys_B[list(rows)], step_B, work=kind,
        )  # fmt: skip

    return chosen
