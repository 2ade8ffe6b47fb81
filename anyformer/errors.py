"""The exceptions that anyformer raises on purpose.

A message says where (a dotted path), what was given, what is allowed, and what to do.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence


class AnyformerError(Exception):
    """Everything that anyformer raises on purpose."""


class SpecError(AnyformerError, ValueError):
    """A spec that can't be: every problem found, not only the first."""

    def __init__(self, problems: Sequence[str], source: str = "") -> None:
        self.problems = tuple(problems)
        self.source = source
        title = f"invalid spec ({source}):" if source else "invalid spec:"
        super().__init__("\n  ".join([title, *self.problems]))

    def __reduce__(self) -> tuple[type[SpecError], tuple[tuple[str, ...], str]]:
        # An exception is pickled by its message, from which the problems could not be told apart.
        return type(self), (self.problems, self.source)


class InputError(AnyformerError, ValueError):
    """A call whose arguments don't fit each other or the model."""


class CapabilityError(AnyformerError, RuntimeError):
    """A request that this build, device or dtype can't serve."""


class CheckpointError(AnyformerError, RuntimeError):
    """A checkpoint that is missing, damaged or of another model."""


class TrainingError(AnyformerError, RuntimeError):
    """A run that can't go on."""


class DataError(AnyformerError, ValueError):
    """A corpus or a tokenizer that can't be used."""


def nearest(name: str, known: Iterable[str]) -> str:
    """A clause that names the nearest right spelling, in any case, and lists what is known."""
    options = sorted(known)
    by_lower = {option.lower(): option for option in options}
    match = difflib.get_close_matches(name.lower(), by_lower, n=1, cutoff=0.6)
    hint = f"; did you mean {by_lower[match[0]]!r}?" if match else ";"
    return f"{hint} (known: {', '.join(options) or 'nothing'})"
