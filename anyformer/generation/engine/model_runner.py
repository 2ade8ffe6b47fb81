"""Model runners: passes of a model over sequences of a pool, with a cache or computing everything again.

On CUDA a decode step is one CUDA graph, sampling included: the host launches one thing instead of hundreds. Everything
that such a step reads and writes lies in tensors that stay where they are; whose rows they are is loaded before it runs.
"""

import copy
import threading
import warnings
import weakref
from collections import deque
from collections.abc import Sequence as Rows
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from anyformer.errors import InputError
from anyformer.generation.engine.request import Sequence
from anyformer.generation.samplers.batched import SamplingKind, sample, sampling_kind, sampling_tensors
from anyformer.kernels.argmax import largest
from anyformer.kernels.cuda_graph import CaptureError, Recorder, attempt
from anyformer.model.eval_mode import without_head
from anyformer.model.model import Model
from anyformer.parts.kv_cache import KVCache
from anyformer.parts.kv_pool import CachedSequence, KVBlockPool, Pool
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
        count, event = len(self.kv), None
        ids_B, finite_B = (
            torch.empty(count, dtype=each.dtype, pin_memory=each.is_cuda).copy_(each[:count], non_blocking=True)
            for each in (self.graph.ids_B, self.graph.finite_B)
        )
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


BUCKETS = (1, 2, 4, 8, 16, 32, 64, 128, 192, 256, 384, 512)
"""Batches that a step is captured for; a batch between two of them is filled up."""
SLACK, FEW = 2, 4
"""A batch of up to so many times fewer rows is filled up rather than captured anew, unless it has few."""
SOURCE = 64
"""A captured step of an encoder-decoder has room for a multiple of so many source tokens."""


Tensors = Rows[Tensor] | None
"""One of each row, or none."""


class ModelRunner:
    """Computes tokens of sequences. Room for them must be reserved in the pool; the model is in eval mode.

    On CUDA a decode step is captured once for each bucket of batches. `batch_invariant` gives every pass one shape,
    whoever is in it: a product of matrices may round otherwise when more rows are in it. `compiled` is called instead of
    the model for single tokens.
    """

    def __init__(
        self,
        model: Model,
        pool: Pool,
        *,
        cuda_graphs: bool | None = None,
        batch_invariant: bool = False,
        compiled: Any = None,
    ) -> None:
        self.model, self.body, self.pool = model, without_head(model), pool
        self.head: Any = model.head
        self.seq2seq = model.spec.topology == "encoder-decoder"
        self.name = "decoder_input_ids" if self.seq2seq else "input_ids"
        if batch_invariant and self.seq2seq:
            raise InputError("batch_invariant: an encoder-decoder reads sources of all rows at once; leave it out")
        captures = pool.device.type == "cuda" and isinstance(pool, KVBlockPool)
        self.cuda_graphs = captures if cuda_graphs is None else cuda_graphs
        self.batch_invariant, self.compiled = batch_invariant, compiled
        self._graphs: dict[tuple[int, SamplingKind, int], DecodeGraph] = {}
        """By rows, what is sampled, and room for source tokens."""
        self._recorder: Recorder | None = None

    @torch.inference_mode()
    def forward(
        self,
        sequences: Rows[CachedSequence],
        ids: Rows[Rows[int]],
        *,
        sources: Tensors = None,
        global_tokens: Tensors = None,
    ) -> Tensor:
        """Compute the next tokens of each sequence; the states (B,T,D) that the head reads, of rows padded behind.

        An encoder-decoder's first pass encodes the `sources` (S,) too. `global_tokens` says which tokens of each row, or of
        its source, are global.
        """
        lengths = [len(row) for row in ids]
        width = max(lengths)
        if width == 1:
            given: dict[str, Any] = {self.name: torch.tensor(ids, device=self.pool.device)}
        else:
            given = {self.name: self._padded([torch.tensor(row) for row in ids])}
        if min(lengths) < width:
            given["decoder_attention_mask" if self.seq2seq else "attention_mask"] = self._mask(lengths)
        if sources is not None:
            given["input_ids"] = self._padded(sources)
            if len({len(source) for source in sources}) > 1:
                given["attention_mask"] = self._mask([len(source) for source in sources])
        if global_tokens is not None:
            given["global_mask"] = self._padded(global_tokens)
        return self._run(self.body, sequences, lengths, given).hidden

    def _run(self, call: Any, sequences: Rows[CachedSequence], lengths: Rows[int], given: dict[str, Any]) -> Any:
        """One pass with a cache."""
        out = call(cache=self.pool.batch(sequences, lengths), **given)
        if not self.pool.restartable:
            for sequence, length in zip(sequences, lengths, strict=True):
                sequence.num_computed_tokens += length
        return out

    def last_logits(self, hidden_BTD: Tensor, lengths: Rows[int]) -> Tensor:
        """Logits (B,V) after the last real token of each row."""
        if min(lengths) == hidden_BTD.shape[1]:
            return self.logits(hidden_BTD[:, -1])
        last_B = torch.tensor(lengths, device=hidden_BTD.device) - 1
        return self.logits(hidden_BTD[torch.arange(len(lengths), device=hidden_BTD.device), last_B])

    @torch.inference_mode()
    def logits(self, hidden: Tensor) -> Tensor:
        """What the head says of states."""
        return self.head(hidden)

    @torch.inference_mode()
    def decode(self, sequences: Rows[CachedSequence], ids: Rows[int]) -> Tensor:
        """Compute one more token of each sequence; logits (B,V) after it, which the next step may overwrite."""
        graph = self._graph(sequences, "greedy") if self.cuda_graphs else None
        if graph is not None:
            graph.load(sequences, ids)
            graph.replay(sequences)
            return graph.logits_BV[: len(sequences)]
        ids_B1 = torch.tensor(ids, device=self.pool.device)[:, None]
        if self.batch_invariant and isinstance(self.pool, KVBlockPool):
            # A row for every slot of the pool.
            cache = PagedKVCache.for_decode(self.pool, self.pool.max_num_seqs)
            cache.load(sequences)
            given: Any = {self.name: F.pad(ids_B1, (0, 0, 0, cache.batch - len(ids)))}
            logits_BV = self.head(self.body(cache=cache, **given).hidden[:, -1])
            for sequence in sequences:
                sequence.num_computed_tokens += 1
            return logits_BV[: len(ids)]
        if self.compiled is not None:
            return self._run(self.compiled, sequences, [1] * len(ids), {self.name: ids_B1}).logits[:, -1]
        return self.head(self._run(self.body, sequences, [1] * len(ids), {self.name: ids_B1}).hidden[:, -1])

    @torch.inference_mode()
    def decode_stream(self, rows: list[Sequence]) -> DecodeStream | None:
        """Decode steps that run ahead of the host, from the last tokens of these rows on; None: steps are not captured."""
        graph = self._graph([each.kv for each in rows], sampling_kind(each.sampling for each in rows))
        return None if graph is None else DecodeStream(graph, rows)

    def _graph(self, sequences: Rows[CachedSequence], kind: SamplingKind) -> DecodeGraph | None:
        """The captured step for so many rows. None: kernels are launched one by one."""
        pool, size, source, source_length = self.pool, len(sequences), None, 0
        if not self.cuda_graphs or not isinstance(pool, KVBlockPool):
            return None
        if self.seq2seq:
            source = sequences[0]
            source_length = -(-max(each.cross[0][0].shape[1] for each in sequences) // SOURCE) * SOURCE
        rows = next((bucket for bucket in BUCKETS if bucket >= size), size)
        if self.batch_invariant:
            rows = pool.max_num_seqs
        elif rows > FEW:
            fits = [k[0] for k in self._graphs if rows <= k[0] <= SLACK * rows and k[1:] == (kind, source_length)]
            rows = min(fits, default=rows)
        key = rows, kind, source_length
        if key not in self._graphs:
            try:
                with attempt("generate: a step of this model"):
                    if self._recorder is None or not self._graphs:
                        # A pool whose last graph is gone is gone too, and its handle can't be used again.
                        self._recorder = Recorder(pool.device)
                    cache = PagedKVCache.for_decode(pool, rows, source, source_length)
                    self._graphs[key] = DecodeGraph(self.body, self.head, cache, kind, self._recorder)
            except CaptureError as error:
                self.cuda_graphs, self._graphs, self._recorder = False, {}, None
                warnings.warn(f"{error}; its kernels are launched one by one, which is slower", stacklevel=2)
                return None
        return self._graphs[key]

    def _padded(self, rows: Rows[Tensor]) -> Tensor:
        """(B,T) from rows of different lengths, with zeros behind."""
        padded = rows[0][None] if len(rows) == 1 else pad_sequence(list(rows), batch_first=True)
        return padded.to(self.pool.device)

    def _mask(self, lengths: Rows[int]) -> Tensor:
        column_T = torch.arange(max(lengths), device=self.pool.device)
        return (column_T < torch.tensor(lengths, device=self.pool.device)[:, None]).long()


@dataclass(eq=False, slots=True)
class UncachedSequence(CachedSequence):
    """Of a sequence nothing is kept but its tokens, which of them are global, and the encoder's states of its source."""

    tokens: list[int] = field(default_factory=list)
    global_T: Tensor | None = None
    source_SD: Tensor = field(default_factory=lambda: torch.empty(0, 0))
    source_valid_S: Tensor = field(default_factory=lambda: torch.empty(0))


class TokenPool(Pool):
    """Sequences that can be forked, and no keys or values."""

    def __init__(self, model: Model, length: int) -> None:
        self.device, self.length = next(model.parameters()).device, length

    def add(self, *, rope_length: int | None = None, source_rope_length: int | None = None) -> CachedSequence:
        return UncachedSequence(0, [], rope_length=rope_length, source_rope_length=source_rope_length)

    def fork(self, sequence: Any) -> CachedSequence:
        return replace(sequence, tokens=list(sequence.tokens))

    def free(self, sequence: CachedSequence, *, wipe: bool = False) -> None:
        """Nothing is held."""

    def batch(self, sequences: Rows[CachedSequence], lengths: Rows[int]) -> KVCache:
        raise TypeError("without a cache no pass has one")


class RecomputeRunner(ModelRunner):
    """Computes all tokens of each sequence in every pass."""

    @torch.inference_mode()
    def forward(
        self, sequences: Rows[Any], ids: Rows[Rows[int]], *, sources: Tensors = None, global_tokens: Tensors = None
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
            marks = [F.pad(each.global_T, (0, max(lengths) - len(each.global_T))) for each in sequences]
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

    def _encode(self, sequences: Rows[Any], sources: Rows[Tensor], global_tokens: Tensors) -> None:
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


STRETCH = 1024
"""Rows have room for a multiple of so many tokens, so that a prompt a little longer finds the same runner."""
BLOCK_SIZE = 64

_kept: weakref.WeakKeyDictionary[Model, tuple[Any, ModelRunner]] = weakref.WeakKeyDictionary()
_users: weakref.WeakKeyDictionary[ModelRunner, weakref.ref[Any]] = weakref.WeakKeyDictionary()
"""Who was given a runner and has not given it back. One whose user is gone is free again."""
_asking = threading.Lock()


def runner_for(model: Model, rows: int, length: int, user: object | None = None) -> ModelRunner:
    """A runner for so many rows of so many tokens. One is kept for each model: the last that was asked for.

    `user` has it to itself until it gives it back, or is no more: threads and streams that run side by side have each
    their own, even before their first row has a slot.
    """
    with _asking:
        weights = tuple(p.data_ptr() for p in model.parameters())
        seen, runner = _kept.get(model, (None, None))
        if runner is not None:
            pool: Any = runner.pool
            holder = _users.get(runner, lambda: None)()
            free = not pool.sequences and holder is None
            if not free or seen != weights or pool.max_num_seqs < rows or pool.length < length:
                runner = None
                # Its memory is needed before the next one takes its own.
                if free:
                    del _kept[model], pool
        if runner is None:
            pool = model.new_pool(rows, -(-length // STRETCH) * STRETCH, block_size=BLOCK_SIZE)
            # A shell shares all modules: an entry that held the model itself would keep it alive for ever.
            runner = ModelRunner(copy.copy(model), pool)
            _kept[model] = weights, runner
        if user is not None:
            _users[runner] = weakref.ref(user)
        return runner


def give_back(runner: ModelRunner) -> None:
    """Let others have a runner."""
    with _asking:
        _users.pop(runner, None)


def dismiss(model: Model) -> None:
    """Forget the runner of a model, and give its memory back."""
    _kept.pop(model, None)
