"""Classes that are named when they are asked for, by a model of entailment: zero-shot-classification."""

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Reader, Row, check_text, listed
from anyformer.generation.pipelines.source import Source
from anyformer.specs.embed_head import SequenceHead

TEMPLATE = "This example is {}."


class ZeroShotClassification(Reader):
    """`pipe(text, ["sports", "politics"])`: how well each label goes with a text (Yin et al. 2019)."""

    def __init__(self, source: Source) -> None:
        head = source.model.spec.head
        if not isinstance(head, SequenceHead) or head.labels < 2:
            raise InputError(
                "zero-shot-classification: needs a head that says whether one text follows from another (sequence, with "
                f"a label for entailment and one for contradiction), and this model's is {head.kind!r}"
            )
        super().__init__(source)
        named = [i for i in range(head.labels) if source.label(i).lower().startswith("entail")]
        if not named:
            warnings.warn(
                f"labels: none of {', '.join(map(source.label, range(head.labels)))} is called entailment; the last one is "
                "taken for it. Name them: labels=[...]", stacklevel=4,
            )  # fmt: skip
        self.entailment = named[0] if named else head.labels - 1
        self.contradiction = head.labels - 1 if self.entailment == 0 else 0

    def __call__(
        self,
        sequences: str | Sequence[str],
        candidate_labels: str | Sequence[str],
        *,
        hypothesis_template: str = TEMPLATE,
        multi_label: bool = False,
        batch_size: int | None = None,
    ) -> Any:
        """Score labels for a text, or for each text of a list; one that is too long is cut.

        Args:
            sequences: Texts.
            candidate_labels: Labels, or a text with commas between them.
            hypothesis_template: What is held against the text, with {} for a label.
            multi_label: Each label by itself, entailment against contradiction; otherwise the scores of all labels of a
                text add up to 1.
            batch_size: Pairs of a text and a label at once.
        """
        labels = (
            [label.strip() for label in candidate_labels.split(",") if label.strip()]
            if isinstance(candidate_labels, str)
            else list(candidate_labels)
        )
        if not labels or not all(isinstance(label, str) and label for label in labels):
            raise InputError(f"candidate_labels: expected texts, at least one, got {candidate_labels!r}")
        if not isinstance(hypothesis_template, str) or hypothesis_template.format(labels[0]) == hypothesis_template:
            raise InputError(f"hypothesis_template: has no {{}} where the label goes: {hypothesis_template!r}")
        given, alone = listed(sequences)
        rows: list[Row] = []
        for i, text in enumerate(given):
            for label in labels:
                pair = hypothesis_template.format(label)
                rows += self.cut(check_text(text, i), pair, length=self.limit(), strategy="only_first")[:1]
        logits: list[Tensor] = self.run(rows, lambda out, b, row: out.logits[b].float().cpu(), batch_size=batch_size)
        found = [
            self._scored(text, labels, torch.stack(logits[i * len(labels) : (i + 1) * len(labels)]), multi_label)
            for i, text in enumerate(given)
        ]
        return found[0] if alone else found

    def marks(self, row: Row) -> list[int]:
        return [1] + [0] * (len(row.ids) - 1)

    def _scored(self, text: str, labels: list[str], logits_LC: Tensor, multi_label: bool) -> dict[str, Any]:
        if multi_label or len(labels) == 1:
            scores_L = logits_LC[:, [self.contradiction, self.entailment]].softmax(-1)[:, 1]
        else:
            scores_L = logits_LC[:, self.entailment].softmax(-1)
        order = scores_L.argsort(descending=True).tolist()
        return {
            "sequence": text,
            "labels": [labels[i] for i in order],
            "scores": [float(scores_L[i]) for i in order],
        }
