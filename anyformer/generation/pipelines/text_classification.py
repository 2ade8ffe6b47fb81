"""Classes of whole texts: text-classification."""

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from anyformer.errors import InputError, nearest
from anyformer.generation.pipelines.rows import Reader, Row, check_count
from anyformer.generation.pipelines.source import Source
from anyformer.specs.embed_head import PairHead, RegressionHead, SequenceHead

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda logits_BC: logits_BC.softmax(-1),
    "sigmoid": lambda logits_BC: logits_BC.sigmoid(),
    "none": lambda logits_BC: logits_BC,
}
BEST: Final = "best"


class TextClassification(Reader):
    """`pipe(text)`: a label and its score; `pipe(text, top_k=None)`: all of them, the best first."""

    def __init__(self, source: Source) -> None:
        head = source.model.spec.head
        if not isinstance(head, SequenceHead | PairHead | RegressionHead):
            raise InputError(
                f"text-classification: needs a head that answers for a whole text (sequence, pair or regression), and "
                f"this model's is {head.kind!r}"
            )
        super().__init__(source)
        self.classes = head.outputs if isinstance(head, RegressionHead) else head.labels
        problem = "regression" if isinstance(head, RegressionHead) else getattr(head, "problem", None)
        unset = "sigmoid" if self.classes == 1 else "softmax"
        self.function = {"regression": "none", "multi": "sigmoid"}.get(problem or "", unset)
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
        function = self.function if function_to_apply is None else function_to_apply
        if function not in FUNCTIONS:
            raise InputError(f"function_to_apply: {function!r} is unknown{nearest(str(function), FUNCTIONS)}")
        count = 1 if top_k == BEST else check_count("top_k", top_k)
        one = top_k == BEST and not isinstance(inputs, str)

        def answer(out: Any, b: int, row: Row) -> Any:
            logits_C = out.logits[b]
            scores = FUNCTIONS[function](logits_C.to(torch.promote_types(logits_C.dtype, torch.float32))).tolist()
            order = sorted(range(len(scores)), key=lambda i: -scores[i])
            labels = [{"label": self.source.label(i), "score": scores[i]} for i in order[:count]]
            return labels[0] if one else labels

        return self.read(inputs, answer, batch_size=batch_size, truncation=truncation)

    def marks(self, row: Row) -> list[int]:
        return [1] + [0] * (len(row.ids) - 1)

    def check(self, i: int, row: Row) -> None:
        if self.pairs and row.pair is None:
            raise InputError(f'input {i}: this model compares two texts; give {{"text": ..., "text_pair": ...}}')
