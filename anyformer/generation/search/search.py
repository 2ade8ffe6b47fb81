"""What an engine asks of a search: with which tokens which sequences of a request go on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Protocol

from torch import Tensor

from anyformer.errors import InputError
from anyformer.generation.samplers.token_history import why_not


@dataclass(frozen=True, slots=True)
class Found:
    """One answer of a search."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    """The model's own log-probabilities of its tokens."""
    stopped: bool
    """Whether it ended with a stop token."""
    score: float | None = None
    """By what answers were ranked."""


class Search(Protocol):
    """A policy over the sequences of one request, which are forked and dropped as it says."""

    reads_hidden: ClassVar[bool]
    """Whether it looks at the states that the head reads, those of the prompt included."""
    width: int
    """Sequences at once at most."""
    results: list[Found]
    """When it has ended: its answers, the best first."""

    def begin(self, hidden_TD: Tensor | None) -> None:
        """The prompt has been read."""
        ...

    def advance(
        self, logits_RV: Tensor, samplers: Callable[[Tensor], Tensor], hidden_RD: Tensor | None
    ) -> list[tuple[int, int]]:
        """The next sequences: each goes on from one of those before, with a token; none: the search has ended.

        `samplers` are those of the request: what they leave of logits (R,V).
        """
        ...


def check_finite(logits_RV: Tensor, left_RV: Tensor) -> None:
    """Refuse rows that leave nothing to choose from."""
    for row in (~left_RV.amax(-1).isfinite()).nonzero().flatten().tolist():
        raise InputError(why_not(logits_RV[row], left_RV[row]) or "no token can be chosen")
