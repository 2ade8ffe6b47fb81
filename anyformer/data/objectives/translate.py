"""Translation with teacher forcing: the decoder predicts each token of the target from those before it."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from anyformer.data.dataset import Examples, Piece, Pieces
from anyformer.data.objectives import Made, Objective, Setting, Way, first_eos, fitting, ids_of, source_eos
from anyformer.specs.axes import Problem
from anyformer.specs.model import ModelSpec


@dataclass(frozen=True, kw_only=True)
class Translate(Objective, kind="translate"):
    """Source and target end with eos. The model itself feeds its decoder the start id and the target but for its end."""

    columns = ("source", "target")
    topologies = ("encoder-decoder",)
    ends_source = True
    heads = ("lm",)
    ways: ClassVar[tuple[Way, ...]] = ("packed", "padded")
    lanes = {"": ("input_ids",), "decoder_": ("labels",)}
    long: Literal["skip", "refuse"] = "skip"
    """A pair of which one side is longer than a row is left out, or an error: half of it is no translation."""

    def own_problems(self, spec: ModelSpec) -> Iterator[Problem]:
        if spec.ids.eos and spec.ids.source_eos is None and spec.ids.eos[0] >= spec.input_vocab:
            why = f"is missing: ids.eos = {spec.ids.eos[0]} is not among the {spec.input_vocab} tokens of the source"
            yield "ids.source_eos", f"{why}; say which of them ends it"

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        source_N, target_N = (np.asarray(examples.lengths(column)) for column in self.columns)
        empty_N = np.minimum(source_N, target_N) == 0
        cells_N = np.where(empty_N, 0, np.maximum(source_N, target_N) + 1)
        i, _, counts = fitting(cells_N, setting.length, self.long)
        cells = {"": source_N[i] + 1, "decoder_": target_N[i] + 1}
        return Pieces(i, np.zeros_like(i), source_N[i], cells, **counts)

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        ends = (source_eos(setting.spec), first_eos(setting.spec))
        source, target = (
            np.concatenate([np.asarray(examples.read(column, piece.example), np.int64), ids_of(end)])
            for column, end in zip(self.columns, ends, strict=True)
        )
        return Made(({"input_ids": source, "labels": target},))
