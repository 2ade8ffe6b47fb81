"""What objectives on plain text share: documents are cut into pieces, or run together in one stream."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from anyformer.data.dataset import Examples
from anyformer.data.objectives.objective import Made, Objective, Setting, Way, ids_of
from anyformer.data.spans import Piece, Pieces, cut
from anyformer.errors import DataError


class TextObjective(Objective):
    """Reads the column `tokens`, any part of which can stand by itself."""

    columns = ("tokens",)
    ways: ClassVar[tuple[Way, ...]] = ("stream", "packed", "padded")

    def around(self, setting: Setting, *, stream: bool) -> tuple[int | None, int | None]:
        """The ids before and after each document, whether or not it is cut; None: there is none."""
        return None, None

    def room(self, setting: Setting) -> int:
        """How many tokens, those around a document included, a row can hold."""
        raise TypeError(f"{type(self).__name__} defines no room()")

    def some_room(self, setting: Setting) -> int:
        """The same, if it is any at all."""
        room = self.room(setting)
        if room < 1:
            raise DataError(
                f"length: rows of {setting.length} leave no room for text beside what {self.kind!r} adds; give more"
            )
        return room

    def cells(self, tokens_P: Any, setting: Setting) -> dict[str, Any]:
        """How many cells so many tokens become, by lane."""
        return {"": tokens_P}

    def dress(self, ids_N: Any, setting: Setting, key: tuple[int, ...]) -> dict[str, Any]:
        """The cells that some tokens become."""
        raise TypeError(f"{type(self).__name__} defines no dress()")

    def plan(self, examples: Examples, setting: Setting) -> Pieces:
        lengths_N = np.asarray(examples.lengths("tokens"))
        extra = len(ids_of(*self.around(setting, stream=False)))
        example_P, start_P, stop_P = cut(np.where(lengths_N > 0, lengths_N + extra, 0), self.some_room(setting))
        cells = self.cells(stop_P - start_P, setting)
        return Pieces(example_P, start_P, stop_P, cells, left_out=int((lengths_N == 0).sum()))

    def make(self, examples: Examples, piece: Piece, setting: Setting, key: tuple[int, ...]) -> Made:
        ids_N = surrounded(examples, piece, *self.around(setting, stream=False))
        return Made((self.dress(ids_N, setting, key),))


def surrounded(examples: Examples, piece: Piece, before: int | None, after: int | None) -> Any:
    """A part of a document with the ids around it, counted from the one before it if there is one."""
    shift = 0 if before is None else 1
    start, stop = piece.start - shift, piece.stop - shift
    body_N = np.asarray(examples.read("tokens", piece.example, max(start, 0), max(stop, 0)), np.int64)
    first = before if start < 0 else None
    last = after if stop - max(start, 0) > len(body_N) else None
    return body_N if first is None and last is None else np.concatenate([ids_of(first), body_N, ids_of(last)])
