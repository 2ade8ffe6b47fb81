"""What objectives of encoders share: ids around a text, and texts that are longer than a row."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from anyformer.data.batch import IGNORE
from anyformer.data.objectives.objective import Objective, first_eos
from anyformer.errors import DataError
from anyformer.specs.model import ModelSpec

Long = Literal["cut", "skip", "refuse"]
"""What happens to an example that is longer than a row: its end is cut off, it is left out, or it is an error."""


@dataclass(frozen=True, kw_only=True)
class Framed(Objective):
    """Texts between two ids."""

    cls: int | None = None
    """The id before a text; unset: the spec's bos, if it has one."""
    sep: int | None = None
    """The id after a text; unset: the spec's first eos, if it has one."""

    def first(self, spec: ModelSpec) -> int | None:
        """The id before a text."""
        return spec.ids.bos if self.cls is None else self.cls

    def last(self, spec: ModelSpec) -> int | None:
        """The id after a text."""
        return first_eos(spec) if self.sep is None else self.sep


def fitting(cells_N: Any, length: int, long: Long) -> tuple[Any, int, int]:
    """Which examples are held, how many are left out, and how many are shortened. None has 0 cells."""
    above = cells_N > length
    if long == "refuse" and above.any():
        i = int(np.flatnonzero(above)[0])
        raise DataError(
            f"example {i} takes {cells_N[i]} cells, and a row has {length} ({int(above.sum())} of {len(above)} are too "
            "long); give a greater length, or say objective.long = 'cut' or 'skip' where there is such a choice"
        )
    held = (cells_N > 0) & ~above if long == "skip" else cells_N > 0
    return held, int((~held).sum()), int((above & held).sum())


def check_room(length: int, least: int, kind: str) -> None:
    """Refuse rows that have no room for a token beside the ids around a text."""
    if length < least:
        raise DataError(f"length: rows of {length} are too short for {kind!r}; give at least {least}")


def label_of(examples: Any, example: int) -> Any:
    """The one class of an example."""
    found = np.asarray(examples.read("label", example))
    if found.shape != (1,) or found.dtype.kind not in "iu":
        raise DataError(
            f"example {example}: column 'label' must hold one whole number, the class; it holds {found.tolist()[:4]}"
        )
    return np.int64(found[0] if found[0] >= 0 else IGNORE)
