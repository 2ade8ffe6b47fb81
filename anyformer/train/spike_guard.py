"""The guard: numbers that are not finite, and spikes, never reach the weights.

The judgement is a tensor beside the loss and the gradients, so nothing waits for an accelerator: the update reads it
there, and the host looks at it when it reads what the step found.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor

from anyformer.errors import CheckpointError, TrainingError

Action = Literal["skip", "stop"]
WINDOW = 64
"""So many gradient norms of the past a spike is measured by."""
ENOUGH = 16
"""With fewer than these there is no telling what is usual."""


class SpikeGuard:
    """Judges each step by its loss and the norm of its gradients, both of the whole batch and alike on all processes.

    A spike is a norm of more than `spike` times the median of the last ones that were let through: a median does not
    move when a few of them are odd. `spike=None` refuses only what is not finite.
    """

    def __init__(self, action: Action = "skip", spike: float | None = None, patience: int = 10) -> None:
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
