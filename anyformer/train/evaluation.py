"""Evaluation on held-out examples in the middle of a run: the loss and the metrics of the objective."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from anyformer.data.batch import Batch
from anyformer.data.loader import BatchLoader
from anyformer.data.objectives import Objective
from anyformer.model.eval_mode import eval_mode
from anyformer.model.model import Model, Output
from anyformer.specs.model import ModelSpec
from anyformer.train.perplexity import perplexity
from anyformer.train.ranks import ALONE, Ranks
from anyformer.train.train_step import Precision, even, on_device

LOGITS = 2**26
"""Logits that are held at once."""


@dataclass(frozen=True, kw_only=True)
class EvalResult:
    """Held-out loss and metrics."""

    loss: float
    """Mean over the labels that count, without label smoothing or anything added for training: nats per token."""
    labels: int
    figures: dict[str, float]
    """Further metrics of the objective, such as accuracy."""
    rows: int
    all_rows: int
    """Rows that there are: fewer were read if they are a sample."""

    @property
    def perplexity(self) -> float:
        """Exp of the loss; of use where the loss is nats per token."""
        return perplexity(self.loss)


def evaluate(
    model: Model,
    loader: BatchLoader,
    objective: Objective,
    *,
    precision: Precision,
    batches: int = 0,
    ranks: Ranks = ALONE,
    watch: Callable[[Output, dict[str, torch.Tensor]], None] | None = None,
    report: Callable[[int, int], None] | None = None,
) -> EvalResult:
    """Evaluate on so many batches of a sample of the rows, always the same, without dropout; 0: all rows once.

    `watch` gets the model's output and inputs for each piece of a batch. `report` is called at the beginning and after
    each batch with the rows that were read and their total.
    """
    device = next(model.parameters()).device
    sums: dict[str, torch.Tensor] = {}
    read, total, tell = 0, loader.swept(batches), report or (lambda *_: None)
    tell(read, total)
    with eval_mode(model), torch.no_grad(), precision.step(device):
        for batch in loader.sweep(ranks.dp_size, few=batches):
            for part in few(ranks.share(batch), model.spec):
                inputs = on_device(part, device)
                # Of the labels as they are: exp of a smoothed loss is no perplexity.
                terms, out = objective.answer(model, inputs, label_smoothing=0.0)
                if watch is not None:
                    watch(out, inputs)
                plain = terms.terms.get("cross_entropy", terms.terms.get("squared_error", terms.total))
                found = {"loss": (float(plain) * part.labels, float(part.labels)), **objective.judge(out, inputs)}
                for name, pair in found.items():
                    sums[name] = sums.get(name, 0) + torch.tensor(pair, dtype=torch.float64)
            read = min(read + batch.units, total)
            tell(read, total)
    totals = {name: ranks.total(row.to(device)).tolist() for name, row in sums.items()}
    # The mean of nothing is no number: 0 would be the best loss of all.
    means = {name: total / counted if counted else math.nan for name, (total, counted) in totals.items()}
    labels = int(totals["loss"][1])
    return EvalResult(loss=means.pop("loss"), labels=labels, figures=means, rows=total, all_rows=loader.swept())


def few(batch: Batch, spec: ModelSpec) -> list[Batch]:
    """A batch in so many pieces that the logits of each have room."""
    cells = max(array.size for array in batch.inputs.values())
    logits = cells * (spec.vocab if spec.head.predicts_tokens else 1)
    return batch.split(even(batch.units, max(1, math.ceil(logits / LOGITS))))
