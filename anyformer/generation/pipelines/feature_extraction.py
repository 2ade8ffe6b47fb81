"""What a model makes of each token: feature-extraction."""

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Row, check_size, listed, read_all, read_rows
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import without_head


class FeatureExtraction:
    """`pipe(text)`: the last states of its tokens, as nested lists (1, tokens, width)."""

    def __init__(self, source: Source) -> None:
        if source.model.spec.embed.reads != "input_ids":
            raise InputError(f"feature-extraction: this model reads {source.model.spec.embed.reads}, and no text")
        self.source = source
        self.body = without_head(source.model)
        if source.model.spec.head.pools:
            # It would leave one state of each text; without it there are all.
            self.body.spec = source.model.spec.vary({"head": {"kind": "none"}, "loss": {}})

    def __call__(
        self,
        inputs: str | Sequence[str],
        *,
        return_tensors: bool = False,
        batch_size: int | None = None,
        truncation: bool = False,
    ) -> Any:
        """The states of a text, or of each text of a list; of an encoder-decoder, its encoder's.

        Args:
            inputs: Texts.
            return_tensors: Tensors (1, tokens, width) on the CPU instead of lists.
            batch_size: Texts at once.
            truncation: Cut texts that are too long.
        """
        given, alone = listed(inputs)
        rows = read_rows(self.source, given, truncation=truncation)

        def answer(out: Any, _: Tensor, chosen: list[Row]) -> list[Any]:
            states_BTD = out.hidden if out.encoder_states is None else out.encoder_states
            found = [states_BTD[b : b + 1, : len(row.ids)].cpu() for b, row in enumerate(chosen)]
            return [states.clone() if return_tensors else states.tolist() for states in found]

        found = read_all(self.source, rows, check_size(batch_size), answer, self.body)
        return found[0] if alone else found
