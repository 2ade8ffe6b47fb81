"""What a model makes of each token: feature-extraction."""

from collections.abc import Sequence
from typing import Any

from anyformer.errors import InputError
from anyformer.generation.pipelines.rows import Reader, Row
from anyformer.generation.pipelines.source import Source
from anyformer.model.eval_mode import without_head


class FeatureExtraction(Reader):
    """`pipe(text)`: the last states of its tokens, as nested lists (1, tokens, width)."""

    def __init__(self, source: Source) -> None:
        if source.model.spec.embed.reads != "input_ids":
            raise InputError(f"feature-extraction: this model reads {source.model.spec.embed.reads}, and no text")
        super().__init__(source, without_head(source.model))
        if source.model.spec.head.pools:
            # It would leave one state of each text; without it there are all.
            self.model.spec = source.model.spec.vary({"head": {"kind": "none"}, "loss": {}})

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

        def answer(out: Any, b: int, row: Row) -> Any:
            states_BTD = out.hidden if out.encoder_states is None else out.encoder_states
            states_1TD = states_BTD[b : b + 1, : len(row.ids)].cpu()
            return states_1TD.clone() if return_tensors else states_1TD.tolist()

        return self.read(inputs, answer, batch_size=batch_size, truncation=truncation)
