"""A decode step as one CUDA graph: one token of every row, the choice of the next one inside.

The host launches one thing instead of hundreds. Everything that a step reads and writes lies in tensors that stay where
they are; whose rows they are is loaded before it runs.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence as Rows
from typing import Any

import torch
from torch import Tensor

from anyformer.generation.engine.request import Sequence
from anyformer.generation.samplers.batched import SamplingKind, sample, sampling_tensors
from anyformer.kernels.argmax import largest
from anyformer.kernels.cuda_graph import Recorder
from anyformer.model.model import Model
from anyformer.parts.kv_pool import CachedSequence
from anyformer.parts.paged_cache import PagedKVCache

MAX_IN_FLIGHT = 2
"""Steps that are launched before the tokens of an earlier one are waited for."""


class DecodeGraph:
    """The graph of a step for all rows of a cache (see `PagedKVCache.for_decode`)."""

    def __init__(self, body: Model, head: Any, cache: PagedKVCache, kind: SamplingKind, recorder: Recorder) -> None:
        self.body, self.head, self.cache = body, head, cache
        self.kind: SamplingKind = kind
        self.name = "decoder_input_ids" if cache.has_source else "input_ids"
        rows, device = cache.batch, cache.device
        self.ids_B = torch.zeros(rows, dtype=torch.long, device=device)
        """What is read; then what was sampled."""
        self.sampling = sampling_tensors([(0.0, 0, 1.0, 0.0, 0, 0)] * rows, device)
        """Temperature, top_k, top_p, min_p, keys and steps of each row."""
        self.finite_B = torch.ones(rows, dtype=torch.bool, device=device)
        """Rows whose logits have all been finite."""
        self.logits_BV = torch.empty(0, device=device)
        self.loaded: tuple[Any, ...] = ()
        recorder.warm(self._step)
        self.graph = recorder.record(self._step)

    def _step(self) -> None:
        given: Any = {self.name: self.ids_B[:, None]}
        self.logits_BV = self.head(self.body(cache=self.cache, **given).hidden[:, -1])
        best_B, ids_B = largest(self.logits_BV)
        self.finite_B &= best_B.isfinite()
        if self.kind != "greedy":
            ids_B = sample(self.logits_BV, *self.sampling, kind=self.kind)
            self.sampling[-1].add_(1)
        self.ids_B.copy_(ids_B)

    def load(self, sequences: Rows[CachedSequence], ids: Rows[int] | None) -> None:
        """Let these sequences be the first rows. None of ids: they go on with what was sampled last."""
        now = tuple((each.serial, each.num_computed_tokens, *map(len, each.blocks)) for each in sequences)
        if now != self.loaded:
            self.cache.load(sequences)
        # What it will be after the step, if nothing but the step changes it.
        self.loaded = tuple((serial, count + 1, *blocks) for serial, count, *blocks in now)
        if ids is not None:
            self.ids_B[: len(ids)].copy_(torch.tensor(ids), non_blocking=True)

    def replay(self, sequences: Rows[CachedSequence]) -> None:
        """One token of each row."""
        self.graph.replay()
        for sequence in sequences:
            sequence.num_computed_tokens += 1


class DecodeStream:
    """Decode steps that run ahead of the host: the device samples, and its tokens are read some steps later."""

    def __init__(self, graph: DecodeGraph, rows: list[Sequence]) -> None:
        self.graph, self.rows, self.kv = graph, rows, [each.kv for each in rows]
        self._ids: list[int] | None = [each.tokens[-1] for each in rows]
        self._in_flight: deque[tuple[Tensor, Tensor, torch.cuda.Event | None]] = deque()
        state = sampling_tensors([each.sampling for each in rows], torch.device("cpu"))
        for mine, its in zip(graph.sampling, state, strict=True):
            mine[: len(its)].copy_(its, non_blocking=True)
        graph.finite_B.fill_(True)

    def __len__(self) -> int:
        """Steps whose tokens were not read."""
        return len(self._in_flight)

    @torch.inference_mode()
    def launch(self) -> None:
        """One more step. Room for its tokens must be reserved."""
        self.graph.load(self.kv, self._ids)
        self._ids = None
        self.graph.replay(self.kv)
        ids_B, finite_B = (_to_host(each[: len(self.kv)]) for each in (self.graph.ids_B, self.graph.finite_B))
        event = None
        if self.graph.ids_B.is_cuda:
            event = torch.cuda.Event()
            event.record()
        self._in_flight.append((ids_B, finite_B, event))

    def read(self) -> tuple[list[int], list[bool]]:
        """The tokens of the oldest step, and whether the rows' logits have been finite."""
        ids_B, finite_B, event = self._in_flight.popleft()
        if event is not None:
            event.synchronize()
        return ids_B.tolist(), finite_B.tolist()


def _to_host(tensor: Tensor) -> Tensor:
    if not tensor.is_cuda:
        return tensor.clone()
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
