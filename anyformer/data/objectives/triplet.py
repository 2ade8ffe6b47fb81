"""Triplets: is A nearer to B or to C (the long-text task of RoFormer, Su et al. 2021, table 5)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from anyformer.data.objectives.pair import TwoTexts
from anyformer.specs.axes import Problem
from anyformer.specs.embed_head import PairHead, SequenceHead
from anyformer.specs.model import ModelSpec

if TYPE_CHECKING:
    from torch import Tensor

    from anyformer.kernels.loss import LossTerms
    from anyformer.model.model import Model, Output


@dataclass(frozen=True, kw_only=True)
class Triplet(TwoTexts, kind="triplet"):
    """Rows (A, B) and (A, C) with one logit each, softmax over both; label 0: A is nearer to B, 1: to C."""

    columns = ("a", "b", "c", "label")
    others = ("b", "c")
    fan = 2

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        yield from super().own_problems(spec)
        if isinstance(spec.head, SequenceHead | PairHead) and spec.head.labels != 1:
            yield "head.labels", f"a row of a triplet has one logit, not {spec.head.labels}; set 1"

    def answers(self, spec: ModelSpec) -> int | None:
        return 2

    def answer(self, model: Model, inputs: dict[str, Tensor], **how: Any) -> tuple[LossTerms, Output]:
        from anyformer.errors import InputError
        from anyformer.kernels.loss import LossTerms, cross_entropy

        labels_U = inputs["labels"]
        # Of one class the model is always right, so all that its own loss holds is what it adds (balance of experts).
        out = model(**{**inputs, "labels": labels_U.new_zeros(2 * len(labels_U))}, **how)
        if out.logits is None or out.loss is None:
            raise InputError("a triplet is judged by its logits, and this model answered none")
        loss = model.spec.loss
        added = out.loss - loss.z * out.losses["z"] if loss.z else out.loss
        found = cross_entropy(
            out.logits.reshape(-1, 2), labels_U, smoothing=how.get("label_smoothing", loss.label_smoothing), z=loss.z
        )
        return LossTerms(found.total + added, {**out.losses, **found.terms}, found.label_count), out
