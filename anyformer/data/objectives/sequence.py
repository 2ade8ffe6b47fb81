"""Classification of a text."""

from dataclasses import dataclass

import numpy as np

from anyformer.data.dataset import Examples, Piece, Pieces
from anyformer.data.objectives import Framed, Long, Made, Setting, fitting, label_of


@dataclass(frozen=True, kw_only=True)
class Sequence(Framed, kind="sequence"):
    """One class for each text."""

    columns = ("tokens", "label")
    topologies = ("encoder", "decoder")
    heads = ("sequence",)
    lanes = {"": ("input_ids",)}
    classes = "label"
    long: Long = "cut"

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        frame = self.checked_frame(setting)
        cells_N = np.asarray(examples.lengths("tokens")) + frame
        i, cells, counts = fitting(cells_N, setting.length, self.long)
        return Pieces(i, np.zeros_like(i), cells - frame, {"": cells}, **counts)

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        body = np.asarray(examples.read("tokens", piece.example, piece.start, piece.stop), np.int64)
        return Made(({"input_ids": self.framed(body, setting.spec)},), label_of(examples, piece.example))
