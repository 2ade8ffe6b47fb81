"""A captured step: all that a training step does to an accelerator, recorded once and replayed.

The host launches two things instead of a thousand. With compiled blocks a model of ten million parameters takes 8 ms for
a step on an H200 in this way, and 19 ms where the host launches each kernel. Between the two the guard looks at what was
found.
"""

import gc
import math
import warnings
from collections.abc import Callable
from typing import Any

import torch

from anyformer.data.dataset import Batch
from anyformer.errors import CapabilityError
from anyformer.kernels.cuda_graph import CaptureError, Recorder, attempt
from anyformer.model.reversible import replays_dropout
from anyformer.train.train_step import StepResult, Sums, TrainStep, mixed

MOST = 8
"""Shapes of batches that are recorded; more would be a sign that every batch has its own."""
WARM = 2
"""Steps before the recording: kernels are compiled, and libraries take their memory."""

Shapes = tuple[tuple[str, tuple[int, ...], str], ...]


class _Recorded:
    """Two graphs for batches of one shape, and the tensors that they read and write."""

    def __init__(self, train_step: TrainStep, batch: Batch, device: torch.device, recorder: Recorder) -> None:
        self.train_step, self.device = train_step, device
        self.inputs = {name: torch.from_numpy(a).to(device) for name, a in batch.inputs.items()}
        self.factor = torch.zeros((), device=device)
        # While it is set nothing can change, so steps that are only recorded leave no trace.
        self.skip = torch.ones((), dtype=torch.bool, device=device)
        self.terms: Sums = {}
        self.norm = self.factor
        recorder.warm(lambda: (self._learn(), self._move()), WARM)
        self.learn = recorder.record(self._learn)
        self.move = recorder.record(self._move)

    def _learn(self) -> None:
        """Gradients of the mean loss, clipped, and what they are."""
        train_step = self.train_step
        with train_step.precision.products(self.device):
            # Nothing that was cast outside of the recording may be read inside of it.
            with train_step.precision.step(self.device, keep=False):
                terms = train_step.objective.loss(train_step.model, self.inputs)
            terms.total.backward()
        self.terms = {name: value.detach() for name, value in (*terms.terms.items(), ("total", terms.total))}
        self.norm = train_step.optimizers.clip(train_step.clip or math.inf)

    def _move(self) -> None:
        self.train_step.optimizers.step(self.factor, None, self.skip)

    def load(self, batch: Batch, factor: float) -> None:
        """Lay out what the next replay reads, without waiting."""
        for name, array in batch.inputs.items():
            held, given = self.inputs[name], torch.from_numpy(array)
            held.copy_(given.pin_memory() if held.is_cuda else given, non_blocking=True)
        self.factor.fill_(factor)


class Captured:
    """Training steps by replay. What is dropped, learned and skipped is what `TrainStep` itself would do.

    Learning rates are float32 on the device here, so the last bits are not those of `TrainStep`; two runs by
    replay agree in all bits, and so does one that is resumed. Where a step can't be recorded `TrainStep` does it, from
    the very state that it would have had, and a warning says why.
    """

    def __init__(self, train_step: TrainStep, recorder: Callable[[torch.device], Recorder] = Recorder) -> None:
        self.train_step = train_step
        self.device = next(train_step.model.parameters()).device
        self._recorded: dict[Shapes, _Recorded | None] = {}
        """None: steps of this shape could not be recorded."""
        self.failures: list[str] = []
        """Why not, a line for each such shape."""
        self._in: list[Any] = []
        """What a recording has in it beside the batch's shape."""
        self._new, self._recorder = recorder, None

    def step(self, batch: Batch, *, seed: int, step: int, factor: float) -> StepResult:
        """Learn from one batch."""
        train_step = self.train_step
        train_step.optimizers.check(train_step.model)
        recorded = self._of(batch)
        if recorded is None:
            return train_step.step(batch, seed=seed, step=step, factor=factor)
        recorded.load(batch, factor)
        recorded.learn.replay(mixed(seed, step, train_step.ranks.dp_rank))
        skip = train_step.guard.judge(recorded.terms["total"], recorded.norm)
        recorded.skip.copy_(skip)
        recorded.move.replay()
        # The next replay writes over what this one found.
        terms = {name: value.clone() for name, value in recorded.terms.items()}
        return StepResult(terms=terms, norm=recorded.norm.clone(), skipped=skip.clone())

    def check(self, batch: Batch) -> None:
        """Refuse a batch whose step can't be recorded."""
        wrong = why_not(self.train_step, batch, self.device)
        if len(self._recorded) == MOST:
            wrong = wrong or f"batches come in more than {MOST} shapes; use data.rows = packed or stream"
        if wrong:
            raise CapabilityError(f"compute.capture: {wrong}, or set compute.capture = false")

    def _of(self, batch: Batch) -> _Recorded | None:
        step = self.train_step
        own = [(p.data_ptr(), p.requires_grad) for p in step.model.parameters()]
        modes = [module.training for module in step.model.modules()]
        baked = [step.model, step.optimizers, step.objective, step.precision, step.clip, own, modes]
        if self._in != baked:
            # Another stage, whose passes are others; or weights lie elsewhere, where a replay would not look; or somebody
            # froze a parameter or changed a setting.
            self._recorded, self._recorder, self._in, self.failures = {}, None, baked, []
        shapes = tuple((name, a.shape, a.dtype.str) for name, a in sorted(batch.inputs.items()))
        if shapes not in self._recorded:
            if len(self._recorded) == MOST and None in self._recorded.values():
                # Nobody is helped by a refusal of a run that goes on without.
                return None
            self.check(batch)
            self._recorded[shapes] = self._try(batch)
        return self._recorded[shapes]

    def _try(self, batch: Batch) -> _Recorded | None:
        parameters = list(self.train_step.optimizers.parameters())
        before = [parameter.grad for parameter in parameters]
        self.train_step.optimizers.forget()
        try:
            with attempt("compute.capture: a step of this model"):
                if self._recorder is None:
                    self._recorder = self._new(self.device)
                return _Recorded(self.train_step, batch, self.device, self._recorder)
        except CaptureError as error:
            why = str(error)
            self.failures.append(why)
        finally:
            for parameter, gradient in zip(parameters, before, strict=True):
                parameter.grad = gradient
        if not any(self._recorded.values()):
            # A pool whose last graph is gone is gone too, and its handle can't be used again.
            self._recorder = None
        # What the attempt held is free now, and the step that follows may need it.
        gc.collect()
        if self.device.type == "cuda":
            torch.cuda.empty_cache()
        warnings.warn(f"{why}; training goes on without. Set compute.capture = false to not try it", stacklevel=2)
        return None


def why_not(train_step: TrainStep, batch: Batch, device: torch.device) -> str:
    """Why steps like this can't be replayed, and what to change; empty: nothing is known against it."""
    if device.type != "cuda":
        return f"only steps on a CUDA device can be recorded, and this model is on {device.type}; pick device = cuda"
    if train_step.ranks.world > 1:
        return f"processes meet in the middle of a step, and there are {train_step.ranks.world}; run one"
    if (micro := train_step.micro) and batch.units > micro:
        return f"the pieces of a batch count by their labels, which differ; leave compute.micro ({micro}) out"
    if replays_dropout(train_step.model):
        return "reversible blocks replay what they drop by the host's hand; leave dropout out"
    return ""
