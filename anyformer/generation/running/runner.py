"""The runner: passes of a model over tenants of a pool, many tokens of a few or one token of many."""

from __future__ import annotations

import bisect
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from anyformer.errors import InputError
from anyformer.generation.running.capture import Captured, Draw
from anyformer.generation.samplers.vector import Work, choose
from anyformer.kernels.cuda_graph import CaptureError, Recorder, attempt
from anyformer.model.eval_mode import without_head
from anyformer.model.model import Model
from anyformer.parts.paged import PagedCache
from anyformer.parts.pool import Pool, Tenant

BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512)
"""Batches that a step is captured for; a batch between two of them is filled up."""
CHUNK = 8192
"""Tokens of a prompt, or of several, that are read at once."""
AHEAD = 2
"""Steps that are launched before the tokens of an earlier one are waited for."""


class Runner:
    """Reads tokens of tenants. Room for them must be reserved in the pool; the model is in eval mode.

    On CUDA a step is captured once for each bucket of batches. `same_shapes` gives every pass one shape, whoever is in
    it: a product of matrices may round otherwise when more rows are in it.
    """

    def __init__(
        self, model: Model, pool: Pool, *, captures: bool | None = None, same_shapes: bool = False, chunk: int = CHUNK
    ) -> None:
        self.model, self.body, self.pool = model, without_head(model), pool
        self.two = model.spec.topology == "encoder-decoder"
        if same_shapes and self.two:
            raise InputError("same_shapes: an encoder-decoder reads sources of all rows at once; leave it out")
        self.captures = pool.device.type == "cuda" if captures is None else captures
        self.same_shapes, self.chunk = same_shapes, max(chunk, pool.prefix, 1)
        self._captured: dict[Any, Captured] = {}
        self._recorder: Recorder | None = None

    @torch.inference_mode()
    def read(self, tenants: Sequence[Tenant], ids: Sequence[Sequence[int]], **source: Any) -> Tensor:
        """Read the next tokens of each tenant; logits (B,V) after its last one.

        `source` is what an encoder-decoder's first pass reads beside: `input_ids` (1,S), `attention_mask`,
        `global_mask`; then there is one tenant only. A decoder takes `global_mask` (B,T), padded behind.
        """
        return self.logits(_last(self.states(tenants, ids, **source), [len(row) for row in ids]))

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
    def read_prompts(self, tenants: Sequence[Tenant], ids: Sequence[Sequence[int]]) -> Tensor:
        """Read whole prompts, however long, in chunks; logits (B,V) after the last token of each."""
        found: list[Tensor | None] = [None] * len(tenants)
        # Rows of like lengths go together, so that little is padded.
        left = sorted(range(len(tenants)), key=lambda i: len(ids[i]), reverse=True)
        while left:
            longest = len(ids[left[0]])
            # Alone, the shape of a pass depends on nobody else.
            some = left[: 1 if self.same_shapes else max(1, self.chunk // longest)]
            left = left[len(some) :]
            for begin in range(0, longest, self.chunk):
                end = begin + self.chunk
                here = [i for i in some if len(ids[i]) > begin]
                logits_BV = self.read([tenants[i] for i in here], [ids[i][begin:end] for i in here])
                for i, row_V in zip(here, logits_BV, strict=True):
                    found[i] = row_V
        return torch.stack([row for row in found if row is not None])

    @torch.inference_mode()
    def step(self, tenants: Sequence[Tenant], ids_B: Tensor) -> Tensor:
        """Read one more token of each tenant; logits (B,V) after it, which the next step may overwrite."""
        captured = self._for(tenants, "greedy")
        if captured is not None:
            captured.load(tenants, ids_B, None)
            captured.run(tenants)
            return captured.logits_BV[: len(tenants)]
        return self._step(tenants, ids_B)

    def _step(self, tenants: Sequence[Tenant], ids_B: Tensor) -> Tensor:
        name = "decoder_input_ids" if self.two else "input_ids"
        if not self.same_shapes:
            cache = PagedCache(self.pool, tenants, [1] * len(tenants))
            given: Any = {name: ids_B[:, None]}
            return self.logits(self.body(cache=cache, **given).hidden[:, -1])
        cache = PagedCache.for_steps(self.pool, self.pool.seats)
        cache.load(tenants)
        given = {name: F.pad(ids_B, (0, self.pool.seats - len(tenants)))[:, None]}
        logits_BV = self.logits(self.body(cache=cache, **given).hidden[:, -1])
        for tenant in tenants:
            tenant.count += 1
        return logits_BV[: len(tenants)]

    @torch.inference_mode()
    def flow(self, tenants: Sequence[Tenant], ids_B: Tensor, steps: int, draw: Draw) -> Iterator[tuple[Tensor, Tensor]]:
        """Read these tokens and what is chosen after them, `steps` times: the ids (B,) that were chosen, and whether the
        rows' logits were finite, both on the host. On CUDA the device does not wait for whoever looks at them.
        """
        if not steps:
            return
        captured = self._for(tenants, draw.work)
        if captured is None:
            yield from self._plain_flow(tenants, ids_B, steps, draw)
            return
        waiting: list[tuple[Tensor, Tensor, torch.cuda.Event]] = []
        for i in range(steps):
            captured.load(tenants, ids_B if i == 0 else None, draw)
            captured.run(tenants)
            found = [_to_host(t[: len(tenants)]) for t in (captured.ids_B, captured.whole_B)]
            event = torch.cuda.Event()
            event.record()
            waiting.append((found[0], found[1], event))
            if len(waiting) > AHEAD:
                yield _arrived(waiting.pop(0))
        while waiting:
            yield _arrived(waiting.pop(0))

    def _plain_flow(
        self, tenants: Sequence[Tenant], ids_B: Tensor, steps: int, draw: Draw
    ) -> Iterator[tuple[Tensor, Tensor]]:
        device = ids_B.device
        heat, top_k, top_p, min_p = zip(*draw.rows, strict=True)
        numbers = [torch.tensor(values, device=device, dtype=torch.float64) for values in (heat, top_p, min_p)]
        top_k_B, step_B = torch.tensor(top_k, device=device), torch.tensor(draw.step, device=device)
        for i in range(steps):
            logits_BV = self._step(tenants, ids_B)
            ids_B = choose(
                logits_BV, numbers[0], top_k_B, numbers[1], numbers[2], draw.keys_B, step_B + i, work=draw.work
            )
            yield ids_B.cpu(), logits_BV.amax(-1).isfinite().cpu()

    def logits(self, hidden: Tensor) -> Tensor:
        """What the head says of states."""
        head: Any = self.model.head
        return head(hidden)

    def _for(self, tenants: Sequence[Tenant], kind: Work) -> Captured | None:
        """The captured step for so many rows; of an encoder-decoder, for these sources. None: steps are launched."""
        if not self.captures:
            return None
        sources = tuple(tenants) if self.two else ()
        # Rows that fill up a batch have no source.
        rows = self.pool.seats if self.same_shapes else len(sources) or _bucket(len(tenants))
        key = rows, kind, tuple(tenant.serial for tenant in sources)
        if key not in self._captured:
            if self.two:
                # What was captured for other sources would stay for ever, and nobody asks for it again.
                self._captured = {k: found for k, found in self._captured.items() if k[2] == key[2]}
            try:
                with attempt("generate: a step of this model"):
                    if self._recorder is None or not self._captured:
                        # A pool whose last graph is gone is gone too, and its handle can't be used again.
                        self._recorder = Recorder(self.pool.device)
                    self._captured[key] = Captured(
                        self.model, self.body, self.pool, rows, kind, self._recorder, sources
                    )
            except CaptureError as error:
                self.captures, self._captured, self._recorder = False, {}, None
                warnings.warn(f"{error}; its kernels are launched one by one, which is slower", stacklevel=2)
                return None
        return self._captured[key]


def _bucket(rows: int) -> int:
    place = bisect.bisect_left(BUCKETS, rows)
    return BUCKETS[place] if place < len(BUCKETS) else rows


def _to_host(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)


def _arrived(found: tuple[Tensor, Tensor, torch.cuda.Event]) -> tuple[Tensor, Tensor]:
    found[2].synchronize()
    return found[0], found[1]


def _last(hidden_BTD: Tensor, lengths: Sequence[int]) -> Tensor:
    """States of the last real token of each row."""
    last_B = torch.tensor(lengths, device=hidden_BTD.device) - 1
    return hidden_BTD[torch.arange(len(lengths), device=hidden_BTD.device), last_B]
