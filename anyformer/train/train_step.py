"""One step of learning: rows in pieces -> gradients -> clip -> guard -> update.

Nothing here waits for an accelerator: what a step found is read from it when somebody asks, a step later.
"""

import functools
import math
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.data.dataset import Batch
from anyformer.data.objectives import Objective
from anyformer.errors import CheckpointError, InputError, TrainingError
from anyformer.kernels.loss import LossTerms
from anyformer.model.model import Model
from anyformer.model.reversible import replays_dropout
from anyformer.train.cpu_workers import CpuWorkers
from anyformer.train.optim import Optimizers
from anyformer.train.ranks import ALONE, Ranks

WINDOW = 64
"""So many gradient norms of the past a spike is measured by."""
ENOUGH = 16
"""With fewer than these there is no telling what is usual."""
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float64": torch.float64}


@dataclass(frozen=True, kw_only=True)
class Precision:
    """Weights, their gradients and the optimizer's state are in one dtype; products may be in a smaller one."""

    weights: Literal["float32", "bfloat16", "float64"] = "float32"
    autocast: Literal["none", "bfloat16"] = "none"
    """What products run in while the weights keep their dtype."""
    tf32: bool = False
    """Whether fp32 products on a CUDA device may round their factors to 11 bits, which is several times as fast."""

    def __post_init__(self) -> None:
        if self.weights not in DTYPES:
            raise InputError(f"precision.weights: {self.weights!r} is unknown (known: {', '.join(DTYPES)})")
        if self.autocast not in ("none", "bfloat16"):
            raise InputError(f"precision.autocast: {self.autocast!r} is unknown (known: none, bfloat16)")
        if self.autocast != "none" and self.weights != "float32":
            raise InputError(
                f"precision.autocast: the weights are {self.weights}, and it is float32 that products are cast from; "
                "leave autocast out, or keep the weights in float32"
            )

    @property
    def dtype(self) -> torch.dtype:
        return DTYPES[self.weights]

    @contextmanager
    def step(self, device: torch.device, *, keep: bool = True) -> Iterator[None]:
        """Around the forward pass of a step; outside of it nothing is changed. What was cast there is cast in its
        backward pass too; how products round is not, so both passes need `products` around them.

        `keep`: weights that were cast are kept to the end of the pass, in case it reads them again.
        """
        lower = self.autocast == "bfloat16"
        with self.products(device), torch.autocast(device.type, torch.bfloat16, enabled=lower, cache_enabled=keep):
            yield

    @contextmanager
    def products(self, device: torch.device) -> Iterator[None]:
        """Around all products of a step, forward and backward: a kernel looks at it when it is launched."""
        before = torch.get_float32_matmul_precision()
        if device.type == "cuda" and self.tf32:
            torch.set_float32_matmul_precision("high")
        try:
            yield
        finally:
            if torch.get_float32_matmul_precision() != before:
                torch.set_float32_matmul_precision(before)


Sums = dict[str, Tensor]
"""Terms of the loss by name, and the loss itself as `total`; each a mean over the labels that count."""


@dataclass(frozen=True)
class StepMetrics:
    """What a step found, as numbers."""

    terms: dict[str, float]
    norm: float
    skipped: bool

    @property
    def loss(self) -> float:
        """What people look at: the cross-entropy or the squared error without anything added to it."""
        return self.terms.get("cross_entropy", self.terms.get("squared_error", self.terms["total"]))


@dataclass(frozen=True, kw_only=True)
class StepResult:
    """What a step found, still on its device."""

    terms: Sums
    norm: Tensor
    """Of all gradients together, before they were clipped."""
    skipped: Tensor
    """Whether the weights were left as they were."""

    def read(self) -> StepMetrics:
        """The same as numbers; waits for the device."""
        *values, norm = torch.stack([v.detach().double() for v in (*self.terms.values(), self.norm)]).tolist()
        return StepMetrics(dict(zip(self.terms, values, strict=True)), norm, bool(self.skipped))


class SpikeGuard:
    """Keeps numbers that are not finite, and spikes, from the weights. Judges each step by its loss and the norm of its
    gradients, both of the whole batch and alike on all processes.

    The judgement is a tensor beside the loss and the gradients, so nothing waits for an accelerator: the update reads it
    there, and the host looks at it when it reads what the step found.

    A spike is a norm of more than `spike` times the median of the last ones that were let through: a median does not
    move when a few of them are odd. `spike=None` refuses only what is not finite.
    """

    def __init__(
        self, action: Literal["skip", "stop"] = "skip", spike: float | None = None, patience: int = 10
    ) -> None:
        self.action, self.spike, self.patience = action, spike, patience
        self.skipped = 0
        """Steps that were left out so far."""
        self.in_a_row = 0
        """Steps that were left out since the last one that was not."""
        self._stage = 0
        self._norms_W = torch.full((WINDOW,), math.inf, dtype=torch.float64)
        self._count = torch.zeros((), dtype=torch.int64)

    @torch.no_grad()
    def judge(self, loss: Tensor, norm: Tensor) -> Tensor:
        """Whether the weights must be left as they are: a truth value on the device of the norm."""
        loss, norm = loss.detach(), norm.detach().double()
        skip = ~(loss.isfinite() & norm.isfinite())
        if self.spike is None:
            return skip
        self._norms_W, self._count = self._norms_W.to(norm.device), self._count.to(norm.device)
        # Slots that are still empty hold infinity and come last.
        held = self._count.clamp(max=WINDOW)
        middle = ((held - 1) // 2).clamp(min=0)
        usual = self._norms_W.sort().values.gather(0, middle[None])[0]
        skip = skip | ((held >= ENOUGH) & (norm > self.spike * usual))
        slot_W = torch.arange(WINDOW, device=norm.device) == self._count % WINDOW
        self._norms_W = torch.where(slot_W & ~skip, norm, self._norms_W)
        self._count = self._count + ~skip
        return skip

    def enter(self, stage: int) -> None:
        """Forget what is usual when another stage begins: rows of another length have gradients of another size.

        A checkpoint at the end of a stage knows that the next one has not begun.
        """
        if stage != self._stage:
            self._stage = stage
            self._norms_W = torch.full_like(self._norms_W, math.inf)
            self._count = torch.zeros_like(self._count)

    def settle(self, skipped: bool, *, step: int, loss: float, norm: float, where: Callable[[], str]) -> str:
        """Count a judged step, in order; what was wrong on the batch that `where` names. TrainingError ends the run."""
        if not skipped:
            self.in_a_row = 0
            return ""
        self.skipped += 1
        self.in_a_row += 1
        cause = f"the gradient's norm, {norm:.4g}, was more than {self.spike} times the usual one (loss {loss:.4g})"
        if not math.isfinite(loss):
            cause = f"the loss was {loss}"
        elif not math.isfinite(norm):
            cause = f"the gradient's norm was {norm} (loss {loss:.4g})"
        fault = f"step {step}: {cause} on batch {where()}; the weights were left as they were"
        if self.action == "stop":
            raise TrainingError(
                f"{fault}, and the run ends, because guard.action is stop. Look at these examples, or set "
                "guard.action = skip to leave such steps out; the same command continues from the last checkpoint"
            )
        if self.in_a_row >= self.patience:
            raise TrainingError(
                f"{fault}. {self.in_a_row} steps in a row were left out, which is guard.patience, so the run ends. The "
                "model may be unstable: lower the learning rate, add qk_norm or a norm before each branch "
                "(norm.placement = pre)" + ("" if self.spike is None else f", or raise guard.spike, {self.spike:g}")
            )
        return fault

    def state(self) -> dict[str, Any]:
        """All that a resume needs, as plain numbers. Waits for the device."""
        count = int(self._count)
        counts = {"skipped": self.skipped, "in_a_row": self.in_a_row, "stage": self._stage, "count": count}
        return counts | {"norms": self._norms_W.tolist()[: min(count, WINDOW)]}

    def restore(self, state: Mapping[str, Any]) -> None:
        try:
            skipped, row, stage, count = (int(state[name]) for name in ("skipped", "in_a_row", "stage", "count"))
            norms = [float(norm) for norm in state["norms"]]
        except (KeyError, TypeError, ValueError) as error:
            raise CheckpointError(f"guard: its state can't be read: {error!r}") from error
        whole = len(norms) == min(count, WINDOW) and all(map(math.isfinite, norms))
        if not whole or min(skipped, row, stage, count) < 0:
            raise CheckpointError(f"guard: its state does not hold together: {count} steps, {len(norms)} norms")
        self.skipped, self.in_a_row, self._stage = skipped, row, stage
        rest = [math.inf] * (WINDOW - len(norms))
        self._norms_W = torch.tensor(norms + rest, dtype=torch.float64, device=self._norms_W.device)
        self._count = torch.tensor(count, device=self._count.device)


@dataclass(kw_only=True)
class TrainStep:
    """Moves a model by one batch after the other."""

    model: Model
    objective: Objective
    optimizers: Optimizers
    precision: Precision
    guard: SpikeGuard
    workers: CpuWorkers = field(default_factory=CpuWorkers)
    clip: float = 1.0
    """The largest norm of all gradients together; 0: no limit."""
    micro: int = 0
    """Rows that go through the model at once; 0: all."""
    ranks: Ranks = ALONE
    last: Callable[[bool], None] = lambda _: None
    """Told before each piece whether it is the last one: gradients of several processes meet only then."""

    def step(self, batch: Batch, *, seed: int, step: int, factor: float) -> StepResult:
        """Learn from one batch. What is dropped depends on (seed, step, the rows that this process reads) alone."""
        if self.ranks.world == 1:
            # Processes that share a model exchange its parameters for parts of them and back.
            self.optimizers.check(self.model)
        device = next(self.model.parameters()).device
        rounded = self.precision.products(device)
        with torch.random.fork_rng([device] if device.type == "cuda" else []), rounded:
            # Only what a step on this device draws from, and no other device's generator.
            seed = mixed(seed, step, self.ranks.dp_rank)
            torch.default_generator.manual_seed(seed)
            if device.type == "cuda":
                with torch.cuda.device(device):
                    torch.cuda.manual_seed(seed)
            terms = self._gradients(batch, device)
        terms = self.ranks.totals(terms)
        norm = self.optimizers.clip(self.clip or math.inf)
        skip = self.guard.judge(terms["total"], norm)
        self.optimizers.step(factor, self.workers, skip)
        return StepResult(terms=terms, norm=norm, skipped=skip)

    def settle(self, metrics: StepMetrics, step: int, batch: Batch) -> None:
        """Let the guard count a step, in the order of the steps, and warn of one that was skipped."""
        fault = self.guard.settle(
            metrics.skipped, step=step, loss=metrics.terms["total"], norm=metrics.norm, where=lambda: batch.digest
        )
        if fault:
            warnings.warn(fault, stacklevel=3)

    def _gradients(self, batch: Batch, device: torch.device) -> Sums:
        """Leave the gradient of the mean loss over all labels; router losses are means over each piece's tokens."""
        mine = self.ranks.share(batch)
        pieces = math.ceil(mine.units / self.micro) if self.micro else 1
        if self.workers.size > 1 and not replays_dropout(self.model):
            return self._by_workers(mine.split(even(mine.units, max(pieces, self.workers.size))), batch.labels, device)
        sums: Sums = {}
        parts = mine.split(even(mine.units, pieces))
        for i, part in enumerate(parts):
            self.last(i == len(parts) - 1)
            terms = self._loss(part, device)
            weight = part.labels / max(batch.labels, 1)
            # Processes average what they found, but each already divided by the labels of all.
            (terms.total * (weight * self.ranks.dp_size)).backward()
            _add(sums, terms, weight)
        return sums

    def _by_workers(self, parts: list[Batch], labels: int, device: torch.device) -> Sums:
        """The same with a thread for each piece. What they find is added in a fixed order, so a step repeats to the bit."""
        parameters = [p for p in self.optimizers.parameters() if p.requires_grad]

        def work(part: Batch) -> tuple[LossTerms, float, tuple[Tensor | None, ...]]:
            weight = part.labels / max(labels, 1)
            terms = self._loss(part, device)
            return terms, weight, torch.autograd.grad(terms.total * weight, parameters, allow_unused=True)

        sums: Sums = {}
        for terms, weight, found in self.workers.map(work, parts):
            _add(sums, terms, weight)
            for parameter, gradient in zip(parameters, found, strict=True):
                if gradient is not None and parameter.grad is not None:
                    parameter.grad.add_(gradient)
                elif gradient is not None:
                    # In its parameter's strides, as backward leaves it: a fused update reads both element by element.
                    laid = gradient.stride() == parameter.stride()
                    parameter.grad = gradient if laid else torch.empty_like(parameter.detach()).copy_(gradient)
        return sums

    def _loss(self, part: Batch, device: torch.device) -> LossTerms:
        with self.precision.step(device):
            return self.objective.loss(self.model, on_device(part, device))


def on_device(batch: Batch, device: torch.device) -> dict[str, Tensor]:
    """A batch as arguments of the model."""
    tensors, pin = {name: torch.from_numpy(array) for name, array in batch.inputs.items()}, device.type == "cuda"
    return {name: (t.pin_memory() if pin else t).to(device, non_blocking=pin) for name, t in tensors.items()}


def mixed(*numbers: int) -> int:
    """One seed from several numbers."""
    return functools.reduce(lambda seed, number: (seed * 1_000_003 + number) % 2**63, numbers, 0)


def even(units: int, least: int) -> int:
    """The fewest equal parts that are at least so many."""
    return next((parts for parts in range(min(least, units), units) if units % parts == 0), units)


def _add(sums: Sums, terms: LossTerms, weight: float) -> None:
    for name, value in (*terms.terms.items(), ("total", terms.total)):
        found = value.detach() * weight
        sums[name] = sums[name] + found if name in sums else found
