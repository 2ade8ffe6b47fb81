"""Classes of whole texts: text-classification."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.generation.pipelines.rows import check_count, check_size, listed, read_all, read_rows
from anyformer.generation.pipelines.source import Source
from anyformer.specs.embed_head import PairHead, RegressionHead, SequenceHead

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits_BC: logits_BC.softmax(-1),
    "sigmoid": lambda logits_BC: logits_BC.sigmoid(),
    "none": lambda logits_BC: logits_BC,
}
BEST: Final = "best"


class TextClassification:
    """`pipe(text)`: a label and its score; `pipe(text, top_k=None)`: all of them, the best first."""

    def __init__(self, source: Source) -> None:
        head = source.model.spec.head
        if not isinstance(head, SequenceHead | PairHead | RegressionHead):
            raise InputError(
                f"text-classification: needs a head that answers for a whole text (sequence, pair or regression), and "
                f"this model's is {head.kind!r}"
            )
        self.source = source
        self.classes = head.outputs if isinstance(head, RegressionHead) else head.labels
        self.function = "none" if isinstance(head, RegressionHead) else "sigmoid" if self.classes == 1 else "softmax"
        self.pairs = isinstance(head, PairHead)

    def __call__(
        self,
        inputs: Any,
        *,
        top_k: int | str | None = BEST,
        function_to_apply: str | None = None,
        batch_size: int | None = None,
        truncation: bool = False,
    ) -> list[Any]:
        """Classify a text, a pair `{"text": ..., "text_pair": ...}`, or a list of them.

        Args:
            inputs: What is classified.
            top_k: How many labels, the best first; None: all. Left out: one table for each text instead of a list.
            function_to_apply: "softmax", "sigmoid" or "none"; None: what goes with the head.
            batch_size: Texts at once.
            truncation: Cut texts that are too long.
        """
        given, alone = listed(inputs)
        function = self.function if function_to_apply is None else function_to_apply
        if function not in FUNCTIONS:
            raise InputError(f"function_to_apply: {function!r} is unknown{nearest(str(function), FUNCTIONS)}")
        count = 1 if top_k == BEST else check_count("top_k", top_k)
        if self.pairs:
            for i, each in enumerate(given):
                if not isinstance(each, dict) or each.get("text_pair") is None:
                    raise InputError(
                        f'input {i}: this model compares two texts; give {{"text": ..., "text_pair": ...}}'
                    )
        rows = read_rows(self.source, given, truncation=truncation)

        def answer(out: Any, _: Tensor, chosen: list[Any]) -> list[Any]:
            logits_BC = out.logits.to(torch.promote_types(out.logits.dtype, torch.float32))
            scores_BC = FUNCTIONS[function](logits_BC)
            return [self._labels(scores_C, count) for scores_C in scores_BC]

        found = read_all(self.source, rows, check_size(batch_size), answer)
        if top_k == BEST:
            return [labels[0] for labels in found]
        return found[0] if alone else found

    def _labels(self, scores_C: Tensor, count: int | None) -> list[dict[str, Any]]:
        scores = scores_C.tolist()
        order = sorted(range(len(scores)), key=lambda i: -scores[i])
        return [{"label": self.source.label(i), "score": scores[i]} for i in order[:count]]
