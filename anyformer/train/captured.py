"""A captured step: all that a learner does to an accelerator in one step, recorded once and replayed.

The host launches two things instead of a thousand. With compiled blocks a model of ten million parameters takes 8 ms for
a step on an H200 in this way, and 19 ms where the host launches each kernel. Between the two the guard looks at what was
found.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from anyformer.data.batch import Batch
from anyformer.errors import CapabilityError
from anyformer.model.reversible import replays_dropout
from anyformer.train.learner import Found, Learner, Sums, mixed

MOST = 8
"""Shapes of batches that are recorded; more would be a sign that every batch has its own."""
WARM = 2
"""Steps before the recording: kernels are compiled, and libraries take their memory."""

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]


class Captured:
    """Steps of a learner by replay. What is dropped, learned and skipped is what the learner itself would do.

    Learning rates are float32 on the device here, so the last bits are not those of a learner on its own; two runs by
    replay agree in all bits, and so does one that is resumed.
    """

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.device = next(learner.model.parameters()).device
        self._recorded: dict[Shapes, _Recorded] = {}
        self._model: Any = None
        self._memory: Any = None

    def step(self, batch: Batch, *, seed: int, step: int, factor: float) -> Found:
        """Learn from one batch."""
        learner = self.learner
        recorded = self._of(batch)
        recorded.load(batch, factor)
        with torch.random.fork_rng([self.device]):
            # A replay draws by the generator's seed at that moment, as launched kernels do.
            torch.manual_seed(mixed(seed, step, learner.team.reader))
            recorded.learn.replay()
        skip = learner.guard.judge(recorded.terms["total"], recorded.norm)
        recorded.skip.copy_(skip)
        recorded.move.replay()
        # The next replay writes over what this one found.
        terms = {name: value.clone() for name, value in recorded.terms.items()}
        return Found(terms=terms, norm=recorded.norm.clone(), skipped=skip.clone())

    def check(self, batch: Batch) -> None:
        """Refuse a batch whose step can't be recorded."""
        wrong = why_not(self.learner, batch, self.device)
        if len(self._recorded) == MOST:
            wrong = wrong or f"batches come in more than {MOST} shapes; use data.rows = packed or stream"
        if wrong:
            raise CapabilityError(f"compute.capture: {wrong}, or set compute.capture = false")

    def _of(self, batch: Batch) -> _Recorded:
        if self._model is not self.learner.model:
            # Another stage: its passes are others.
            self._recorded, self._model = {}, self.learner.model
        shapes = tuple((name, a.shape, a.dtype.str) for name, a in sorted(batch.inputs.items()))
        if shapes not in self._recorded:
            self.check(batch)
            if not self._recorded:
                # A pool whose last graph is gone is gone too, and its handle can't be used again.
                self._memory = torch.cuda.graph_pool_handle()
            self._recorded[shapes] = _Recorded(self.learner, batch, self.device, self._memory)
        return self._recorded[shapes]


def why_not(learner: Learner, batch: Batch, device: torch.device) -> str:
    """Why steps like this can't be replayed, and what to change; empty: nothing is known against it."""
    if device.type != "cuda":
        return f"only steps on a CUDA device can be recorded, and this model is on {device.type}; pick device = cuda"
    if learner.team.world > 1:
        return f"processes meet in the middle of a step, and there are {learner.team.world}; run one"
    if learner.micro and batch.units > learner.micro:
        return f"the pieces of a batch count by their labels, which differ; leave compute.micro ({learner.micro}) out"
    if replays_dropout(learner.model):
        return "reversible blocks replay what they drop by the host's hand; leave dropout out"
    return ""


class _Recorded:
    """Two graphs for batches of one shape, and the tensors that they read and write."""

    def __init__(self, learner: Learner, batch: Batch, device: torch.device, memory: Any) -> None:
        self.learner, self.device = learner, device
        self.inputs = {name: torch.from_numpy(a).to(device) for name, a in batch.inputs.items()}
        self.factor = torch.zeros((), device=device)
        # While it is set nothing can change, so steps that are only recorded leave no trace.
        self.skip = torch.ones((), dtype=torch.bool, device=device)
        self.terms: Sums = {}
        self.norm = self.factor
        stream = torch.cuda.Stream(device)
        stream.wait_stream(torch.cuda.current_stream(device))
        with torch.random.fork_rng([device]), torch.cuda.stream(stream):
            for _ in range(WARM):
                self._learn()
                self._move()
        torch.cuda.current_stream(device).wait_stream(stream)
        torch.cuda.synchronize(device)
        self.learn = self._capture(self._learn, memory)
        self.move = self._capture(self._move, memory)

    def _learn(self) -> None:
        """Gradients of the mean loss, clipped, and what they are."""
        learner = self.learner
        with learner.precision.products(self.device):
            # Nothing that was cast outside of the recording may be read inside of it.
            with learner.precision.step(self.device, keep=False):
                terms = learner.objective.loss(learner.model, self.inputs)
            terms.total.backward()
        self.terms = {name: value.detach() for name, value in (*terms.terms.items(), ("total", terms.total))}
        self.norm = learner.optimizers.clip(learner.clip or math.inf)

    def _move(self) -> None:
        self.learner.optimizers.step(self.factor, None, self.skip)

    def _capture(self, work: Callable[[], None], memory: Any) -> Any:
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=memory):
                work()
        except RuntimeError as error:
            first = str(error).strip().splitlines()[0]
            raise CapabilityError(
                f"compute.capture: a step of this model waits for its device, so it can't be recorded ({first}); "
                "set compute.capture = false"
            ) from error
        return graph

    def load(self, batch: Batch, factor: float) -> None:
        """Lay out what the next replay reads, without waiting."""
        for name, array in batch.inputs.items():
            held: Tensor = self.inputs[name]
            held.copy_(torch.from_numpy(array).pin_memory(), non_blocking=True)
        self.factor.fill_(factor)
