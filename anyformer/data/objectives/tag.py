"""Classification of tokens: parts of speech, names."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from anyformer.data.dataset import IGNORE, Examples, Piece, Pieces, cut
from anyformer.data.objectives import Framed, Made, Setting, Way, ids_of
from anyformer.errors import DataError


@dataclass(frozen=True, kw_only=True)
class Tag(Framed, kind="tag"):
    """One class for each word, at its first token. A text that is longer than a row becomes several."""

    columns = ("tokens", "tags")
    topologies = ("encoder", "decoder")
    heads = ("token",)
    ways: ClassVar[tuple[Way, ...]] = ("packed", "padded")
    classes = "tags"

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        frame = self.checked_frame(setting)
        tokens_N, tags_N = (np.asarray(examples.lengths(column)) for column in self.columns)
        apart = np.flatnonzero(tokens_N != tags_N)
        if len(apart):
            i = int(apart[0])
            needed = f"each token needs one ({IGNORE} where it is not the first of its word)"
            raise DataError(f"example {i} has {tokens_N[i]} tokens and {tags_N[i]} tags; {needed}")
        example_P, start_P, stop_P = cut(tokens_N, setting.length - frame)
        cells = {"": stop_P - start_P + frame}
        return Pieces(example_P, start_P, stop_P, cells, left_out=int((tokens_N == 0).sum()))

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        tokens, tags = (np.asarray(examples.read(column, *piece), np.int64) for column in self.columns)
        ids = self.framed(tokens, setting.spec)
        labels, before = np.full_like(ids, IGNORE), len(ids_of(self.first(setting.spec)))
        labels[before : before + len(tags)] = tags
        return Made(({"input_ids": ids, "labels": labels},))
