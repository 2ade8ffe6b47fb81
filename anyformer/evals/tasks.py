"""How good a model is at what it was trained for, on held-out examples, beside what needs no model at all."""

import math
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from anyformer.data.corpus import counted_nats
from anyformer.data.dataset import IGNORE, Examples
from anyformer.data.objectives.causal import NextToken, ends_of
from anyformer.errors import InputError
from anyformer.evals.eval_setup import EvalSetup
from anyformer.model.model import Output
from anyformer.train.perplexity import evaluate, perplexity
from anyformer.train.train_step import Precision
from anyformer.verify.differences import Report

CHUNK = 2**22
"""Numbers of a column that are counted at once."""


@dataclass(frozen=True, kw_only=True)
class Majority:
    """The class that occurs most in what was learned from, as the answer to everything."""

    name: str
    accuracy: float


@dataclass(frozen=True, kw_only=True)
class Classes:
    """What was answered for what, by class."""

    names: tuple[str, ...]
    confusion_LL: Any
    """How often a label (row) was answered by a class (column)."""

    def data(self) -> dict[str, Any]:
        """For JSON: counts, precision and recall of each class, and the whole table."""
        right = np.diag(self.confusion_LL)
        wanted, said = self.confusion_LL.sum(1), self.confusion_LL.sum(0)
        rows = [
            {
                "class": name, "labels": int(wanted[i]), "answers": int(said[i]), "right": int(right[i]),
                "recall": float(right[i] / wanted[i]) if wanted[i] else None,
                "precision": float(right[i] / said[i]) if said[i] else None,
            }
            for i, name in enumerate(self.names)
        ]  # fmt: skip
        return {"classes": rows, "confusion": self.confusion_LL.tolist()}


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a model makes of a part of its data."""

    length: int
    """Cells of a row."""
    rows: int
    labels: int
    """Labels that counted: tokens that were predicted, or classes that were asked for."""
    left_out: int
    """Examples that are empty, or don't fit a row."""
    shortened: int
    loss: float
    """Mean over the labels: nats, or the squared error of real numbers."""
    figures: dict[str, float]
    """What the objective judges, such as accuracy."""
    perplexity: float | None
    """Exp of the loss where it is nats per token."""
    bits_per_byte: float | None
    majority: Majority | None
    """For classes."""
    unigram: float | None
    """Perplexity on the same labels of a model that knows only how often each token occurs in what was learned from,
    where labels are hidden tokens of the text.
    """
    classes: Classes | None
    rule: str
    """How texts became rows: perplexities compare where this is equal."""
    seconds: float

    @property
    def margin(self) -> float | None:
        """Accuracy above that of the majority."""
        return None if self.majority is None else self.figures["accuracy"] - self.majority.accuracy

    @property
    def factor(self) -> float | None:
        """How many times the unigram's perplexity is that of the model."""
        return None if self.unigram is None or self.perplexity is None else self.unigram / self.perplexity

    def data(self) -> dict[str, Any]:
        majority, classes = self.majority, self.classes
        found: dict[str, Any] = {
            "length": self.length, "rows": self.rows, "labels": self.labels, "left_out": self.left_out,
            "shortened": self.shortened, "loss": self.loss, "perplexity": self.perplexity,
            "bits_per_byte": self.bits_per_byte, **self.figures, "rule": self.rule, "seconds": round(self.seconds, 3),
        }  # fmt: skip
        if majority is not None:
            found["majority"] = {"class": majority.name, "accuracy": majority.accuracy, "margin": self.margin}
        if self.unigram is not None:
            found["unigram"] = {"perplexity": self.unigram, "factor": self.factor}
        return found | ({} if classes is None else classes.data())


def measure(setup: EvalSetup, *, length: int | None = None, report: Report | None = None) -> Measured:
    """Every row of the part once, with nothing dropped and, where something is hidden, always the same of it.

    `report` is called after each batch with the number of rows that were read, and of all.
    """
    model, objective, feed = setup.model, setup.objective, setup.feed(length)
    spec, began = model.spec, time.perf_counter()
    answers = objective.answers(spec)
    # What an encoder is asked for is a token of the text itself, so how often it occurs there is a fair guess.
    hides = spec.topology == "encoder" and spec.head.predicts_tokens
    counter = _Counter(answers or 0, pairs=bool(objective.classes), labels=hides)

    seen = evaluate(model, feed, objective, precision=Precision(), watch=counter.take, report=report)
    if not seen.labels:
        raise InputError(f"{setup.data}: the part {setup.part!r} has no label that counts, so nothing can be measured")
    if not math.isfinite(seen.loss):
        raise InputError(f"the model gives a loss of {seen.loss}; are its weights damaged, or is its dtype too narrow?")
    classes, majority, unigram = None, None, None
    if objective.classes and answers:
        known = setup.examples.names.get(objective.classes, ())
        names = tuple(known[i] if i < len(known) else str(i) for i in range(answers))
        classes = Classes(names=names, confusion_LL=counter.pairs_LL)
        if setup.learned is not None:
            most = int(counts(setup.learned, objective.classes, answers).argmax())
            share = float(counter.pairs_LL[most].sum() / counter.pairs_LL.sum())
            majority = Majority(name=names[most], accuracy=share)
    if hides and setup.learned is not None:
        nats = counted_nats(counts(setup.learned, objective.columns[0], spec.vocab), counter.labels_L)
        unigram = perplexity(nats, seen.labels)
    tokens = spec.head.predicts_tokens
    return Measured(
        length=feed.length, rows=seen.rows, labels=seen.labels, left_out=feed.left_out, shortened=feed.shortened,
        loss=seen.loss, figures=seen.figures, perplexity=seen.perplexity if tokens else None,
        bits_per_byte=objective.bits_per_byte(seen.loss, setup.examples), majority=majority, unigram=unigram,
        classes=classes, rule=rule_of(setup, feed.length), seconds=time.perf_counter() - began,
    )  # fmt: skip


ROW_RULES = {
    "stream": "documents one after the other, cut into rows of {length:,} tokens, each row read by itself",
    "packed": "documents side by side in rows of {length:,} tokens, none of which sees another; longer ones are cut",
    "padded": "one document in each row of {length:,} tokens; longer ones are cut",
}


def rule_of(setup: EvalSetup, length: int) -> str:
    """How the examples of a part are read: in rows, as in training."""
    spec, objective, words = setup.model.spec, setup.objective, setup.tokenizer
    found = ROW_RULES[setup.rows].format(length=length)
    if isinstance(objective, NextToken):
        ends = zip(("begun", "ended"), ends_of(spec, stream=setup.rows == "stream"), strict=True)
        spelled = [(how, (words and words.inner.id_to_token(i)) or str(i)) for how, i in ends if i is not None]
        found += "".join(f", {how} with {name}" for how, name in spelled) or ", no bos and no eos"
    return f"{found}; as in training"


class _Counter:
    """Counts labels, or labels and what was answered."""

    def __init__(self, size: int, *, pairs: bool, labels: bool) -> None:
        self.size = size
        self.pairs_LL = np.zeros((size, size) if pairs else (0, 0), np.int64)
        self.labels_L = np.zeros(size if labels else 0, np.int64)

    def take(self, out: Output, inputs: dict[str, Tensor]) -> None:
        labels = inputs["labels"]
        counted = labels != IGNORE
        if self.labels_L.size:
            self.labels_L += _histogram(labels[counted], self.size)
        if not self.pairs_LL.size or out.logits is None:
            return
        # The rows of one example are judged together: their logits stand side by side.
        logits = out.logits if labels.dim() > 1 else out.logits.reshape(len(labels), -1)
        both = labels[counted] * self.size + logits.argmax(-1)[counted]
        self.pairs_LL += _histogram(both, self.size**2).reshape(self.size, self.size)


def _histogram(values: Tensor, size: int) -> Any:
    return torch.bincount(values.flatten(), minlength=size).cpu().numpy()


def counts(examples: Examples, column: str, size: int) -> Any:
    """How often each number from 0 occurs in a column; those that don't count are left out."""
    total, waiting, held = np.zeros(size, np.int64), list[Any](), 0
    spans = [(i, at) for i, n in enumerate(examples.lengths(column).tolist()) for at in range(0, n, CHUNK)]
    for k, (i, start) in enumerate(spans):
        waiting.append(np.asarray(examples.read(column, i, start, start + CHUNK)).astype(np.int64))
        held += len(waiting[-1])
        if held >= CHUNK or k == len(spans) - 1:
            some_N = np.concatenate(waiting)
            total += np.bincount(some_N[some_N != IGNORE], minlength=size)[:size]
            waiting, held = [], 0
    return total
